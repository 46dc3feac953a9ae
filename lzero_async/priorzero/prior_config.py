"""PriorConfig: every setting of the language model, checked before one is loaded."""
from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, List, Mapping, Optional

from ..core.checks import choice, integer, number, optional, text
from ..core.config import check_settings, nearest, setting
from ..core.errors import ConfigError

LORA, LAST_LAYERS, ALL, NONE = 'lora', 'last_layers', 'all', 'none'
TORCH, VLLM = 'torch', 'vllm'
STEP_SIZES = {LORA: 1e-4, LAST_LAYERS: 1e-5, ALL: 1e-6, NONE: 0.0}


def _above_zero(name: str, value: Any) -> float:
    return float(number(0.0, exclusive=True)(name, value))


def _fraction(name: str, value: Any) -> float:
    if _above_zero(name, value) > 1.0:
        raise ConfigError(f'{name} must be <= 1, got {value!r}')
    return float(value)


@dataclass(frozen=True)
class PriorConfig:
    """The settings of the language model that gives the prior. `from_mapping` also refuses unknown keys."""

    llm: Optional[str] = setting(
        None, optional(text), 'smollm2, tiny, or the folder of a causal language model. None: the best one installed.'
    )
    backend: str = setting(
        TORCH, choice(TORCH, VLLM), 'What computes the scores where nothing is trained; training is always torch.'
    )
    train: str = setting(
        LORA, choice(LORA, LAST_LAYERS, ALL, NONE),
        'What is trained: low-rank adapters of all linear layers, the last layers, every weight, or nothing.',
    )
    last_layers: int = setting(
        2, integer(1), 'How many of the last layers are trained, with the final norm (train last_layers).'
    )
    lora_rank: int = setting(8, integer(1), 'The rank of the adapters (train lora).')
    lora_alpha: float = setting(16.0, _above_zero, 'The adapters are scaled by lora_alpha / lora_rank (train lora).')
    learning_rate: Optional[float] = setting(
        None, optional(_above_zero), 'Of AdamW. None: 1e-4 for lora, 1e-5 for last_layers, 1e-6 for all.'
    )
    max_grad_norm: float = setting(1.0, _above_zero, 'Gradients are scaled down to this norm.')
    clip_range: float = setting(
        0.2, _above_zero, 'PPO: the gain of a token counts while its ratio to the rollout is within 1 +- this.'
    )
    kl_weight: float = setting(
        0.01, number(0.0), 'Weight of the divergence from the model as it was loaded. 0: it is not even computed.'
    )
    epochs: int = setting(1, integer(1), 'Passes over the samples of one update.')
    minibatch_size: int = setting(4, integer(1), 'Samples per step of the optimizer.')
    max_samples: int = setting(
        32, integer(1), 'Samples that one update trains on; of more, so many are drawn. Bounds its cost.'
    )
    max_prompt_tokens: int = setting(
        512, integer(16),
        'Prompts are cut to this: the oldest history first, then the middle of the observation. What is never cut, the '
        'instructions and the valid actions, may still need more.',
    )
    temperature: float = setting(
        1.0, _above_zero, 'Of the softmax over the actions\' mean log-probabilities. Below 1: a sharper prior.'
    )
    max_batch_tokens: int = setting(
        8192, integer(1),
        'Tokens, padding and shared prompts included, that one pass of scoring holds at once. Bounds its memory.',
    )
    cache_size: int = setting(2048, integer(0), 'Scored states that are remembered until the weights change.')
    vllm_gpu_memory: float = setting(
        0.3, _fraction, 'Part of the GPU\'s memory that vLLM takes, which it shares with the learner (backend vllm).'
    )
    seed: int = setting(0, integer(0), 'Of the adapters\' first values and of the order of samples.')

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def step_size(self) -> float:
        """The learning rate, also where none was given."""
        if self.learning_rate is not None:
            return self.learning_rate
        return STEP_SIZES[self.train]

    @classmethod
    def names(cls) -> List[str]:
        return [one.name for one in fields(cls)]

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> 'PriorConfig':
        """Build from a mapping that holds settings of the prior and nothing else."""
        for key in settings:
            if key not in cls.names():
                meant = nearest(str(key), cls.names(), cutoff=0.5)
                hint = f'did you mean {meant}?' if meant else f'the settings are {", ".join(cls.names())}'
                raise ConfigError(f'{key} must be a setting of the prior, got an unknown key; {hint}')
        return cls(**settings)
