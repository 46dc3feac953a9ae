"""WeightTarget: retries, time-outs, and targets that hang."""
import contextlib
import logging
import threading

import pytest
from fakes import TIMEOUT, FakeCollector, Gate, await_event, make_run, start

from lzero_async.core.delivery import SyncRules, WeightTarget
from lzero_async.core.weights import WeightSnapshot

# Long enough for what is to happen, short enough for what never will.
LONG, SHORT = TIMEOUT, 0.02


def snapshot(version, rounds=0):
    return WeightSnapshot(version, 0, {'v': version}, rounds)


class Broken(Exception):
    pass


class Dying(BaseException):
    pass


class Receiver:
    """Its loads, counted from 1, go as `work(call)` says: it returns, raises or waits."""

    def __init__(self, work=lambda call: None):
        self.work = work
        self.begun = []
        self.loaded = []

    def load(self, snapshot):
        self.begun.append(snapshot.policy_version)
        self.work(len(self.begun))
        self.loaded.append(snapshot.policy_version)


class Closing(threading.Event):
    """Knows who waits for it. `skip`: nobody does, though all are told that the time has passed."""

    def __init__(self, skip=True):
        super().__init__()
        self.delays = []
        self.awaited = threading.Event()
        self._skip = skip

    def wait(self, timeout=None):
        self.delays.append(timeout)
        self.awaited.set()
        return self.is_set() if self._skip else super().wait(timeout)


def target_of(receiver, retries=0, timeout=LONG, delay=0.0, closing=None):
    rules = SyncRules(retries, timeout, delay)
    return WeightTarget('role', receiver, Receiver.load, rules, closing or Closing())


def patient(target):
    """The same target, from here on with time enough."""
    target._rules = SyncRules(0, LONG, 0.0)
    return target


def impatient(target, retries=0):
    """The same target, from here on with no time to lose."""
    target._rules = SyncRules(retries, SHORT, 0.0)
    return target


def failing(times, error=Broken):
    def work(call):
        if call <= times:
            raise error(f'call {call}')
    return work


def close(target, closing):
    closing.set()
    target.release()


def join_attempts():
    """Wait until no attempt is under way, whoever has given it up."""
    for thread in threading.enumerate():
        if thread.name.startswith('lzero-async-sync'):
            thread.join(TIMEOUT)


@pytest.fixture
def gate():
    """What hangs here is let go at the end at the latest."""
    gate = Gate()
    yield gate
    gate.open()
    join_attempts()


def hanging(gate, at=1):
    return lambda call: gate() if call == at else None


def messages(caplog, level):
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@contextlib.contextmanager
def heard_when(text, event):
    """Sets the event when the log says so."""

    class Listener(logging.Handler):
        def emit(self, record):
            if text in record.getMessage():
                event.set()

    logger, listener = logging.getLogger('lzero_async.core.delivery'), Listener()
    logger.addHandler(listener)
    try:
        yield
    finally:
        logger.removeHandler(listener)


# -------------------------------------------------------------------- nothing goes wrong


def test_what_arrived_is_held():
    receiver = Receiver()
    target = target_of(receiver)
    assert target.held is None
    assert not target.has(1)
    first = snapshot(1)
    assert target.deliver(first) is True
    assert target.held is first
    assert target.has(1)
    assert receiver.loaded == [1]


def test_a_version_that_is_there_is_not_loaded_again():
    receiver = Receiver()
    target = target_of(receiver)
    target.deliver(snapshot(1, rounds=1))
    later = snapshot(1, rounds=2)
    assert target.deliver(later) is True
    assert target.held is later
    assert receiver.loaded == [1]


def test_shared_weights_are_not_loaded():
    receiver = Receiver()
    target = target_of(receiver)
    shared = WeightSnapshot(4, 0, None)
    assert target.deliver(shared) is True
    assert target.held is shared
    assert receiver.begun == []


def test_a_slow_load_is_waited_for(gate):
    receiver = Receiver(hanging(gate))
    target = target_of(receiver)
    delivering = start(lambda: target.deliver(snapshot(1)))
    gate.await_arrival()
    assert not delivering.done()
    assert target.held is None
    gate.open()
    assert delivering.result(TIMEOUT) is True
    assert target.has(1)


# -------------------------------------------------------------------- retries


@pytest.mark.parametrize('retries, failures, arrives, attempts', [
    (0, 0, True, 1),
    (0, 1, False, 1),
    (1, 1, True, 2),
    (1, 2, False, 2),
    (3, 2, True, 3),
    (3, 3, True, 4),
    (3, 4, False, 4),
    (3, 99, False, 4),
])
def test_each_failure_takes_one_attempt(retries, failures, arrives, attempts):
    receiver = Receiver(failing(failures))
    target = target_of(receiver, retries)
    assert target.deliver(snapshot(1)) is arrives
    assert receiver.begun == [1] * attempts
    assert target.has(1) is arrives


