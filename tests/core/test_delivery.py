"""WeightTarget: retries, time-outs, and targets that hang."""
import contextlib
import logging
import threading

import pytest
from fakes import (
    TIMEOUT,
    Broken,
    Dying,
    FakeCollector,
    WatchedLock,
    await_event,
    failing,
    hanging,
    join_attempts,
    logged,
    make_run,
    nothing,
    start,
    timed,
    watch,
)

from lzero_async.core.delivery import SyncRules, WeightTarget
from lzero_async.core.errors import Stopped, WorkerLost
from lzero_async.core.weights import WeightSnapshot

ATTEMPT = 'lzero-async-sync-role'


def snapshot(version, rounds=0):
    return WeightSnapshot(version, 0, {'v': version}, rounds)


class Receiver:
    """Its loads, counted from 1, go as `work(call)` says: it returns, raises or waits."""

    def __init__(self, work=nothing):
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


def target_of(receiver, retries=0, timeout=TIMEOUT, delay=0.0, closing=None):
    rules = SyncRules(retries, timeout, delay)
    return WeightTarget('role', receiver, Receiver.load, rules, closing or Closing())


def hung(gate, at=1, retries=0, closing=None):
    """A receiver whose load `at` hangs at the gate, its target, and the time, which is up once it hangs there."""
    receiver = Receiver()
    target = target_of(receiver, retries, closing=closing)
    time = timed(target)
    receiver.work = hanging(gate, at, time.expire)
    return receiver, target, time


def close(target, closing):
    closing.set()
    target.release()


@contextlib.contextmanager
def when_logged(text, act):
    """Let whoever logs this text do that as well."""

    class Listener(logging.Handler):
        def emit(self, record):
            if text in record.getMessage():
                act()

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
    receiver.work = nothing
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
    assert logged(caplog, logging.WARNING) == [
        'Parameter sync: version 7 to role failed, attempt 1 of 2: Broken: call 1',
        'Parameter sync: version 7 to role failed, attempt 2 of 2: Broken: call 2',
    ]
    assert logged(caplog) == [
        'Parameter sync: version 7 never reached role, which keeps what it began with'
    ]


def test_the_log_says_what_is_kept(caplog):
    receiver = Receiver()
    target = target_of(receiver)
    target.deliver(snapshot(0))
    receiver.work = failing(99)
    target.deliver(snapshot(7))
    assert logged(caplog)[0].endswith('version 7 never reached role, which keeps version 0')


def test_an_arrival_is_logged_with_its_round(caplog):
    caplog.set_level(logging.INFO)
    target_of(Receiver()).deliver(snapshot(7, rounds=3))
    assert logged(caplog, logging.INFO)[0].startswith('Parameter sync: version 7 (round 3) to role in ')


@pytest.fixture
def no_thread_left(monkeypatch):
    """The system has no thread for the first attempt."""
    real_start, refusals = threading.Thread.start, [RuntimeError("can't start new thread")]

    def refuse_once(thread):
        if thread.name == ATTEMPT and refusals:
            raise refusals.pop()
        real_start(thread)

    monkeypatch.setattr(threading.Thread, 'start', refuse_once)


def test_an_attempt_whose_thread_cannot_start_is_a_failed_one(no_thread_left, caplog):
    receiver = Receiver()
    target = target_of(receiver)
    assert target.deliver(snapshot(1)) is False
    assert "attempt 1 of 1: RuntimeError: can't start new thread" in logged(caplog, logging.WARNING)[0]
    assert target.deliver(snapshot(1)) is True
    assert receiver.begun == [1]


def test_an_attempt_whose_thread_cannot_start_leaves_the_reader_alone(no_thread_left):
    receiver = Receiver()
    target = target_of(receiver)
    time = timed(target)
    with target.reading():
        assert target.deliver(snapshot(1)) is False
        delivering = start(lambda: target.deliver(snapshot(1)))
        if target._in_use:  # else it loads at once
            time.await_blocked(ATTEMPT)
        else:
            delivering.result(TIMEOUT)
        loaded = list(receiver.begun)
    assert delivering.result(TIMEOUT) is True
    assert loaded == []


