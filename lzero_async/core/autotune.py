"""The degree that tunes itself: a pure state machine, told of every round, that answers with a new degree or nothing.

It keeps the durations of the last rounds, and asks what each degree would make of them if they came again and again:
with slots for `degree` outstanding rounds, a collect starts when a collector and a slot are free, and batches are
trained in the order in which they arrive. That gives the time that those rounds would take. The loss of a degree is
how much longer that is than with the highest degree allowed.

    lower   to the smallest degree whose loss is at most LOWER_LOSS, once some decisions in a row say so
    raise   when the degree in force loses more than RAISE_LOSS

The gap between the two is the hysteresis, and every raise doubles the decisions that the next lowering takes. Roles
that differ by no more than chance explains are taken for equally fast, which is when slots are needed most. Rounds from
before a change of the workload are forgotten.

When training shows strain (see strain.py) the ceiling is halved, and grows back by doubling after a while without
strain; that while doubles with every strain that comes back after that.
"""
from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Deque, Dict, List, Mapping, Optional, Sequence, Tuple

from .checks import integer
from .errors import ConfigError
from .strain import StrainGauges, TrainingSignals

WINDOW = 256
"""Rounds that are looked back on."""
DECIDE_EVERY = 16
LOWER_LOSS = 0.005
RAISE_LOSS = 0.02
PATIENCE, MOST_PATIENCE = 4, 32
"""Decisions that must agree before the degree is lowered: at first, and after many raises."""
ROUNDS_PER_SLOT = 8
"""A degree is believed to be enough once so many rounds per slot are known, or the window is full."""
STANDARD_ERRORS = 3.0
"""Up to which a difference is taken for chance."""
NEW_ROUNDS = 32
"""Rounds that are compared with those before them, to notice a change of the workload."""
FEWEST_ROUNDS = 8
LEAST_CHANGE = 0.25
COOL_DOWN = 8
"""Rounds after a back-off in which strain is not heard: what was lowered just now has had no time to help."""
CALM_ROUNDS = 32
MOST_CALM_ROUNDS = 1024
SETTLE_ROUNDS = 320
"""Within so many rounds of a workload that stays as it is the degree has settled: shown by the tests."""


@dataclass(frozen=True)
class DegreeChange:
    degree: int
    reason: str


