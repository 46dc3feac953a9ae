"""SegmentBatch: what travels forward, from collector to learner."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Collected:
    """What a collector returns from one collect. Only the host's code looks inside `segments`."""

    segments: Any
    transitions: int
    env_step: int
    """Environment steps of this collector so far, this collect included."""


@dataclass(frozen=True)
class SegmentBatch:
    """One round's data, and the weights it was collected with."""

    collected: Collected
    policy_version: int
    """The learner's train_iter when those weights were copied."""
    rounds_at_pull: int
    """Rounds the learner had finished when those weights were pulled."""
    pulled_at: float
    collected_at: float

    def staleness(self, train_count: int) -> int:
        """Rounds finished since the pull, if the batch were trained on now."""
        return train_count - self.rounds_at_pull

    def age(self, now: float) -> float:
        """Seconds since the weights were pulled."""
        return now - self.pulled_at