@pytest.mark.parametrize('timeout', [1e9, threading.TIMEOUT_MAX, 1e300])
def test_there_may_be_all_the_time_in_the_world(timeout):
    deliverer = threading.current_thread().name
    target = target_of(Receiver(lambda call: target._changed.await_blocked(deliverer)), timeout=timeout)
    watch(target)
    try:
        assert target.deliver(snapshot(1)) is True
    finally:
        join_attempts()


@pytest.mark.parametrize('delay', [1e9, threading.TIMEOUT_MAX])  # no setting is longer
def test_so_may_the_delay_between_two_attempts(delay):
    closing = Closing(skip=False)
    target = target_of(Receiver(failing(1)), retries=1, delay=delay, closing=closing)
    delivering = start(lambda: target.deliver(snapshot(1)))
    await_event(closing.awaited)
    close(target, closing)
    assert delivering.result(TIMEOUT) is False


# -------------------------------------------------------------------- targets that hang


@pytest.mark.parametrize('retries', [0, 1, 3])
def test_nobody_waits_for_a_target_that_hangs(gate, caplog, retries):
    receiver, target, _ = hung(gate, retries=retries)
    assert target.deliver(snapshot(7)) is False  # in this thread, and the gate is not open
    assert target.held is None
    assert receiver.begun == [7]
    told = logged(caplog, logging.WARNING)
    assert f'SyncTimeout: role did not answer within {TIMEOUT} s' in told[0]
    assert all('SyncTimeout: role is still busy with version 7' in message for message in told[1:])
    assert len(told) == 1 + retries


def test_time_that_passes_is_enough(gate):
    # The one test on the real clock: whether the attempt has begun by then is open.
    target = target_of(Receiver(hanging(gate)), timeout=0.02)
    assert target.deliver(snapshot(1)) is False
    assert target.held is None


def test_while_it_hangs_nothing_else_is_loaded(gate):
    (receiver, target, _), good = hung(gate, at=2, retries=1), snapshot(1)
    target.deliver(good)
    assert target.deliver(snapshot(2)) is False
    assert target.deliver(snapshot(2)) is False
    assert target.deliver(snapshot(3)) is False
    assert receiver.begun == [1, 2]
    assert target.held is good


def test_what_arrives_late_is_held(gate):
    (receiver, target, _), late = hung(gate), snapshot(1)
    assert target.deliver(late) is False
    gate.open()
    join_attempts()
    assert target.held is late
    again = snapshot(1, rounds=1)
    assert target.offer(again) is None
    assert target.held is again
    assert receiver.begun == [1]


def test_after_a_late_arrival_newer_versions_are_loaded(gate):
    receiver, target, time = hung(gate)
    target.deliver(snapshot(1))
    gate.open()
    join_attempts()
    time.stand_still()
    assert target.deliver(snapshot(2)) is True
    assert receiver.loaded == [1, 2]


@pytest.mark.parametrize('error', [Broken, SystemExit])
def test_what_fails_late_is_not_held_and_the_next_attempt_is_free(gate, error):
    receiver, target, time = hung(gate)
    hang = receiver.work

    def hang_and_fail(call):
        hang(call)
        raise error

    receiver.work = hang_and_fail
    target.deliver(snapshot(1))
    gate.open()
    join_attempts()
    assert target.held is None
    receiver.work = nothing
    time.stand_still()
    assert target.deliver(snapshot(1)) is True
    assert receiver.begun == [1, 1]