@pytest.mark.parametrize('error', [Broken, OSError, SystemExit, KeyboardInterrupt, GeneratorExit, Dying])
def test_whatever_it_raises_is_a_failed_attempt(error):
    receiver = Receiver(failing(1, error))
    target = target_of(receiver, retries=1)
    assert target.deliver(snapshot(1)) is True
    assert receiver.begun == [1, 1]


@pytest.mark.parametrize('error', [Broken, SystemExit, Dying])
def test_the_last_good_version_is_kept(error):
    receiver = Receiver()
    target, good = target_of(receiver, retries=2), snapshot(1)
    target.deliver(good)
    receiver.work = failing(99, error)
    assert target.deliver(snapshot(2)) is False
    assert target.held is good
    receiver.work = lambda call: None
    assert target.deliver(snapshot(3)) is True
    assert receiver.loaded == [1, 3]


@pytest.mark.parametrize('failures, delays', [(0, []), (1, [2.5]), (3, [2.5, 2.5, 2.5]), (9, [2.5, 2.5, 2.5])])
def test_there_is_a_delay_between_two_attempts(failures, delays):
    closing = Closing()
    target_of(Receiver(failing(failures)), retries=3, delay=2.5, closing=closing).deliver(snapshot(1))
    assert closing.delays == delays


def test_each_failure_is_logged_and_so_is_giving_up(caplog):
    target = target_of(Receiver(failing(99)), retries=1)
    target.deliver(snapshot(7))
    assert messages(caplog, logging.WARNING) == [
        'Parameter sync: version 7 to role failed, attempt 1 of 2: Broken: call 1',
        'Parameter sync: version 7 to role failed, attempt 2 of 2: Broken: call 2',
    ]
    assert messages(caplog, logging.ERROR) == [
        'Parameter sync: version 7 never reached role, which keeps what it began with'
    ]


def test_the_log_says_what_is_kept(caplog):
    receiver = Receiver()
    target = target_of(receiver)
    target.deliver(snapshot(0))
    receiver.work = failing(99)
    target.deliver(snapshot(7))
    assert messages(caplog, logging.ERROR)[0].endswith('version 7 never reached role, which keeps version 0')


def test_an_arrival_is_logged_with_its_round(caplog):
    caplog.set_level(logging.INFO)
    target_of(Receiver()).deliver(snapshot(7, rounds=3))
    assert messages(caplog, logging.INFO)[0].startswith('Parameter sync: version 7 (round 3) to role in ')


@pytest.mark.xfail(strict=True, reason='the target counts as busy for ever')
def test_an_attempt_whose_thread_cannot_start_is_a_failed_one(monkeypatch):
    real_start, refusals = threading.Thread.start, [RuntimeError("can't start new thread")]

    def refuse_once(thread):
        if thread.name.startswith('lzero-async-sync') and refusals:
            raise refusals.pop()
        real_start(thread)

    monkeypatch.setattr(threading.Thread, 'start', refuse_once)
    target = target_of(Receiver(), timeout=0.5)
    with contextlib.suppress(RuntimeError):
        assert target.deliver(snapshot(1)) is False
    assert target.deliver(snapshot(1)) is True


class Awaited(threading.Condition):
    """Tells when somebody waits on it."""

    def __init__(self):
        super().__init__(threading.Lock())
        self.awaited = threading.Event()

    def wait(self, timeout=None):
        self.awaited.set()
        return super().wait(timeout)


TOO_LONG = pytest.mark.xfail(strict=True, raises=OverflowError, reason='no lock waits for so long')


@pytest.mark.parametrize('timeout', [1e9, pytest.param(1e10, marks=TOO_LONG), pytest.param(1e300, marks=TOO_LONG)])
def test_there_may_be_all_the_time_in_the_world(timeout):
    target = target_of(Receiver(lambda call: await_event(target._changed.awaited)), timeout=timeout)
    target._changed = Awaited()
    try:
        assert target.deliver(snapshot(1)) is True
    finally:
        join_attempts()


# -------------------------------------------------------------------- targets that hang


@pytest.mark.parametrize('retries', [0, 1, 3])
def test_nobody_waits_for_a_target_that_hangs(gate, caplog, retries):
    receiver = Receiver(hanging(gate))
    target = target_of(receiver, retries, SHORT)
    assert target.deliver(snapshot(1)) is False  # in this thread, and the gate is not open
    assert target.held is None
    told = messages(caplog, logging.WARNING)
    assert 'SyncTimeout: role did not answer within 0.02 s' in told[0]
    assert all('SyncTimeout: role is still busy with an earlier attempt' in message for message in told[1:])
    assert len(told) == 1 + retries


