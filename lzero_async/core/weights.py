"""WeightSnapshot: what travels back, from learner to collectors and evaluator."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional


@dataclass(frozen=True)
class WeightSnapshot:
    """One version of the weights, never changed after it is made. Only `WeightOps` looks inside `weights`."""

    policy_version: int
    """The learner's train_iter when these weights were copied."""
    env_step: int
    weights: Any
    """None where readers share the learner's own weights, and there is nothing to carry."""
    rounds: int = 0
    """Rounds the learner had finished with these weights."""
    learner_state: Optional[Any] = None
    """All that a checkpoint of this version needs (target model, optimizer); only where one may be saved."""
