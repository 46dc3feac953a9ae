"""Fake roles, a fake clock, and meeting points for threads: what the tests of the schedule run on."""
import collections
import logging
import threading
from concurrent.futures import Future
from types import SimpleNamespace

from lzero_async.core.config import AsyncConfig
from lzero_async.core.coordinator import AsyncTrainingCoordinator
from lzero_async.core.errors import Stopped
from lzero_async.core.protocols import Evaluation, RoundResult
from lzero_async.core.segments import Collected
from lzero_async.core.stop import RunLimits
from lzero_async.core.trainer import AsyncTrainer
from lzero_async.core.weight_ops import PlainWeights
from lzero_async.core.weights import WeightSnapshot

TIMEOUT = 10
"""Seconds after which a wait counts as a failure. Nothing waits this long in a test that passes."""

ENDLESS = 10 ** 9


class FakeClock:
    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += seconds


class Broken(Exception):
    """What breaks in a test is this, and nothing that the package could mean to handle."""


class Dying(BaseException):
    """Broken, and not even an Exception."""


def logged(caplog, level=logging.ERROR):
    return [record.getMessage() for record in caplog.records if record.levelno == level]


# -------------------------------------------------------------------- threads


def start(fn, name='test-thread'):
    """Run `fn` in a daemon thread of that name. Its outcome is in the Future: ask with result(TIMEOUT)."""
    future = Future()

    def run():
        try:
            future.set_result(fn())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def at_once(work, threads):
    """Let `work(number)` of all threads begin together, and return what each returned."""
    gate = Gate()
    futures = [start(lambda number=number: (gate(), work(number))[1]) for number in range(threads)]
    gate.open()
    return [future.result(TIMEOUT) for future in futures]


def await_event(event):
    assert event.wait(TIMEOUT), 'nobody set the event'


def our_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith('lzero-async')]


def join_attempts():
    """Wait until no attempt to deliver weights is under way, whoever has given it up."""
    for thread in threading.enumerate():
        if thread.name.startswith('lzero-async-sync'):
            thread.join(TIMEOUT)
            assert not thread.is_alive(), 'an attempt does not end'


class Gate:
    """Work that passes here stops until the test opens it."""

    def __init__(self):
        self._arrived = threading.Event()
        self._open = threading.Event()

    def __call__(self, *_):
        self._arrived.set()
        await_event(self._open)

    def await_arrival(self):
        await_event(self._arrived)

    def open(self):
        self._open.set()


class WatchedLock:
    """Tells when somebody has to wait for it."""

    def __init__(self):
        self._lock = threading.Lock()
        self.awaited = threading.Event()

    def acquire(self, blocking=True, timeout=TIMEOUT):
        if self._lock.acquire(blocking=False):
            return True
        if not blocking:
            return False
        self.awaited.set()
        acquired = self._lock.acquire(timeout=timeout)
        assert acquired, 'nobody released the lock'
        return acquired

    def release(self):
        self._lock.release()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


class WatchedCondition(threading.Condition):
    """Knows which threads wait on it.

    A thread is marked under the lock, and leaves the lock by waiting: who then changes something surely wakes it.
    """

    def __init__(self):
        super().__init__(threading.Lock())
        self._waiting = collections.defaultdict(threading.Event)

    def wait(self, timeout=None):
        waiting = self._waiting[threading.current_thread().name]
        waiting.set()
        try:
            return super().wait(timeout)
        finally:
            waiting.clear()

    def notify(self, n=1):
        # Who is woken is not blocked, though it may take its time to run. If it must wait on, it says so again.
        for waiting in self._waiting.values():
            waiting.clear()
        super().notify(n)

    def await_blocked(self, name):
        """Return once the thread of that name is blocked here."""
        with self:
            waiting = self._waiting[name]
        await_event(waiting)


class WatchedLines:
    """Knows which threads wait in the lines of a coordinator."""

    def __init__(self, coordinator):
        self._lock = coordinator._lock
        self._waiting = collections.defaultdict(threading.Event)
        for line in coordinator._lines.values():
            line._new_turn = lambda: WatchedTurn(self._lock, self._waiting)

    def await_blocked(self, name):
        """Return once the thread of that name is blocked in one of the lines."""
        with self._lock:
            waiting = self._waiting[name]
        await_event(waiting)


