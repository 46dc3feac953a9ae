"""CausalLMPrior: a causal language model of transformers that scores the actions of states, and can be trained."""
from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Sequence

import torch

from ..core.checks import device as check_device
from ..core.errors import ConfigError
from .models import load_llm, resolve_llm
from .prior_config import LORA, NONE, PriorConfig
from .prior_files import read_prior, write_prior
from .prior_update import PriorUpdater
from .prompts import Prompts
from .state_scorer import StateScorer
from .text import PriorSample, StateScores, TextState
from .token_scores import TokenScorer
from .trained_part import TrainedPart


class CausalLMPrior:
    """A `Prior`. Everything is called from one thread at a time.

    Dropout is always off, so that weights which have not changed give an action the log-probabilities of its rollout.
    """

    def __init__(self, config: PriorConfig, device: str = 'cpu', trainable: bool = False) -> None:
        """`trainable`: with an optimizer, gradients and the reference that `update` needs."""
        self.config = config
        self.device = _usable(device)
        self.choice = resolve_llm(config.llm)
        self.trainable = trainable
        model, tokenizer = load_llm(self.choice, device, _dtype(config, device, trainable))
        self._part = TrainedPart(model, config, trainable)
        self._scorer = StateScorer(
            Prompts(tokenizer, config.max_prompt_tokens), config, self.choice.name,
            getattr(model.config, 'max_position_embeddings', None),
            TokenScorer(self._part.model, config.max_batch_tokens).scores,
        )
        self._updater = PriorUpdater(self._part, config) if trainable else None
        self._version = 0

    @property
    def version(self) -> int:
        return self._version

    @property
    def trained(self) -> bool:
        """Whether updates change anything."""
        return self.trainable and self.config.train != NONE

    @property
    def description(self) -> str:
        """One line, to be shown."""
        return self.choice.describe

    def score(self, states: Sequence[TextState]) -> List[StateScores]:
        return self._scorer.score(states, self._version)

    def decode(self, ids: Sequence[int]) -> str:
        """A prompt as the language model sees it."""
        return self._scorer.decode(ids)

    # ---------------------------------------------------------------- training

    def update(self, samples: Sequence[PriorSample]) -> Mapping[str, float]:
        """Train on the actions that were taken. The version counts up if the weights changed.

        Gives the means `loss`, `policy_loss`, `kl`, `ratio_mean`, `clip_fraction` and `grad_norm`, the counts
        `samples`, `left_out`, `steps` and `skipped`, and the `seconds` it took.
        """
        report = self._trainer().update(samples)
        if report['steps'] > 0:
            self._changed(self._version + 1)
        return report

    def weights(self) -> Dict[str, torch.Tensor]:
        """A copy of the trained tensors, on the CPU. Empty if nothing is trained."""
        return self._part.weights()

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Take over what `weights()` of another prior gave. What does not fit is refused before anything is changed."""
        self._part.load(weights)
        self._changed(version)

    def _changed(self, version: int) -> None:
        self._version = version
        self._scorer.forget()

    def _trainer(self) -> PriorUpdater:
        if self._updater is None:
            raise RuntimeError('the prior must be made with trainable=True to be trained or restored, got False')
        return self._updater

    # ---------------------------------------------------------------- keeping

    def state(self) -> Dict[str, Any]:
        """A copy of all that the next update depends on, for `checkpoints.trees`."""
        return {'version': self._version, 'weights': self.weights(), 'trainer': self._trainer().state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state()`. What does not fit is refused before anything is changed.

        Versions do not go back: weights that do get a new one.
        """
        self._part.check(state['weights'])
        version = int(state['version'])
        if version < self._version:
            version = self._version + 1
        self._trainer().restore(state['trainer'])
        self.load_weights(state['weights'], version)

    def save(self, folder: str) -> None:
        """Write the trained tensors and the version."""
        write_prior(folder, self._version, self._kind(), self.weights())

    def load(self, folder: str) -> None:
        """Take over what `save` wrote. Raises StateDamaged if a file is not as it was written."""
        version, weights = read_prior(folder, self._kind())
        self.load_weights(weights, version)

    def _kind(self) -> Dict[str, Any]:
        """What must be the same for weights to mean the same."""
        kind: Dict[str, Any] = {'llm': os.path.basename(self.choice.path), 'train': self.config.train}
        return {**kind, 'lora_alpha': self.config.lora_alpha} if self.config.train == LORA else kind


def _usable(device: str) -> str:
    check_device('device', device)
    if device != 'cpu' and not torch.cuda.is_available():
        raise ConfigError(f"device must be 'cpu' where torch sees no CUDA device, got {device!r}")
    return device


def _dtype(config: PriorConfig, device: str, trainable: bool) -> torch.dtype:
    """Single precision on a CPU, and for weights that are trained themselves: steps would be lost in bfloat16."""
    trains_itself = trainable and config.train not in (LORA, NONE)
    return torch.float32 if device == 'cpu' or trains_itself else torch.bfloat16
