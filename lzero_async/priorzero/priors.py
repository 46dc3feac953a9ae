"""Which prior a config asks for."""
from __future__ import annotations

from typing import Union

from .causal_lm_prior import CausalLMPrior
from .prior_config import VLLM, PriorConfig
from .vllm_prior import VLLMPrior


def make_prior(config: PriorConfig, device: str = 'cpu', trainable: bool = False) -> Union[CausalLMPrior, VLLMPrior]:
    """One that is to be trained is always of torch; vLLM may score beside it."""
    if config.backend == VLLM and not trainable:
        return VLLMPrior(config, device)
    return CausalLMPrior(config, device, trainable)