@pytest.mark.parametrize('late_error, begun', [(None, [1]), (Broken, [1, 1])], ids=['arrives', 'fails'])
def test_a_retry_waits_for_the_attempt_before_and_does_not_load_again_what_has_arrived_late(gate, late_error, begun):
    receiver, target, time = hung(gate, retries=2)
    hang = receiver.work

    def hang_and_fail(call):
        hang(call)
        if call == 1 and late_error is not None:
            raise late_error

    def let_go():
        time.stand_still()
        gate.open()

    receiver.work = hang_and_fail
    with when_logged('still busy', let_go):  # at the second of three attempts
        assert target.deliver(snapshot(1)) is True
    assert target.has(1)
    assert receiver.begun == begun


class Asked:
    """A snapshot of version 1 that has `act` done while its version is asked for."""

    env_step, weights, rounds, learner_state = 0, {'v': 1}, 1, None

    def __init__(self, act):
        self._act = act

    @property
    def policy_version(self):
        self._act()
        return 1


def test_a_late_arrival_is_not_overwritten_by_an_offer_of_the_version_before(gate):
    receiver = Receiver()
    target, lock = target_of(receiver), WatchedLock()
    target._changed = threading.Condition(lock)
    target.deliver(snapshot(1))
    receiver.work = gate
    attempt = start(lambda: target.deliver(snapshot(2)))
    gate.await_arrival()
    target._delivering = threading.Lock()  # as if it had been given up
    lock.awaited.clear()

    def arrive_meanwhile():
        gate.open()
        await_event(lock.awaited)  # it has arrived, and cannot be noted between our question and our own note

    assert target.offer(Asked(arrive_meanwhile)) is None
    assert attempt.result(TIMEOUT) is True
    assert receiver.loaded == [1, 2]
    assert target.held.policy_version == 2


def test_a_late_arrival_is_not_held_in_place_of_a_newer_version_that_is_shared(gate):
    (_, target, _), shared = hung(gate), WeightSnapshot(2, 0, None)
    target.deliver(snapshot(1))
    assert target.deliver(shared) is True
    gate.open()
    join_attempts()
    assert target.held is shared


@pytest.mark.parametrize('older', [snapshot(1), snapshot(1, rounds=9), WeightSnapshot(1, 0, None)])
def test_a_target_never_goes_back(older):
    receiver = Receiver()
    target, newer = target_of(receiver), snapshot(2)
    target.deliver(newer)
    assert target.deliver(older) is True  # it has all of that, and more
    assert target.offer(older) is None
    assert target.held is newer
    assert receiver.loaded == [2]


def test_an_offer_tells_a_load_from_nothing_to_load():
    target = target_of(Receiver(failing(1)))
    answers = [target.offer(snapshot(version, rounds)) for version, rounds in ((1, 0), (1, 0), (1, 0), (1, 1), (2, 2))]
    assert answers == [False, True, None, None, True]


# -------------------------------------------------------------------- several at once


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
    time = timed(target)
    target.deliver(first)
    with target.reading() as held:
        delivering = start(lambda: target.deliver(second))
        time.await_blocked(ATTEMPT)
        assert receiver.begun == [1]
        assert held is target.held is first
    assert delivering.result(TIMEOUT) is True  # it waited for the reader
    assert target.held is second


@pytest.mark.parametrize('retries', [0, 2])
def test_what_was_given_up_while_somebody_reads_is_not_loaded_behind_the_back_of_all(retries):
    receiver = Receiver()
    target, first = target_of(receiver, retries), snapshot(1)
    time = timed(target)
    target.deliver(first)
    with target.reading():
        delivering = start(lambda: target.deliver(snapshot(2)))
        time.await_blocked(ATTEMPT)
        time.expire()
        assert delivering.result(TIMEOUT) is False
    join_attempts()
    assert target.held is first
    assert receiver.begun == [1]
    time.stand_still()
    assert target.deliver(snapshot(2)) is True
    assert receiver.loaded == [1, 2]


def test_a_retry_loads_once_the_reader_has_left():
    receiver = Receiver()
    target = target_of(receiver, retries=1)
    time = timed(target)
    with when_logged('did not answer', time.stand_still), target.reading():
        delivering = start(lambda: target.deliver(snapshot(1)), name='deliverer')
        time.await_blocked(ATTEMPT)
        time.expire()
        time.await_blocked('deliverer')  # again, for the attempt that it has given up
        assert receiver.begun == []
    assert delivering.result(TIMEOUT) is True
    assert receiver.loaded == [1]