class WatchedTurn(threading.Condition):
    """The turn of one thread, which is marked as long as it is blocked."""

    def __init__(self, lock, waiting):
        super().__init__(lock)
        self._marked = waiting[threading.current_thread().name]

    def wait(self, timeout=None):
        self._marked.set()
        try:
            return super().wait(timeout)
        finally:
            self._marked.clear()

    def notify(self, n=1):
        self._marked.clear()
        super().notify(n)


def watch(owner):
    """Replace what threads wait on in a coordinator or a queue, before any uses it, by what can be watched."""
    if hasattr(owner, '_lines'):
        return WatchedLines(owner)
    owner._changed = WatchedCondition()
    return owner._changed


class TimedCondition(WatchedCondition):
    """No time passes until `expire`: from then on whoever waits with a limit has waited for too long already."""

    def __init__(self):
        super().__init__()
        self._expired = False

    def expire(self):
        with self:
            self._expired = True
            self.notify_all()

    def stand_still(self):
        """From here on no time passes again."""
        with self:
            self._expired = False

    def wait_for(self, predicate, timeout=None):
        if timeout is None:
            return super().wait_for(predicate)
        while not predicate():
            if self._expired:
                return False
            assert self.wait(TIMEOUT), 'nothing changes, and no time passes'
        return True


def timed(target):
    """Take the time into our own hands for a target of weights, before any thread uses it."""
    target._changed = TimedCondition()
    return target._changed


# -------------------------------------------------------------------- roles


def nothing(*_):
    pass


class FakeCollector:
    """`work(call, keep_going)` is done inside each collect; calls count from 1."""

    def __init__(self, steps=10, work=nothing, log=nothing):
        self.steps = steps
        self.work = work
        self.log = log
        self.loaded = []
        self.snapshots = []

    def load_weights(self, weights, policy_version):
        self.loaded.append((policy_version, weights))

    def collect(self, snapshot, keep_going):
        self.snapshots.append(snapshot)
        call = len(self.snapshots)
        self.log('collect')
        self.work(call, keep_going)
        if not keep_going():
            raise Stopped('told not to keep going')
        return Collected.of(snapshot.policy_version, segments=call, transitions=self.steps, env_steps=self.steps)


class FakeLearner:
    """Makes `updates` per admitted batch. `work(update, keep_going)` is done inside each update, counted from 1."""

    def __init__(self, updates=2, work=nothing, log=nothing, sufficient=True):
        self.updates = updates
        self.work = work
        self.log = log
        self.sufficient = sufficient
        self.train_iter = 0
        self.env_step = 0
        self.admitted = []
        self.rounds = []
        self.aheads = []
        self._owed = 0

    def admit(self, batch):
        self.log('admit')
        self.admitted.append(batch)
        self.env_step += batch.transitions
        self._owed += self.updates

    def train_round(self, keep_going):
        self.log('train')
        made = self._train(self._owed, keep_going)
        self.rounds.append(made)
        return RoundResult(updates=made, sufficient=self.sufficient)

    def train_ahead(self, keep_going):
        self.log('train ahead')
        made = self._train(self.updates, keep_going)
        self.aheads.append(made)
        return RoundResult(updates=made, sufficient=self.sufficient)

    def snapshot(self):
        self.log('snapshot')
        return WeightSnapshot(self.train_iter, self.env_step, weights=f'weights-{self.train_iter}')

    def state(self):
        self.log('state')
        return f'state-{self.train_iter}'

    def _train(self, updates, keep_going):
        made = 0
        while made < updates and keep_going():
            self.work(self.train_iter + 1, keep_going)
            self.train_iter += 1
            made += 1
        self._owed -= made
        return made


class IdleLearner(FakeLearner):
    """Has `pieces` of idle work after each round, and before the first. `idle(piece)` is done in each, counted from 1.
    """

    def __init__(self, pieces=ENDLESS, idle=nothing, **kwargs):
        super().__init__(**kwargs)
        self.pieces = self._left = pieces
        self.idle = idle
        self.done = 0
        self.threads = set()

    def idle_work(self):
        self.threads.add(threading.current_thread().name)
        if self._left == 0:
            return False
        self._left -= 1
        self.done += 1
        self.idle(self.done)
        return True

    def idle_numbers(self):
        return {'pieces_done': self.done}

    def snapshot(self):
        self._left = self.pieces
        return super().snapshot()


