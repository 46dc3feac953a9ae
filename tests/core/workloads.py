"""Simulated runs in virtual time: collectors and a learner under the control law, on durations drawn from a seed.

Written from the law alone: it knows nothing of how the controller reckons. A collect may start when

    collected + in flight - trained < degree

with the degree of that moment, so that a lowered degree leaves what is in flight alone. The learner trains arrived
batches one at a time, first come first served.
"""
import functools
import heapq
import itertools
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Deque, List, NamedTuple, Optional, Tuple

SPARE = 400
"""Collects beyond the last trained round whose durations may be asked for: as many as the highest degree, at least."""
FIXED_DEGREES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 31, 390)

Duration = Callable[[int, random.Random], float]
Signals = Callable[['Round'], Any]


class Round(NamedTuple):
    """A trained round."""

    index: int
    degree: int
    """In force when its collect started."""
    staleness: int
    """Rounds trained from the start of its collect to the start of its training."""


class Change(NamedTuple):
    index: int
    """Rounds that were trained when the degree changed."""
    degree: int
    reason: str


# -------------------------------------------------------------------- durations


@dataclass(frozen=True)
class Workload:
    name: str
    collect: Duration
    train: Duration

    def durations(self, seed: int, rounds: int) -> Tuple[List[float], List[float]]:
        """Of collects in the order in which they start, and of trains. More rounds continue the same sequences."""
        collecting, training = random.Random(f'collect {seed}'), random.Random(f'train {seed}')
        return (
            [self.collect(index, collecting) for index in range(rounds + SPARE)],
            [self.train(index, training) for index in range(rounds)],
        )


def constant(seconds):
    return lambda index, rng: seconds


def uniform(mean, spread=0.5):
    return lambda index, rng: mean * rng.uniform(1 - spread, 1 + spread)


def lognormal(mean, sigma):
    """`mean` is kept: that of exp(sigma * gauss) is exp(sigma ** 2 / 2)."""
    return lambda index, rng: mean * rng.lognormvariate(-sigma ** 2 / 2, sigma)


def bursts(seconds, every=10, factor=10):
    return lambda index, rng: seconds * (factor if index % every == every - 1 else 1)


def drift(first, last, begin, end):
    """From `first` to `last` in geometric steps between two rounds; at once if they are the same."""

    def duration(index, rng):
        part = (index >= begin) if begin == end else min(max((index - begin) / (end - begin), 0), 1)
        return first * (last / first) ** part

    return duration


def noisy(duration, sigma):
    return lambda index, rng: duration(index, rng) * rng.lognormvariate(-sigma ** 2 / 2, sigma)


# -------------------------------------------------------------------- the simulation


@dataclass
class Run:
    """What happened. Finish times are those of trained rounds, in order."""

    finishes: List[float] = field(default_factory=list)
    rounds: List[Round] = field(default_factory=list)
    changes: List[Change] = field(default_factory=list)
    """The degrees that were in force: the first is the one at the start, at round 0."""
    most_outstanding: int = 0
    collectors_idle: float = 0.0
    """Summed over the collectors, until the last round was trained."""
    learner_idle: float = 0.0

    def elapsed(self, first: int, last: int) -> float:
        """From the end of round `first` (0: the beginning) to the end of round `last`, counted from 1."""
        return self.finishes[last - 1] - (self.finishes[first - 1] if first else 0.0)

    def degree_at(self, index: int) -> int:
        """The degree in force once `index` rounds were trained."""
        return [change.degree for change in self.changes if change.index <= index][-1]

    def changes_within(self, first: int, last: int) -> List[Change]:
        """Those after more than `first` and at most `last` rounds."""
        return [change for change in self.changes[1:] if first < change.index <= last]

    @property
    def strains(self) -> List[Change]:
        return [change for change in self.changes if change.reason.startswith('strain')]


