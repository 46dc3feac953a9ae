"""The degree that tunes itself: a pure state machine, told of every round, that answers with a new degree or nothing.

It keeps the durations of the last rounds, and asks what each degree would have made of them: with slots for `degree`
outstanding rounds, the k-th collect starts when its collector is free and round k - degree is trained, and the k-th
round is trained when it is collected and the round before it is trained. That gives the time those rounds would have
taken. The loss of a degree is how much longer that is than with the highest degree allowed.

    lower   to the smallest degree whose loss is at most LOWER_LOSS, once two decisions in a row say so
    raise   when the degree in force loses more than RAISE_LOSS

The gap between the two is the hysteresis. When training shows strain (see strain.py) the ceiling is halved, and grows
back by doubling after a while without strain; that while doubles with every strain.
"""
from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass
from typing import Deque, Optional, Sequence

from .checks import integer
from .errors import ConfigError
from .strain import StrainGauges, TrainingSignals

WINDOW = 64
"""Rounds that are looked back on."""
DECIDE_EVERY = 8
LOWER_LOSS = 0.005
RAISE_LOSS = 0.015
CALM_ROUNDS = 32
MOST_CALM_ROUNDS = 1024
SETTLE_ROUNDS = 128
"""Within so many rounds of a workload that stays as it is the degree has settled: shown by the tests."""


@dataclass(frozen=True)
class DegreeChange:
    degree: int
    reason: str


class DegreeController:
    """Not locked: its owner calls it under a lock of its own."""

    def __init__(self, start: int, lowest: int = 1, highest: Optional[int] = None) -> None:
        self._lowest: int = integer(1)('min_off_policy_degree', lowest)
        most = max(start, lowest) if highest is None else highest
        self._highest: int = integer(1)('max_off_policy_degree', most)
        if self._highest < self._lowest:
            raise ConfigError(
                f'max_off_policy_degree must be >= min_off_policy_degree ({self._lowest}), got {self._highest}'
            )
        self._degree: int = min(max(integer(1)('off_policy_degree', start), self._lowest), self._highest)
        self._ceiling = self._highest
        self._collects: Deque[float] = deque(maxlen=WINDOW)
        self._trains: Deque[float] = deque(maxlen=WINDOW)
        self._rounds = 0
        self._wanted: Optional[int] = None
        self._gauges = StrainGauges()
        self._calm = DECIDE_EVERY
        self._calm_needed = CALM_ROUNDS

    @property
    def degree(self) -> int:
        return self._degree

    @property
    def highest(self) -> int:
        return self._highest

    def collected(self, seconds: float) -> None:
        """One collect took so long."""
        self._collects.append(seconds)

    def trained(
        self, seconds: float, collectors: int = 1, signals: Optional[TrainingSignals] = None
    ) -> Optional[DegreeChange]:
        """One round took so long to train. Returns the change that follows from it, if any."""
        self._trains.append(seconds)
        self._rounds += 1
        self._calm += 1
        strain = self._gauges.reason(signals) if signals is not None else None
        if strain is not None and self._calm > DECIDE_EVERY:  # what was lowered just now has had no time to help
            return self._back_off(strain)
        self._recover()
        if self._rounds % DECIDE_EVERY == 0 and self._collects:
            return self._decide(max(1, collectors))
        return None

    def _back_off(self, strain: str) -> Optional[DegreeChange]:
        self._calm = 0
        self._calm_needed = min(2 * self._calm_needed, MOST_CALM_ROUNDS)
        self._ceiling = max(self._lowest, self._degree // 2)
        return self._change(self._ceiling, f'strain: {strain}')

    def _recover(self) -> None:
        if self._ceiling < self._highest and self._calm >= self._calm_needed:
            self._calm = 0
            self._ceiling = min(self._highest, 2 * self._ceiling)

    def _decide(self, collectors: int) -> Optional[DegreeChange]:
        losses = _Losses(self._collects, self._trains, collectors, self._highest)
        enough = losses.smallest(self._lowest, self._ceiling)
        now = losses.of(self._degree)
        if enough > self._degree:
            self._wanted = None
            if now <= RAISE_LOSS:
                return None
            return self._change(enough, f'the slower role waits: {now:.1%} slower than need be')
        if enough == self._degree:
            self._wanted = None
            return None
        # The smallest of the last two, so that one lucky window does not lower it too far.
        wanted, self._wanted = self._wanted, enough
        if wanted is None:
            return None
        lower = max(wanted, enough)
        return self._change(lower, f'{lower} keeps the slower role as busy: {losses.of(lower):.1%} slower at most')

    def _change(self, degree: int, reason: str) -> Optional[DegreeChange]:
        if degree == self._degree:
            return None
        self._degree = degree
        self._wanted = None
        return DegreeChange(degree, reason)


class _Losses:
    """What degrees would have lost over the recorded rounds."""

    def __init__(self, collects: Sequence[float], trains: Sequence[float], collectors: int, highest: int) -> None:
        rounds = min(len(collects), len(trains))
        self._collects = list(collects)[-rounds:]
        self._trains = list(trains)[-rounds:]
        self._collectors = collectors
        self._least = time_taken(self._collects, self._trains, collectors, highest)

    def of(self, degree: int) -> float:
        taken = time_taken(self._collects, self._trains, self._collectors, degree)
        return taken / self._least - 1 if self._least > 0 else 0.0

    def smallest(self, lowest: int, highest: int) -> int:
        """The smallest degree that loses next to nothing; `highest` if all lose more. More slots never take longer."""
        while lowest < highest:
            middle = (lowest + highest) // 2
            if self.of(middle) <= LOWER_LOSS:
                highest = middle
            else:
                lowest = middle + 1
        return lowest


def time_taken(collects: Sequence[float], trains: Sequence[float], collectors: int, degree: int) -> float:
    """How long rounds of these durations take with so many collectors and slots. Rounds are trained in order."""
    free = [0.0] * collectors
    trained: Deque[float] = deque(itertools.repeat(0.0, degree), maxlen=degree)
    for collect, train in zip(collects, trains):
        # The oldest of the last `degree` rounds gave its slot free when it was trained.
        begin = max(heapq.heappop(free), trained[0])
        heapq.heappush(free, begin + collect)
        trained.append(max(trained[-1], begin + collect) + train)
    return trained[-1]