def test_while_it_hangs_nothing_else_is_loaded(gate):
    receiver = Receiver(hanging(gate, at=2))
    target, good = target_of(receiver), snapshot(1)
    target.deliver(good)
    assert impatient(target, retries=1).deliver(snapshot(2)) is False
    gate.await_arrival()
    assert target.deliver(snapshot(2)) is False
    assert target.deliver(snapshot(3)) is False
    assert receiver.begun == [1, 2]
    assert target.held is good


def test_what_arrives_late_is_held(gate):
    receiver = Receiver(hanging(gate))
    target, late = target_of(receiver, timeout=SHORT), snapshot(1)
    target.deliver(late)
    gate.open()
    join_attempts()
    assert target.held is late
    assert target.deliver(snapshot(1)) is True
    assert receiver.begun == [1]


def test_after_a_late_arrival_newer_versions_are_loaded(gate):
    receiver = Receiver(hanging(gate))
    target = target_of(receiver, timeout=SHORT)
    target.deliver(snapshot(1))
    gate.open()
    join_attempts()
    assert patient(target).deliver(snapshot(2)) is True
    assert receiver.loaded == [1, 2]


@pytest.mark.parametrize('error', [Broken, SystemExit])
def test_what_fails_late_is_not_held_and_the_next_attempt_is_free(gate, error):
    def hang_and_fail(call):
        if call == 1:
            gate()
            raise error

    receiver = Receiver(hang_and_fail)
    target = target_of(receiver, timeout=SHORT)
    target.deliver(snapshot(1))
    gate.open()
    join_attempts()
    assert target.held is None
    assert patient(target).deliver(snapshot(1)) is True
    assert receiver.begun == [1, 1]


def test_a_retry_finds_the_target_free_once_the_attempt_before_has_ended(gate):
    heard = threading.Event()
    receiver = Receiver(hanging(gate))
    target = target_of(receiver, retries=10 ** 6, timeout=SHORT)
    with heard_when('still busy', heard):
        delivering = start(lambda: target.deliver(snapshot(1)))
        await_event(heard)
    assert not delivering.done()
    gate.open()
    assert delivering.result(TIMEOUT) is True
    assert target.has(1)


@pytest.mark.xfail(strict=True, reason='whether it is there is asked before the first attempt only')
def test_a_retry_does_not_load_again_what_has_arrived_late(gate):
    heard = threading.Event()
    receiver = Receiver(hanging(gate))
    target = target_of(receiver, retries=10 ** 6, timeout=SHORT)
    with heard_when('still busy', heard):
        delivering = start(lambda: target.deliver(snapshot(1)))
        await_event(heard)
    gate.open()
    assert delivering.result(TIMEOUT) is True
    assert receiver.begun == [1]


@pytest.mark.xfail(strict=True, reason='asking and noting are two steps')
def test_a_late_arrival_is_not_overwritten_by_an_offer_of_the_version_before(gate):
    receiver = Receiver(hanging(gate, at=2))
    target = target_of(receiver)
    target.deliver(snapshot(1))
    impatient(target).deliver(snapshot(2))
    asked = target.has

    def arrive_meanwhile(version):
        answer = asked(version)
        gate.open()
        join_attempts()
        return answer

    target.has = arrive_meanwhile
    target.deliver(snapshot(1, rounds=1))
    assert receiver.loaded == [1, 2]
    assert target.held.policy_version == 2


@pytest.mark.xfail(strict=True, reason='an older version than the one held is loaded')
def test_a_target_never_goes_back():
    receiver = Receiver()
    target, newer = target_of(receiver), snapshot(2)
    target.deliver(newer)
    with contextlib.suppress(Exception):  # whatever it says to this
        target.deliver(snapshot(1))
    assert target.held is newer
    assert receiver.loaded == [2]


# -------------------------------------------------------------------- several at once


class WatchedLock:
    """Tells when somebody has to wait for it."""

    def __init__(self):
        self._lock = threading.Lock()
        self.awaited = threading.Event()

    def __enter__(self):
        if not self._lock.acquire(blocking=False):
            self.awaited.set()
            assert self._lock.acquire(timeout=TIMEOUT)

    def __exit__(self, *_):
        self._lock.release()


@pytest.mark.parametrize('second, loaded', [(1, [1]), (2, [1, 2])])
def test_deliveries_take_turns(gate, second, loaded):
    receiver = Receiver(hanging(gate))
    target = target_of(receiver)
    target._delivering = WatchedLock()
    deliveries = [start(lambda: target.deliver(snapshot(1)))]
    gate.await_arrival()
    deliveries.append(start(lambda: target.deliver(snapshot(second))))
    await_event(target._delivering.awaited)
    assert receiver.begun == [1]
    gate.open()
    assert [delivery.result(TIMEOUT) for delivery in deliveries] == [True, True]
    assert receiver.loaded == loaded


# -------------------------------------------------------------------- reading


