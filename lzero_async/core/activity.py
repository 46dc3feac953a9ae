"""Who was busy when: seconds of work per role, and of collect and train at the same time."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Mapping

from .statistics import Statistics

KINDS = ('collect', 'train', 'eval')


@dataclass(frozen=True)
class Activity:
    """Seconds since the clock was made (or reset). `busy` counts time in which at least one of a kind was at work."""

    elapsed: float
    busy: Mapping[str, float]
    overlap: float

    def since(self, earlier: 'Activity') -> 'Activity':
        """What happened after `earlier`, a reading of the same clock."""
        return Activity(
            elapsed=self.elapsed - earlier.elapsed,
            busy=Statistics({kind: seconds - earlier.busy[kind] for kind, seconds in self.busy.items()}),
            overlap=self.overlap - earlier.overlap,
        )

    def idle_ratio(self, kind: str) -> float:
        return 1.0 - self.busy[kind] / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def overlap_ratio(self) -> float:
        return self.overlap / self.elapsed if self.elapsed > 0 else 0.0


class ActivityClock:
    """Adds up who is busy, at O(1) per change. Not locked: its owner calls it under a lock of its own."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._running = {kind: 0 for kind in KINDS}
        self.reset()

    def reset(self) -> None:
        self._begin = self._last = self._clock()
        self._busy = {kind: 0.0 for kind in KINDS}
        self._overlap = 0.0

    def start(self, kind: str) -> None:
        self._advance()
        self._running[kind] += 1

    def stop(self, kind: str) -> None:
        self._advance()
        self._running[kind] -= 1

    def read(self) -> Activity:
        self._advance()
        return Activity(self._last - self._begin, Statistics(self._busy), self._overlap)

    def _advance(self) -> None:
        now = self._clock()
        passed, self._last = now - self._last, now
        for kind, count in self._running.items():
            if count:
                self._busy[kind] += passed
        if self._running['collect'] and self._running['train']:
            self._overlap += passed