def test_readers_take_turns():
    target = target_of(Receiver())
    changed = watch(target)

    def read():
        with target.reading() as held:
            return held

    with target.reading():
        second = start(read, name='second reader')
        changed.await_blocked('second reader')
        assert not second.done()
    assert second.result(TIMEOUT) is None


def test_nobody_reads_while_something_is_loaded(gate):
    receiver = Receiver(hanging(gate))
    target, first = target_of(receiver), snapshot(1)
    changed = watch(target)
    delivering = start(lambda: target.deliver(first))
    gate.await_arrival()

    def read():
        with target.reading() as held:
            return held, list(receiver.loaded)

    reading = start(read, name='reader')
    changed.await_blocked('reader')
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
    assert logged(caplog, logging.WARNING) == logged(caplog) == []  # nothing is wrong


def test_closing_wakes_who_waits_for_an_earlier_attempt(gate):
    closing = Closing()
    receiver, target, time = hung(gate, closing=closing)
    target.deliver(snapshot(1))
    time.stand_still()
    delivering = start(lambda: target.deliver(snapshot(2)), name='deliverer')
    time.await_blocked('deliverer')
    close(target, closing)
    assert delivering.result(TIMEOUT) is False
    assert receiver.begun == [1]


def test_closing_wakes_who_wants_to_read_what_hangs(gate):
    closing = Closing()
    _, target, time = hung(gate, closing=closing)
    target.deliver(snapshot(1))

    def read():
        with target.reading():
            pytest.fail('it reads what is being loaded')

    reading = start(read, name='reader')
    time.await_blocked('reader')
    close(target, closing)
    assert isinstance(reading.exception(TIMEOUT), Stopped)


def test_closing_wakes_an_attempt_that_waits_for_a_reader():
    closing, receiver = Closing(), Receiver()
    target = target_of(receiver, closing=closing)
    changed = watch(target)
    with target.reading():
        delivering = start(lambda: target.deliver(snapshot(1)))
        changed.await_blocked(ATTEMPT)
        close(target, closing)
        assert delivering.result(TIMEOUT) is False
        join_attempts()  # though the reader is still there
    assert receiver.begun == []


def test_after_closing_nothing_begins():
    closing, receiver = Closing(), Receiver()
    target = target_of(receiver, closing=closing)
    close(target, closing)
    assert target.deliver(snapshot(1)) is False
    join_attempts()
    assert receiver.begun == []


# -------------------------------------------------------------------- receivers that are gone


@pytest.mark.parametrize('call', ['deliver', 'offer'])
def test_with_a_receiver_that_is_gone_nothing_is_tried_again(call, caplog):
    closing = Closing()
    receiver = Receiver(failing(1, WorkerLost))
    target = target_of(receiver, retries=3, delay=2.5, closing=closing)
    with pytest.raises(WorkerLost, match='call 1'):
        getattr(target, call)(snapshot(1))
    assert (receiver.begun, closing.delays, target.held) == ([1], [], None)
    assert logged(caplog, logging.WARNING) == logged(caplog) == []  # who replaces it will say so
    assert target.deliver(snapshot(1)) is True


def test_a_receiver_that_is_gone_at_a_later_attempt_is_gone():
    receiver = Receiver(lambda call: (failing(1)(call), failing(2, WorkerLost)(call)))
    target = target_of(receiver, retries=3)
    with pytest.raises(WorkerLost, match='call 2'):
        target.deliver(snapshot(1))
    assert receiver.begun == [1, 1]


def test_a_receiver_that_is_gone_keeps_nobody_from_reading_and_delivering():
    receiver = Receiver()
    target, good = target_of(receiver), snapshot(1)
    target.deliver(good)
    receiver.work = failing(2, WorkerLost)
    with pytest.raises(WorkerLost):
        target.deliver(snapshot(2))
    with target.reading() as held:
        assert held is good
    receiver.work = nothing
    assert target.deliver(snapshot(2)) is True


