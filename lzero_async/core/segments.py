"""SegmentBatch: what travels forward, from collector to learner."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, Iterable, Tuple


@dataclass(frozen=True)
class Stamp:
    """The weights that samples were collected with."""

    policy_version: int
    """The learner's train_iter when those weights were copied."""
    rounds_at_pull: int
    """Rounds the learner had finished when those weights were copied."""
    pulled_at: float

    def staleness(self, train_count: int) -> int:
        """Rounds finished since, if the samples were trained on now."""
        return train_count - self.rounds_at_pull

    def age(self, now: float) -> float:
        """Seconds since the weights were pulled."""
        return now - self.pulled_at


@dataclass(frozen=True)
class Piece:
    """Samples that were collected with one version. Only the host's code looks inside `segments`."""

    policy_version: int
    segments: Any
    transitions: int
    nbytes: int = 0


@dataclass(frozen=True)
class Collected:
    """What a collector returns from one collect.

    Most of it was collected with the weights of this collect. A host may hand some samples over later than it
    collected them; those are pieces of their own, under the version that collected them.
    """

    pieces: Tuple[Piece, ...]
    env_steps: int
    """Environment steps made in this collect."""
    random_state: Any = None
    """Where the collector's random generators stand after it, if it can be asked to go on from there."""

    @classmethod
    def of(cls, policy_version: int, segments: Any, transitions: int, env_steps: int) -> 'Collected':
        """All of it in one piece."""
        return cls((Piece(policy_version, segments, transitions),), env_steps)


@dataclass(frozen=True)
class SegmentBatch:
    """One round's data, and the weights it was collected with."""

    pieces: Tuple[Piece, ...]
    env_step: int
    """Environment steps of the whole run when it was collected, by all collectors, its own included."""
    stamp: Stamp
    """Of the weights pulled for this batch."""
    earlier: Tuple[Stamp, ...]
    """Of the weights that the collector pulled before, as far as pieces of this batch go back to them."""
    collected_at: float
    slot: int = 0
    """Numbers the batches of a run in the order of their pulls."""

    @property
    def policy_version(self) -> int:
        return self.stamp.policy_version

    @property
    def rounds_at_pull(self) -> int:
        return self.stamp.rounds_at_pull

    @property
    def pulled_at(self) -> float:
        return self.stamp.pulled_at

    @property
    def transitions(self) -> int:
        return sum(piece.transitions for piece in self.pieces)

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def order(self) -> Tuple[int, int]:
        """The oldest weights first: the order in which batches are trained."""
        return self.rounds_at_pull, self.slot

    def stamp_of(self, piece: Piece) -> Stamp:
        stamps: Dict[int, Stamp] = {stamp.policy_version: stamp for stamp in (*self.earlier, self.stamp)}
        return stamps[piece.policy_version]

    def keeping(self, pieces: Iterable[Piece]) -> 'SegmentBatch':
        return replace(self, pieces=tuple(pieces))

    def staleness(self, train_count: int) -> int:
        return self.stamp.staleness(train_count)

    def age(self, now: float) -> float:
        return self.stamp.age(now)