class _Fixed:
    """A degree that stays, behind the members of a controller."""

    def __init__(self, degree: int) -> None:
        self.degree = degree

    def collected(self, seconds: float) -> None:
        pass

    def trained(self, seconds: float, collectors: int, signals: Any) -> None:
        return None


class _Simulation:
    def __init__(self, collects: List[float], trains: List[float], controller: Any, collectors: int, signals: Signals):
        self.run = Run(changes=[Change(0, controller.degree, 'start')])
        self.now = 0.0
        self.collects, self.trains = collects, trains
        self.controller = controller
        self.limit: int = controller.degree
        self.collectors = collectors
        self.signals = signals
        self.started = self.collected = self.trained = self.most_in_flight = 0
        self.busy_collecting = self.busy_training = 0.0
        self.arrived: Deque[Tuple[int, int]] = deque()
        self.in_training: Optional[Round] = None
        self.events: List[tuple] = []  # when it ends, a tie-break, when it began, and what a collect pulled
        self.order = itertools.count()

    def play(self, rounds: int) -> Run:
        while self.trained < rounds:
            self.start_collects()
            self.start_training()
            self.now, _, begun, pull = heapq.heappop(self.events)
            if pull is not None:
                self.end_collect(self.now - begun, pull)
            else:
                self.end_training(self.now - begun)
        collecting = sum(self.now - begun for _, _, begun, pull in self.events if pull is not None)
        self.run.collectors_idle = self.collectors * self.now - self.busy_collecting - collecting
        self.run.learner_idle = self.now - self.busy_training
        return self.run

    def start_collects(self) -> None:
        while self.started - self.collected < self.collectors and self.started - self.trained < self.limit:
            self.begin(self.collects[self.started], (self.limit, self.trained))
            self.started += 1
            self.most_in_flight = max(self.most_in_flight, self.started - self.collected)
            self.run.most_outstanding = max(self.run.most_outstanding, self.started - self.trained)

    def start_training(self) -> None:
        if self.in_training is None and self.arrived:
            degree, pulled = self.arrived.popleft()
            self.in_training = Round(self.trained, degree, self.trained - pulled)
            self.begin(self.trains[self.trained], None)

    def begin(self, seconds: float, pull: Optional[Tuple[int, int]]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.order), self.now, pull))

    def end_collect(self, seconds: float, pull: Tuple[int, int]) -> None:
        self.collected += 1
        self.busy_collecting += seconds
        self.arrived.append(pull)
        self.controller.collected(seconds)

    def end_training(self, seconds: float) -> None:
        self.trained += 1
        self.busy_training += seconds
        self.run.finishes.append(self.now)
        self.run.rounds.append(self.in_training)
        change = self.controller.trained(seconds, self.most_in_flight, self.signals(self.in_training))
        self.in_training = None
        if change is not None:
            self.limit = change.degree
            self.run.changes.append(Change(self.trained, change.degree, change.reason))


def simulate(
    workload: Workload,
    degree: Any,
    rounds: int,
    seed: int = 0,
    collectors: int = 1,
    signals: Signals = lambda trained: None,
) -> Run:
    """Run until `rounds` rounds are trained. `degree` is a number that stays, or a controller."""
    controller = _Fixed(degree) if isinstance(degree, int) else degree
    collects, trains = workload.durations(seed, rounds)
    return _Simulation(collects, trains, controller, collectors, signals).play(rounds)


# -------------------------------------------------------------------- the best that a fixed degree does


@functools.lru_cache(maxsize=None)
def fixed(workload: Workload, degree: int, rounds: int, seed: int, collectors: int) -> Run:
    return simulate(workload, degree, rounds, seed, collectors)


def best_fixed(workload: Workload, start: int, first: int, last: int, rounds: int, seed: int, collectors: int) -> float:
    """The least time from round `first` to round `last` that any fixed degree from 1 to `start` takes."""
    degrees = {degree for degree in FIXED_DEGREES if degree < start} | {start}
    return min(fixed(workload, degree, rounds, seed, collectors).elapsed(first, last) for degree in degrees)