def test_who_reads_is_told_the_version_that_is_there():
    target = target_of(Receiver())
    with target.reading() as held:
        assert held is None
    first = snapshot(1)
    target.deliver(first)
    with target.reading() as held:
        assert held is first


def test_nothing_is_loaded_while_somebody_reads():
    receiver = Receiver()
    target, first, second = target_of(receiver), snapshot(1), snapshot(2)
    target.deliver(first)
    with target.reading() as held:
        assert impatient(target).deliver(second) is False
        assert receiver.begun == [1]
        assert held is target.held is first
    join_attempts()
    assert target.held is second  # it waited for the reader, and came late


def test_nobody_reads_while_something_is_loaded(gate):
    receiver = Receiver(hanging(gate))
    target, first = target_of(receiver), snapshot(1)
    delivering = start(lambda: target.deliver(first))
    gate.await_arrival()

    def read():
        with target.reading() as held:
            return held, list(receiver.loaded)

    target._in_use, in_use = WatchedLock(), target._in_use
    target._in_use._lock = in_use  # the one that the load holds
    reading = start(read)
    await_event(target._in_use.awaited)
    gate.open()
    assert reading.result(TIMEOUT) == (first, [1])
    assert delivering.result(TIMEOUT) is True


def test_a_reader_that_fails_leaves():
    target = target_of(Receiver())
    with pytest.raises(Broken), target.reading():
        raise Broken
    assert target.deliver(snapshot(1)) is True


# -------------------------------------------------------------------- the end


def test_closing_wakes_who_waits_between_two_attempts():
    closing, receiver = Closing(skip=False), Receiver(failing(99))
    target = target_of(receiver, retries=5, delay=10 ** 6, closing=closing)
    delivering = start(lambda: target.deliver(snapshot(1)))
    await_event(closing.awaited)
    close(target, closing)
    assert delivering.result(TIMEOUT) is False
    assert receiver.begun == [1]


def test_closing_wakes_who_waits_for_a_target_that_hangs(gate, caplog):
    closing, receiver = Closing(), Receiver(hanging(gate))
    target = target_of(receiver, retries=5, timeout=10 ** 6, closing=closing)
    delivering = start(lambda: target.deliver(snapshot(1)))
    gate.await_arrival()
    close(target, closing)
    assert delivering.result(TIMEOUT) is False
    assert receiver.begun == [1]
    assert messages(caplog, logging.WARNING) == messages(caplog, logging.ERROR) == []  # nothing is wrong


def test_closing_wakes_who_waits_for_an_earlier_attempt(gate):
    closing, receiver = Closing(), Receiver(hanging(gate))
    target = target_of(receiver, timeout=SHORT, closing=closing)
    target.deliver(snapshot(1))
    gate.await_arrival()
    target._rules = SyncRules(5, 10 ** 6, 0.0)
    delivering = start(lambda: target.deliver(snapshot(2)))
    close(target, closing)
    assert delivering.result(TIMEOUT) is False
    assert receiver.begun == [1]


@pytest.mark.xfail(strict=True, reason='the first attempt does not ask whether all is over')
def test_after_closing_nothing_begins():
    closing, receiver = Closing(), Receiver()
    target = target_of(receiver, closing=closing)
    close(target, closing)
    with contextlib.suppress(Exception):  # whatever it says to this
        target.deliver(snapshot(1))
    join_attempts()
    assert receiver.begun == []


# -------------------------------------------------------------------- in a run


class LateCollector(FakeCollector):
    """Its second version hangs, and arrives in the middle of a collect if nothing holds it off."""

    def __init__(self):
        super().__init__()
        self.gate = Gate()
        self.collecting, self.arrived = threading.Event(), threading.Event()
        self.version = None
        self.played_with = []

    def load_weights(self, weights, policy_version):
        if len(self.snapshots) == 1:
            self.collecting.clear()
            self.gate()
            self.arrived.set()
        self.version = policy_version

    def collect(self, snapshot, keep_going):
        self.collecting.set()
        versions = {snapshot.policy_version, self.version}
        if self.snapshots:
            self.arrived.wait(0.2)
            versions.add(self.version)
        self.played_with.append(versions)
        return super().collect(snapshot, keep_going)


@pytest.mark.xfail(strict=True, reason='a collect does not hold off a load that was given up')
def test_a_collect_keeps_its_weights_to_the_end_though_newer_ones_arrive_late():
    collector = LateCollector()
    run = make_run(1, collectors=[collector], max_env_step=30, sync_timeout=0.2, max_sync_retries=0)

    def let_go():
        collector.gate.await_arrival()
        collector.collecting.wait(0.5)
        collector.gate.open()

    letting_go = start(let_go)
    run.trainer.run()
    letting_go.result(TIMEOUT)
    join_attempts()
    assert all(len(versions) == 1 for versions in collector.played_with), collector.played_with
