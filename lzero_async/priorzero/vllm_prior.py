"""VLLMPrior: scores computed by vLLM instead of transformers, for a GPU that serves many states at once.

This module was written against vLLM's documentation and has never run: no machine of this project has a GPU. Only its
refusals and `merged_weights` are tested. Compare its scores with those of `CausalLMPrior` before you rely on it.
"""
from __future__ import annotations

import glob
import os
from typing import Any, Dict, List, Mapping, Sequence

import torch
from safetensors import safe_open

from ..core.errors import ConfigError
from .installed import needed
from .models import resolve_llm
from .prior_config import LORA, PriorConfig
from .prompts import Prompts
from .state_scorer import StateScorer
from .text import StateScores, TextState
from .token_scores import Question

BEFORE, ADAPTER_IN, ADAPTER_OUT = 'base_model.model.', '.lora_A.default.weight', '.lora_B.default.weight'


class VLLMPrior:
    """A `Prior` that scores and takes over weights, and does not train. Called from one thread at a time.

    vLLM lets requests share a prompt only where no log-probabilities of prompts are asked for. Here they are, so each
    action costs a pass over the whole prompt.
    """

    def __init__(self, config: PriorConfig, device: str = 'cuda') -> None:
        vllm = needed('vllm', "backend 'vllm'", 'pip install vllm')
        if device != 'cuda':
            raise ConfigError(f"device must be 'cuda' with backend 'vllm', got {device!r}")
        self.config = config
        self.device = 'cpu'  # where `load_weights` wants its tensors
        self.choice = resolve_llm(config.llm)
        self._llm = vllm.LLM(
            model=self.choice.path, seed=config.seed, gpu_memory_utilization=config.vllm_gpu_memory,
            enable_prefix_caching=False,
        )
        self._sampling = vllm.SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        tokenizer = needed('transformers', f'llm {self.choice.name}').AutoTokenizer.from_pretrained(
            self.choice.path, local_files_only=True
        )
        self._scorer = StateScorer(
            Prompts(tokenizer, config.max_prompt_tokens), config, self.choice.name, None, self._log_probs
        )
        self._version = 0

    @property
    def trained(self) -> bool:
        return False

    @property
    def description(self) -> str:
        return f'{self.choice.describe}, on vLLM'

    @property
    def version(self) -> int:
        return self._version

    def score(self, states: Sequence[TextState]) -> List[StateScores]:
        return self._scorer.score(states, self._version)

    def decode(self, ids: Sequence[int]) -> str:
        """A prompt as the language model sees it."""
        return self._scorer.decode(ids)

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Take over what `CausalLMPrior.weights()` gave, adapters added into the model's own weights."""
        if weights:
            scale = self.config.lora_alpha / self.config.lora_rank if self.config.train == LORA else 1.0
            pairs = list(merged_weights(self.choice.path, weights, scale).items())
            try:
                self._llm.apply_model(lambda model: model.load_weights(pairs))
            except Exception as error:
                raise ConfigError(
                    "backend 'vllm' must run in this process to take new weights, which the environment variable "
                    f'VLLM_ENABLE_V1_MULTIPROCESSING=0 tells it; got {error!r}'
                ) from error
        self._version = version
        self._scorer.forget()

    def _log_probs(self, questions: Sequence[Question]) -> List[List[List[float]]]:
        pairs = [(question.prompt, answer) for question in questions for answer in question.answers]
        outputs = iter(self._llm.generate(
            [{'prompt_token_ids': [*prompt, *answer]} for prompt, answer in pairs], self._sampling, use_tqdm=False
        ))
        return [[_answer(next(outputs), answer) for answer in question.answers] for question in questions]


def _answer(output: Any, answer: Sequence[int]) -> List[float]:
    tokens = output.prompt_logprobs[-len(answer):]
    return [float(token[token_id].logprob) for token, token_id in zip(tokens, answer)]


def merged_weights(path: str, weights: Mapping[str, torch.Tensor], scale: float) -> Dict[str, torch.Tensor]:
    """Weights under the names they have in the model's own files: adapters as the weights they change, others as is."""
    adapted = {
        name[len(BEFORE):-len(ADAPTER_IN)]: (tensor, weights[name[:-len(ADAPTER_IN)] + ADAPTER_OUT])
        for name, tensor in weights.items() if name.endswith(ADAPTER_IN)
    }
    merged = {name: tensor for name, tensor in weights.items() if not name.endswith((ADAPTER_IN, ADAPTER_OUT))}
    for file in sorted(glob.glob(os.path.join(glob.escape(path), '*.safetensors'))):
        with safe_open(file, framework='pt') as tensors:
            for name in tensors.keys():  # noqa: SIM118  this is no dict
                if name.endswith('.weight') and name[:-len('.weight')] in adapted:
                    first, second = adapted[name[:-len('.weight')]]
                    merged[name] = tensors.get_tensor(name).float() + scale * (second @ first)
    if len(merged) != len(weights) - len(adapted):
        raise ConfigError(
            f'llm must have its weights in .safetensors files for backend \'vllm\', got {path!r} with '
            f'{len(merged) - len(weights) + 2 * len(adapted)} of the {len(adapted)} that adapters change'
        )
    return merged
