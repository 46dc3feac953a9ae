"""What the loops need of a collector, a learner and an evaluator, and what they tell in return."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Protocol

from .activity import Activity
from .segments import Collected
from .weights import WeightSnapshot

KeepGoing = Callable[[], bool]
"""Asked between small steps of work; once it answers False, raise Stopped (or return, where said so)."""


class Collector(Protocol):
    """Called from one collector thread only."""

    def collect(self, snapshot: WeightSnapshot, keep_going: KeepGoing) -> Collected:
        """Collect one batch, all of it with the weights of `snapshot`. Raises Stopped if told not to keep going."""


@dataclass(frozen=True)
class RoundResult:
    updates: int
    sufficient: bool
    """False if the buffer holds too little to train on yet; the limits of the run are then not looked at."""


class Learner(Protocol):
    """Called from the learner's thread only, but for the two counts, which any thread may read."""

    @property
    def train_iter(self) -> int: ...

    @property
    def env_step(self) -> int:
        """Environment steps behind the data admitted so far."""

    def admit(self, collected: Collected) -> None:
        """Take a batch into the buffer; it owes its updates from now on."""

    def train_round(self, keep_going: KeepGoing) -> RoundResult:
        """Make the updates that are owed. Returns early, with the rest still owed, if told not to keep going."""

    def train_ahead(self, keep_going: KeepGoing) -> RoundResult:
        """Make as many updates as the last round did, on the data at hand, as payment in advance."""

    def snapshot(self, with_state: bool) -> WeightSnapshot:
        """A copy of the weights; `with_state` adds what a checkpoint needs."""


@dataclass(frozen=True)
class Evaluation:
    policy_version: int
    env_step: int
    reward_mean: float
    is_best: bool
    stop: bool
    """The evaluator's stop value is reached."""


class Evaluator(Protocol):
    """`due` is called from the learner's thread, `evaluate` from one thread at a time."""

    def due(self, train_iter: int) -> bool:
        """Whether an evaluation falls due now. Asking counts as taking: the next one is due an interval later."""

    def evaluate(self, snapshot: WeightSnapshot, keep_going: KeepGoing) -> Evaluation:
        """Play the episodes with `snapshot`, and save it if it is the best so far."""


@dataclass(frozen=True)
class RoundRecord:
    """One trained round, as observers see it."""

    round: int
    train_iter: int
    env_step: int
    updates: int
    policy_version: int
    """Of the learner, after the round."""
    staleness: int
    sample_age: float
    lag: int
    queue_size: int
    off_policy_degree: int
    activity: Activity


class Observer(Protocol):
    """Told what happens, from the thread in which it happens."""

    def on_round(self, record: RoundRecord) -> None: ...

    def on_evaluation(self, evaluation: Evaluation) -> None: ...
