"""How a prior and the world model's own policy become one policy at the root of a search. Pure functions."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import numpy as np

from ..core.errors import ConfigError

MODES = ('mixed', 'llm_logits', 'wm_logits')
NEVER = -1e9
"""Of an action that is not there. The search does not look at those."""


@dataclass(frozen=True)
class RootMixing:
    """`mixed`: log(weight softmax(world model) + (1 - weight) softmax(prior)). The others take one side alone."""

    mode: str = 'mixed'
    weight: float = 0.5
    """Of the world model."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f'root_prior.mode must be one of {", ".join(MODES)}, got {self.mode!r}')
        if isinstance(self.weight, bool) or not isinstance(self.weight, (int, float)) or not 0 <= self.weight <= 1:
            raise ConfigError(f'root_prior.weight must be between 0 and 1, got {self.weight!r}')

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> 'RootMixing':
        unknown = sorted(set(given) - {'mode', 'weight'})
        if unknown:
            raise ConfigError(f'root_prior must have the keys mode and weight, got {", ".join(unknown)}')
        return cls(**given)

    @property
    def needs_prior(self) -> bool:
        return self.mode != 'wm_logits'

    def logits(self, world_model: np.ndarray, log_priors: Sequence[Sequence[float]]) -> np.ndarray:
        """One row per environment. The first `len(log_priors[i])` actions of row `i` are there, the rest is not."""
        mixed = np.full_like(world_model, NEVER)
        for row, (own, log_prior) in enumerate(zip(world_model, log_priors)):
            count = len(log_prior)
            mixed[row, :count] = self._one(own[:count], np.asarray(log_prior, world_model.dtype))
        return mixed

    def _one(self, own: np.ndarray, log_prior: np.ndarray) -> np.ndarray:
        if self.mode == 'wm_logits':
            return own
        if self.mode == 'llm_logits' or self.weight == 0:
            return log_prior
        own = log_softmax(own)
        if self.weight == 1:
            return own
        mixed: np.ndarray = np.logaddexp(np.log(self.weight) + own, np.log1p(-self.weight) + log_prior)
        return mixed


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    normal: np.ndarray = shifted - np.log(np.exp(shifted).sum())
    return normal