class FakeEvaluator:
    """Due when `train_iter` is in `due_at`, or always. `work(call, keep_going)` is done inside each evaluation."""

    def __init__(self, due_at=(), always=False, stop_at=ENDLESS, work=nothing, log=nothing):
        self.due_at = due_at
        self.always = always
        self.stop_at = stop_at
        self.work = work
        self.log = log
        self.loaded = []
        self.snapshots = []

    def load_weights(self, weights, policy_version):
        self.loaded.append((policy_version, weights))

    def due(self, train_iter):
        self.log('due?')
        return self.always or train_iter in self.due_at

    def evaluate(self, snapshot, keep_going):
        self.log('evaluate')
        self.snapshots.append(snapshot)
        self.work(len(self.snapshots), keep_going)
        if not keep_going():
            raise Stopped('told not to keep going')
        version = snapshot.policy_version
        return Evaluation(version, snapshot.env_step, float(version), is_best=False, stop=version >= self.stop_at)


class FakeObserver:
    """`work(round)` is done when told of a round."""

    def __init__(self, work=nothing, log=nothing):
        self.work = work
        self.log = log
        self.rounds = []
        self.evaluations = []
        self.on_policy_rounds = []

    def on_round(self, record):
        self.log('round')
        self.rounds.append(record)
        self.work(record.round)

    def on_evaluation(self, evaluation):
        self.log('evaluation')
        self.evaluations.append(evaluation)

    def on_policy_round(self, record):
        self.log('on-policy round')
        self.on_policy_rounds.append(record)


# -------------------------------------------------------------------- weights


class Module:
    def __init__(self, weights=None):
        self.weights = weights

    def state_dict(self):
        return self.weights

    def load_state_dict(self, weights):
        self.weights = weights


def failing(times, error=Broken):
    """Work that fails so many times; calls count from 1."""
    def work(call):
        if call <= times:
            raise error(f'call {call}')
    return work


def hanging(gate, at=1, told=nothing):
    """Work that stops at the gate in its call `at`, once `told` has been called."""
    def work(call):
        if call == at:
            told()
            gate()
    return work


class Copying(PlainWeights):
    """Weights are under way until `arrive`; who settles them waits for that."""

    def __init__(self):
        self._arrived = threading.Event()
        self._settling = threading.Semaphore(0)

    def is_settled(self, weights):
        return self._arrived.is_set()

    def settle(self, weights):
        self._settling.release()
        await_event(self._arrived)

    def arrive(self):
        self._arrived.set()

    def depart(self):
        """What is published from here on is under way again."""
        self._arrived.clear()

    def await_readers(self, count=1):
        for _ in range(count):
            assert self._settling.acquire(timeout=TIMEOUT), 'nobody waits for the copy'


# -------------------------------------------------------------------- runs


class WatchedCoordinator(AsyncTrainingCoordinator):
    """Tells when its run comes to an end: `ending` is set by a wait for evaluations, or else by the closing."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.ending = threading.Event()

    def wait_for_eval(self, timeout=None):
        self.ending.set()
        return super().wait_for_eval(timeout)

    def close(self, wait=True):
        super().close(wait=False)
        self.ending.set()
        super().close(wait)


def fast(**settings):
    """Settings under which nothing waits for time to pass."""
    return AsyncConfig(**{'batch_generation_interval': 0, 'sync_retry_delay': 0, **settings})


def make_run(
    degree=0, async_eval=False, collectors=None, learner=None, evaluator=None, observer=None,
    max_env_step=ENDLESS, max_train_iter=ENDLESS, ahead=0, clock=None, role_context=None, synchronizer=None, **settings
):
    """A trainer of fakes, not started yet, with all its parts by name. `settings` are those of AsyncConfig."""
    run = SimpleNamespace(
        coordinator=WatchedCoordinator(
            degree, enable_async_eval=async_eval, max_train_ahead=ahead, **({'clock': clock} if clock else {})
        ),
        collectors=[FakeCollector()] if collectors is None else collectors,
        learner=learner or FakeLearner(),
        evaluator=evaluator or FakeEvaluator(),
        observer=observer or FakeObserver(),
    )
    run.trainer = AsyncTrainer(
        run.coordinator, run.collectors, run.learner, run.evaluator, run.observer,
        RunLimits(max_env_step, max_train_iter), settings=fast(off_policy_degree=degree, **settings),
        synchronizer=synchronizer, **({'role_context': role_context} if role_context else {})
    )
    return run