def test_a_late_loss_of_an_attempt_that_was_given_up_is_not_that_of_the_next(gate):
    receiver, target, time = hung(gate)
    work = receiver.work
    receiver.work = lambda call: (work(call), failing(1, WorkerLost)(call))
    assert target.deliver(snapshot(1)) is False
    time.stand_still()
    gate.open()
    join_attempts()
    assert target.deliver(snapshot(2)) is True
    assert receiver.begun == [1, 2]


# -------------------------------------------------------------------- another receiver in its place


@pytest.mark.parametrize('version', [1, 2, 3])
def test_what_was_forgotten_is_loaded_again_and_may_be_older(version):
    receiver = Receiver()
    target = target_of(receiver)
    target.deliver(snapshot(2))
    target.forget()
    assert target.held is None
    assert not target.has(2)
    again = snapshot(version)
    assert target.deliver(again) is True
    assert target.held is again
    assert receiver.loaded == [2, version]


def test_forgetting_nothing():
    target = target_of(Receiver())
    target.forget()
    assert target.held is None
    with target.reading() as held:
        assert held is None


@pytest.mark.parametrize('late_error', [None, Broken, WorkerLost])
def test_what_arrives_late_at_the_old_receiver_does_not_count_for_the_new(gate, late_error):
    receiver, target, time = hung(gate, at=2)
    target.deliver(snapshot(1))
    hang = receiver.work

    def hang_and_fail(call):
        hang(call)
        if call == 2 and late_error is not None:
            raise late_error('late')

    receiver.work = hang_and_fail
    assert target.deliver(snapshot(2)) is False
    time.stand_still()
    forgetting = start(target.forget, name='forgetter')
    time.await_blocked('forgetter')  # while the old one still loads
    gate.open()
    forgetting.result(TIMEOUT)
    join_attempts()
    assert target.held is None
    assert target.deliver(snapshot(2)) is True
    assert receiver.begun == [1, 2, 2]


def test_forgetting_does_not_wait_for_what_hangs_when_all_is_closed(gate):
    closing = Closing()
    _, target, time = hung(gate, closing=closing)
    target.deliver(snapshot(1))
    time.stand_still()
    forgetting = start(target.forget, name='forgetter')
    time.await_blocked('forgetter')
    close(target, closing)
    forgetting.result(TIMEOUT)


# -------------------------------------------------------------------- in a run


class HangingCollector(FakeCollector):
    """Its second version hangs at the gate, and would arrive in the middle of a collect if nothing held that off."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate
        self.time = None
        self.version = None
        self.played_with = []

    def load_weights(self, weights, policy_version):
        super().load_weights(weights, policy_version)
        if len(self.loaded) == 2:
            self.time.expire()
            self.gate()
        self.version = policy_version

    def collect(self, snapshot, keep_going):
        before = self.version
        if self.loaded[-1][0] != before:  # what hangs arrives now
            self.gate.open()
            join_attempts()
        self.played_with.append({snapshot.policy_version, before, self.version})
        return super().collect(snapshot, keep_going)


def test_a_collect_waits_for_what_was_given_up_and_keeps_its_weights_to_the_end(gate):
    collector = HangingCollector(gate)
    run = make_run(2, collectors=[collector], max_env_step=60, max_sync_retries=0)
    collector.time = timed(run.trainer._collectors[0]._target)

    def let_go():
        gate.await_arrival()
        collector.time.await_blocked('lzero-async-collector-0')  # not for its own time, which is up
        collector.time.stand_still()
        gate.open()

    letting_go = start(let_go)
    run.trainer.run()
    letting_go.result(TIMEOUT)
    assert all(len(versions) == 1 for versions in collector.played_with), collector.played_with
    assert len(collector.played_with) == 6