class DegreeController:
    """Not locked: its owner calls it under a lock of its own."""

    def __init__(self, start: int, lowest: int = 1, highest: Optional[int] = None) -> None:
        integer(1)('off_policy_degree', start)
        self._lowest: int = integer(1)('min_off_policy_degree', lowest)
        most = max(start, lowest) if highest is None else highest
        self._highest: int = integer(1)('max_off_policy_degree', most)
        if self._highest < self._lowest:
            raise ConfigError(
                f'max_off_policy_degree must be >= min_off_policy_degree ({self._lowest}), got {self._highest}'
            )
        self._degree: int = min(max(start, self._lowest), self._highest)
        self._ceiling = self._highest
        self._collects: Deque[float] = deque(maxlen=WINDOW)
        self._trains: Deque[float] = deque(maxlen=WINDOW)
        self._rounds = 0
        self._enough: List[int] = []  # what the last decisions found, since the last change
        self._patience = PATIENCE
        self._gauges = StrainGauges()
        self._calm = COOL_DOWN
        self._calm_needed = CALM_ROUNDS
        self._relapse = True  # whether the next strain is a new one, not what is left of the last

    @property
    def degree(self) -> int:
        return self._degree

    @property
    def highest(self) -> int:
        return self._highest

    def state(self) -> Dict[str, Any]:
        return {
            'degree': self._degree, 'ceiling': self._ceiling, 'collects': list(self._collects),
            'trains': list(self._trains), 'rounds': self._rounds, 'enough': list(self._enough),
            'patience': self._patience, 'gauges': self._gauges.state(), 'calm': self._calm,
            'calm_needed': self._calm_needed, 'relapse': self._relapse,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, within the bounds of now."""
        self._degree = min(max(state['degree'], self._lowest), self._highest)
        self._ceiling = min(max(state['ceiling'], self._lowest), self._highest)
        self._collects.extend(state['collects'])
        self._trains.extend(state['trains'])
        self._rounds, self._enough, self._patience = state['rounds'], list(state['enough']), state['patience']
        self._gauges.restore(state['gauges'])
        self._calm, self._calm_needed, self._relapse = state['calm'], state['calm_needed'], state['relapse']

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
        if strain is not None and self._calm > COOL_DOWN:
            return self._back_off(strain)
        self._recover()
        if self._rounds % DECIDE_EVERY == 0 and self._collects:
            return self._decide(max(1, collectors))
        return None

    def _back_off(self, strain: str) -> Optional[DegreeChange]:
        self._calm = 0
        if self._relapse:
            self._calm_needed = min(2 * self._calm_needed, MOST_CALM_ROUNDS)
        self._relapse = False
        self._ceiling = max(self._lowest, self._degree // 2)
        return self._change(self._ceiling, f'strain: {strain}')

    def _recover(self) -> None:
        if self._ceiling < self._highest and self._calm >= self._calm_needed:
            self._calm = 0
            self._relapse = True
            self._ceiling = min(self._highest, 2 * self._ceiling)

    def _decide(self, collectors: int) -> Optional[DegreeChange]:
        if _changed(self._collects) or _changed(self._trains):
            self._forget()
        losses = _Losses(self._collects, self._trains, collectors, self._highest)
        now = losses.of(self._degree)
        if now > RAISE_LOSS and self._degree < self._ceiling:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
            higher = losses.smallest(self._degree + 1, self._ceiling)
            higher = min(max(higher, self._degree + self._degree // 4), self._ceiling)
            return self._change(higher, f'the slower role waits: {now:.1%} slower than need be')
        enough = losses.smallest(self._lowest, self._degree) if now <= LOWER_LOSS else self._degree
        if losses.rounds < min(ROUNDS_PER_SLOT * enough, WINDOW):
            return None
        self._enough.append(enough)
        # The highest of the last ones, so that a lucky window does not lower it too far; steps that hardly matter
        # are not taken.
        lower = max(self._enough[-self._patience:])
        if len(self._enough) < self._patience or lower > self._degree - max(1, self._degree // 3):
            return None
        return self._change(lower, f'{lower} keeps the slower role as busy: {losses.of(lower):.1%} slower at most')

    def _change(self, degree: int, reason: str) -> Optional[DegreeChange]:
        if degree == self._degree:
            return None
        self._degree = degree
        self._enough.clear()
        return DegreeChange(degree, reason)

    def _forget(self) -> None:
        """Keep the newest rounds only."""
        for durations in (self._collects, self._trains):
            newest = list(durations)[-FEWEST_ROUNDS:]
            durations.clear()
            durations.extend(newest)
        self._enough.clear()


class _Losses:
    """What degrees would lose if the recorded rounds came again and again."""

    def __init__(self, collects: Sequence[float], trains: Sequence[float], collectors: int, highest: int) -> None:
        self.rounds = min(len(collects), len(trains))
        collects, trains = list(collects)[-self.rounds:], list(trains)[-self.rounds:]
        scale = _towards_balance(collects, trains, collectors)
        self._collects = [scale * seconds for seconds in collects] * 2
        self._trains = trains * 2
        self._collectors = collectors
        self._least = self._time(highest)

    def of(self, degree: int) -> float:
        return self._time(degree) / self._least - 1 if self._least > 0 else 0.0

    def smallest(self, lowest: int, highest: int) -> int:
        """The smallest degree that loses next to nothing; `highest` if all lose more. More slots never take longer."""
        while lowest < highest:
            middle = (lowest + highest) // 2
            if self.of(middle) <= LOWER_LOSS:
                highest = middle
            else:
                lowest = middle + 1
        return lowest

    def _time(self, degree: int) -> float:
        """Of the second time: the first one begins with all slots free, which they are only once."""
        slots = min(degree, self.rounds)
        times = finish_times(self._collects, self._trains, self._collectors, slots)
        return times[-1] - times[self.rounds - 1]


def finish_times(collects: Sequence[float], trains: Sequence[float], collectors: int, degree: int) -> List[float]:
    """When rounds of these durations are trained, one after the other, with so many collectors and slots."""
    degree = min(degree, len(collects))
    running = sorted(collects[:min(collectors, degree)])
    arrivals, finishes = [0.0] * collectors, [0.0] * degree
    last = 0.0
    for begun, train in enumerate(trains, len(running)):
        arrived = running[0]
        arrivals.append(arrived)
        last = (arrived if arrived > last else last) + train
        finishes.append(last)
        if begun < len(collects):
            # Collectors get free as batches arrive, slots as they are trained.
            free, slot = arrivals[begun], finishes[begun]
            heapq.heapreplace(running, (free if free > slot else slot) + collects[begun])
        else:
            heapq.heappop(running)
    return finishes[degree:]


def _mean(values: Sequence[float]) -> Tuple[float, float]:
    """Their mean, and the square of its relative standard error."""
    mean = sum(values) / len(values)
    return mean, sum((value - mean) ** 2 for value in values) / (len(values) * mean) ** 2 if mean > 0 else 0.0


def _towards_balance(collects: Sequence[float], trains: Sequence[float], collectors: int) -> float:
    """The factor for collects that brings both roles as near to each other as chance allows."""
    (collect, collect_error), (train, train_error) = _mean(collects), _mean(trains)
    if min(collect, train) <= 0:
        return 1.0
    ratio = math.log(collect / collectors / train)
    allowed = min(abs(ratio), STANDARD_ERRORS * math.sqrt(collect_error + train_error))
    return math.exp(-math.copysign(allowed, ratio))


def _changed(durations: Sequence[float]) -> bool:
    """Whether the newest rounds differ from those before them by more than chance explains."""
    values = list(durations)
    if len(values) < NEW_ROUNDS + FEWEST_ROUNDS:
        return False
    (before, before_error), (new, new_error) = _mean(values[:-NEW_ROUNDS]), _mean(values[-NEW_ROUNDS:])
    if min(before, new) <= 0:
        return before != new
    chance = (STANDARD_ERRORS + 1) * math.sqrt(before_error + new_error)
    return abs(math.log(new / before)) > LEAST_CHANGE + chance
