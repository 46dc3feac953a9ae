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
from dataclasses import dataclass, field
from typing import Callable, List, NamedTuple, Optional, Tuple

from lzero_async.core.autotune import DegreeController
from lzero_async.core.strain import TrainingSignals

SPARE = 400
"""Collects beyond the last trained round whose durations may be asked for: as many as the highest degree, at least."""
FIXED_DEGREES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 31, 390)

Duration = Callable[[int, random.Random], float]
Signals = Callable[['Round'], TrainingSignals]


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

    def __init__(self, degree):
        self.degree = degree

    def collected(self, seconds):
        pass

    def trained(self, seconds, collectors, signals):
        return None


def simulate(
    workload: Workload,
    degree,
    rounds: int,
    seed: int = 0,
    collectors: int = 1,
    signals: Optional[Signals] = None,
) -> Run:
    """Run until `rounds` rounds are trained. `degree` is a number that stays, or a DegreeController."""
    controller = degree if isinstance(degree, DegreeController) else _Fixed(degree)
    collects, trains = workload.durations(seed, rounds)
    run = Run(changes=[Change(0, controller.degree, 'start')])
    clock, limit, order = 0.0, controller.degree, itertools.count()
    started = collected = trained = in_flight = most_in_flight = 0
    collecting_time = training_time = 0.0
    arrived: List[Tuple[int, int]] = []
    batch: Optional[Round] = None
    events: List[tuple] = []
    while trained < rounds:
        while in_flight < collectors and collected + in_flight - trained < limit:
            heapq.heappush(events, (clock + collects[started], next(order), clock, (limit, trained)))
            started += 1
            in_flight += 1
            most_in_flight = max(most_in_flight, in_flight)
        run.most_outstanding = max(run.most_outstanding, collected + in_flight - trained)
        if batch is None and arrived:
            pulled_degree, pulled_at = arrived.pop(0)
            batch = Round(trained, pulled_degree, trained - pulled_at)
            heapq.heappush(events, (clock + trains[trained], next(order), clock, None))
        clock, _, begun, pull = heapq.heappop(events)
        if pull is not None:
            in_flight -= 1
            collected += 1
            arrived.append(pull)
            collecting_time += clock - begun
            controller.collected(clock - begun)
            continue
        training_time += clock - begun
        trained += 1
        run.finishes.append(clock)
        run.rounds.append(batch)
        change = controller.trained(clock - begun, most_in_flight, signals(batch) if signals else None)
        batch = None
        if change is not None:
            limit = change.degree
            run.changes.append(Change(trained, change.degree, change.reason))
    collecting_time += sum(clock - begun for _, _, begun, _ in events)
    run.collectors_idle = collectors * clock - collecting_time
    run.learner_idle = clock - training_time
    return run


# -------------------------------------------------------------------- the best that a fixed degree does


@functools.lru_cache(maxsize=None)
def fixed(workload: Workload, degree: int, rounds: int, seed: int, collectors: int) -> Run:
    return simulate(workload, degree, rounds, seed, collectors)


def best_fixed(workload: Workload, start: int, first: int, last: int, rounds: int, seed: int, collectors: int) -> float:
    """The least time from round `first` to round `last` that any fixed degree from 1 to `start` takes."""
    degrees = {degree for degree in FIXED_DEGREES if degree < start} | {start}
    return min(fixed(workload, degree, rounds, seed, collectors).elapsed(first, last) for degree in degrees)
