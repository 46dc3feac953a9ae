"""WeightSnapshot and WeightStore: what travels back, from learner to collectors and evaluator."""
from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Optional

from .errors import LzeroAsyncError


@dataclass(frozen=True)
class WeightSnapshot:
    """One version of the weights, never changed after it is made. Only the host's code looks inside `weights`."""

    policy_version: int
    """The learner's train_iter when these weights were copied."""
    env_step: int
    weights: Any
    learner_state: Optional[Any] = None
    """All that a checkpoint of this version needs (target model, optimizer); only where one may be saved."""


class WeightStore:
    """Holds the newest snapshot. Publishing replaces it whole, so a reader sees all of one version."""

    def __init__(self, first: WeightSnapshot) -> None:
        # Guards _latest.
        self._lock = threading.Lock()
        self._latest = first

    def publish(self, snapshot: WeightSnapshot) -> None:
        with self._lock:
            if snapshot.policy_version < self._latest.policy_version:
                raise LzeroAsyncError(
                    f'policy_version must not go back: {snapshot.policy_version} after {self._latest.policy_version}'
                )
            self._latest = snapshot

    def latest(self) -> WeightSnapshot:
        with self._lock:
            return self._latest
