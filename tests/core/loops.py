"""Loops whose turns the test itself takes, and an ear for what the package logs."""
import contextlib
import logging
import threading
from types import SimpleNamespace

from fakes import TIMEOUT, FakeClock, FakeCollector, FakeLearner, FakeObserver, WatchedCoordinator, fast

from lzero_async.core.channels import Channels
from lzero_async.core.collector_loop import CollectorLoop
from lzero_async.core.learner_loop import LearnerLoop
from lzero_async.core.param_sync import ParameterSynchronizer
from lzero_async.core.segments import Collected, Piece
from lzero_async.core.stop import RunLimits
from lzero_async.core.weights import WeightSnapshot


def make_loops(
    degree=2, ahead=0, collectors=None, learner=None, max_env_step=1000, max_train_iter=1000, coordinator=None,
    **settings
):
    """The parts of a run by name, on a clock of the test; `collect` and `train` take one turn each."""
    clock = FakeClock(100.0)
    settings = fast(off_policy_degree=degree, **settings)
    made = SimpleNamespace(
        clock=clock,
        coordinator=coordinator or WatchedCoordinator(degree, max_train_ahead=ahead, clock=clock),
        weights=ParameterSynchronizer(settings),
        collectors=[FakeCollector()] if collectors is None else collectors,
        learner=learner or FakeLearner(),
        observer=FakeObserver(),
    )
    made.channels = Channels.open(made.coordinator, made.weights, settings, clock)
    made.queue, made.stop, made.outstanding = made.channels.queue, made.channels.stop, made.channels.outstanding
    made.weights.publish(made.learner.snapshot())
    made.collector_loops = [
        CollectorLoop(f'collector-{index}', collector, made.channels)
        for index, collector in enumerate(made.collectors)
    ]
    made.collector = made.collectors[0]
    made.collect = lambda index=0: made.collector_loops[index].step()
    made.train = LearnerLoop(
        made.learner, made.channels, RunLimits(max_env_step, max_train_iter), made.observer,
        lambda: ', '.join(loop.describe() for loop in made.collector_loops),
    ).step
    return made


class WildLearner(FakeLearner):
    """Its weights are not finite while `wild(train_iter)` says so."""

    def __init__(self, wild, **kwargs):
        super().__init__(**kwargs)
        self.wild = wild

    def snapshot(self):
        weights = {'w': float('nan') if self.wild(self.train_iter) else 1.0}
        return WeightSnapshot(self.train_iter, self.env_step, weights)


class DeafCollector(FakeCollector):
    """Takes no version for which `deaf(version)` says so."""

    def __init__(self, deaf, **kwargs):
        super().__init__(**kwargs)
        self.deaf = deaf
        self.attempts = []

    def load_weights(self, weights, policy_version):
        self.attempts.append(policy_version)
        if self.deaf(policy_version):
            raise ConnectionError(f'not version {policy_version}')
        super().load_weights(weights, policy_version)


class LateCollector(FakeCollector):
    """Hands over, besides its own batch, one sample of each version that `late(call)` lists."""

    def __init__(self, late, **kwargs):
        super().__init__(**kwargs)
        self.late = late

    def collect(self, snapshot, keep_going):
        collected = super().collect(snapshot, keep_going)
        late = tuple(Piece(version, 'late', 1) for version in self.late(len(self.snapshots)))
        return Collected((*late, *collected.pieces), collected.env_steps)


def counts(loops):
    statistics = loops.coordinator.get_statistics()
    return statistics['collect_count'], statistics['train_count']


def samples(loops, *names):
    numbers = loops.channels.samples.numbers()
    return tuple(numbers[name] for name in names)


def join_loads():
    """Wait for loads of weights that nobody else waits for any more."""
    for thread in threading.enumerate():
        if thread.name.startswith('lzero-async-sync'):
            thread.join(TIMEOUT)


class Ear(logging.Handler):
    def __init__(self):
        super().__init__()
        self._heard = threading.Condition(threading.RLock())
        self.messages = []

    def emit(self, record):
        with self._heard:
            self.messages.append(record.getMessage())
            self._heard.notify_all()

    def all_with(self, part):
        with self._heard:
            return [message for message in self.messages if part in message]

    def await_message(self, part, or_end_of=None):
        """Return once something was logged that contains `part`, also if that was long ago, or the Future is done."""
        def heard():
            ended = or_end_of is not None and or_end_of.done()
            return ended or any(part in message for message in self.messages)

        if or_end_of is not None:
            or_end_of.add_done_callback(self._wake)
        with self._heard:
            assert self._heard.wait_for(heard, TIMEOUT), f'nobody said {part!r}; heard: {self.messages}'

    def _wake(self, _):
        with self._heard:
            self._heard.notify_all()


@contextlib.contextmanager
def listening():
    ear, logger = Ear(), logging.getLogger('lzero_async')
    logger.addHandler(ear)
    try:
        yield ear
    finally:
        logger.removeHandler(ear)
