"""What the loops need of a collector, a learner and an evaluator, and what they tell in return."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional, Protocol, Tuple, runtime_checkable

from .activity import Activity
from .on_policy import OnPolicyRecord
from .segments import Collected, SegmentBatch
from .strain import TrainingSignals
from .weights import WeightSnapshot

KeepGoing = Callable[[], bool]
"""Asked between small steps of work; once it answers False, raise Stopped (or return, where said so)."""


class Collector(Protocol):
    """`collect` is called from one collector thread only, `load_weights` between two collects."""

    def load_weights(self, weights: Any, policy_version: int) -> None:
        """Work with these weights from now on, or raise and go on with the old ones."""

    def collect(self, snapshot: WeightSnapshot, keep_going: KeepGoing) -> Collected:
        """Collect one batch with the weights of `snapshot`, which are loaded. Raises Stopped if told not to go on."""


@runtime_checkable
class Replaceable(Protocol):
    """A collector or evaluator whose work is done elsewhere, by a worker that can be lost.

    Its other members raise WorkerLost when it is. All is called from the role's thread, between two pieces of work.
    """

    def await_ready(self, keep_going: KeepGoing) -> None:
        """Wait until the worker has started. Raises Stopped if told not to keep going."""

    def replace(self) -> None:
        """Put an end to the worker and start another one, which has no weights yet."""


@runtime_checkable
class Resumable(Protocol):
    """Can be asked where it stands, in plain values, and be made to go on from there before it starts."""

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Checkpoints(Protocol):
    """Writes down where a run stands, now and then."""

    def round_finished(self, run_state: Callable[[], Mapping[str, Any]]) -> None:
        """Called by the learner's thread between two rounds. `run_state` is all that is not the learner's own."""

    def numbers(self) -> Mapping[str, Any]:
        """For the statistics of the run. Any thread may ask."""


@dataclass(frozen=True)
class SampleAges:
    """How old the samples were that a round's updates drew from the buffer, at the time they were trained on."""

    samples: int
    staleness_mean: float
    staleness_max: int
    age_mean: float
    age_max: float


@dataclass(frozen=True)
class RoundResult:
    updates: int
    sufficient: bool
    """False if the buffer holds too little to train on yet; the limits of the run are then not looked at."""
    signals: TrainingSignals = field(default_factory=TrainingSignals)
    replayed: Optional[SampleAges] = None


class Learner(Protocol):
    """Called from the learner's thread only, but for the two counts, which any thread may read."""

    @property
    def train_iter(self) -> int: ...

    @property
    def env_step(self) -> int:
        """Environment steps behind the data admitted so far."""

    def admit(self, batch: SegmentBatch) -> None:
        """Take a batch into the buffer; it owes its updates from now on."""

    def train_round(self, keep_going: KeepGoing) -> RoundResult:
        """Make the updates that are owed. Returns early, with the rest still owed, if told not to keep going."""

    def train_ahead(self, keep_going: KeepGoing) -> RoundResult:
        """Make as many updates as the last round did, on the data at hand, as payment in advance."""

    def snapshot(self) -> WeightSnapshot:
        """A copy of the weights."""

    def state(self) -> Any:
        """A copy of all that a checkpoint of the learner as it stands needs."""


@runtime_checkable
class IdleWorker(Protocol):
    """A learner that has something to do while it waits for a batch."""

    def idle_work(self) -> bool:
        """Do a little of it, in the learner's thread between two rounds. False if there was nothing to do.

        A batch that arrives waits until it returns. There must be an end to it before the next round.
        """

    def idle_numbers(self) -> Mapping[str, Any]:
        """What came of it, for the statistics of the run. Any thread may ask."""


@dataclass(frozen=True)
class Evaluation:
    policy_version: int
    env_step: int
    reward_mean: float
    is_best: bool
    stop: bool
    """The evaluator's stop value is reached."""
    returns: Tuple[float, ...] = ()
    """Of each episode, where the evaluator knows them."""
    transcript: str = ''
    """One of its episodes in words, where the evaluator has some."""


class Evaluator(Protocol):
    """`due` is called from the learner's thread, `evaluate` from one thread at a time, `load_weights` between two."""

    def load_weights(self, weights: Any, policy_version: int) -> None:
        """Work with these weights from now on, or raise and go on with the old ones."""

    def due(self, train_iter: int) -> bool:
        """Whether an evaluation falls due now. Asking counts as taking: the next one is due an interval later."""

    def evaluate(self, snapshot: WeightSnapshot, keep_going: KeepGoing) -> Evaluation:
        """Play the episodes with `snapshot`, whose weights are loaded, and save it if it is the best so far."""


@dataclass(frozen=True)
class RoundRecord:
    """One trained round, as observers see it."""

    round: int
    train_iter: int
    env_step: int
    updates: int
    policy_version: int
    """The newest that is published after the round: the learner's own, unless that was not finite."""
    staleness: int
    """Of the batch that was trained."""
    sample_age: float
    lag: int
    queue_size: int
    off_policy_degree: int
    activity: Activity
    replayed: Optional[SampleAges] = None


class Observer(Protocol):
    """Told what happens, from the thread in which it happens."""

    def on_round(self, record: RoundRecord) -> None: ...

    def on_evaluation(self, evaluation: Evaluation) -> None: ...

    def on_policy_round(self, record: OnPolicyRecord) -> None: ...
