"""Who waits at a gate waits in line: nobody starves while others come back again and again."""
import collections
import threading
from types import SimpleNamespace

import pytest
from fakes import (
    TIMEOUT,
    Broken,
    FakeClock,
    FakeCollector,
    Gate,
    WatchedCoordinator,
    WatchedLines,
    WatchedTurn,
    at_once,
    await_event,
    nothing,
    start,
    watch,
)
from loops import listening, make_loops

from lzero_async.core import waiting_line
from lzero_async.core.coordinator import AsyncTrainingCoordinator
from lzero_async.core.errors import GateTimeout, Stopped


class LinesOf(WatchedLines):
    """The thread `first` does `waking()` when it is woken, before it looks whether it may go."""

    def __init__(self, coordinator, waking=nothing):
        super().__init__(coordinator)
        self.woken = collections.Counter()
        self.asked = threading.Event()  # by the thread `second`
        coordinator._lines['collect']._new_turn = lambda: _Turn(self, waking)


class _Turn(WatchedTurn):
    def __init__(self, lines, waking):
        super().__init__(lines._lock, lines._waiting)
        self._lines = lines
        self._waking = waking

    def wait(self, timeout=None):
        name = threading.current_thread().name
        if name == 'second':
            self._lines.asked.set()
        woken = super().wait(timeout)
        self._lines.woken[name] += 1
        if name == 'first':
            self.release()
            try:
                self._waking()
            finally:
                self.acquire()
        return woken


@pytest.fixture
def let_time_pass(monkeypatch):
    """No time passes in the lines until `let_time_pass(coordinator, seconds)`."""
    clock = FakeClock()
    monkeypatch.setattr(waiting_line, 'time', SimpleNamespace(monotonic=clock))

    def let_pass(coordinator, seconds):
        with coordinator._lock:
            clock.advance(seconds)
            for line in coordinator._lines.values():
                line.wake_all()

    return let_pass


def full(degree):
    """A coordinator at whose gate every collector waits."""
    coordinator = AsyncTrainingCoordinator(degree)
    for _ in range(degree):
        coordinator.run_collect(nothing)
    return coordinator


def queue_up(coordinator, lines, names, order, **timeouts):
    """Let threads of these names ask to collect one after the other, and wait until all stand in line."""
    waiting = {}
    for name in names:
        waiting[name] = start(
            lambda name=name: coordinator.run_collect(lambda: order.append(name), timeouts.get(name)), name
        )
        lines.await_blocked(name)
    return waiting


# -------------------------------------------------------------------- the order of asking


@pytest.mark.parametrize('degree, collectors', [(1, 2), (1, 6), (2, 5), (3, 7)])
def test_each_has_its_turn_in_the_order_of_asking(degree, collectors):
    coordinator, order = full(degree), []
    names = [f'collector-{index}' for index in range(collectors)]
    waiting = queue_up(coordinator, watch(coordinator), names, order)
    for name in names:
        coordinator.run_train(nothing)
        waiting[name].result(TIMEOUT)
    assert order == names


def test_who_comes_when_a_slot_is_free_stands_behind_who_waits_for_it():
    coordinator, order, slow = full(1), [], Gate()
    lines = LinesOf(coordinator, waking=slow)
    waiting = queue_up(coordinator, lines, ['first'], order)
    coordinator.run_train(nothing)  # the slot is free, and `first` about to wake

    def collect():
        order.append('second')
        lines.asked.set()

    second = start(lambda: coordinator.run_collect(collect), 'second')
    await_event(lines.asked)
    slow.open()
    waiting['first'].result(TIMEOUT)
    coordinator.run_train(nothing)
    second.result(TIMEOUT)
    assert order == ['first', 'second']


def test_two_slots_that_are_free_at_once_let_two_through():
    coordinator, work = full(2), Gate()
    lines = watch(coordinator)
    first = start(lambda: coordinator.run_collect(work), 'first')
    lines.await_blocked('first')
    second = start(lambda: coordinator.run_collect(lambda: 'second'), 'second')
    lines.await_blocked('second')
    coordinator.reset_counters()
    try:
        assert second.result(TIMEOUT) == 'second'  # though `first` is still at work
    finally:
        work.open()
        first.result(TIMEOUT)


def test_only_who_may_go_is_woken():
    coordinator, order = full(1), []
    lines = LinesOf(coordinator)
    names = [f'collector-{index}' for index in range(6)]
    waiting = queue_up(coordinator, lines, names, order)
    for name in names[:3]:
        coordinator.run_train(nothing)
        waiting[name].result(TIMEOUT)
    coordinator.close()
    for name in names[3:]:
        assert isinstance(waiting[name].exception(TIMEOUT), Stopped)
    # Who comes to be the first looks once whether it may go already.
    assert all(1 <= lines.woken[name] <= 4 for name in names[:3])
    assert [lines.woken[name] for name in names[4:]] == [1, 1]  # by the end


class Recorded(collections.deque):
    """A line that remembers who came and who left, in their order."""

    def __init__(self):
        super().__init__()
        self.came = []
        self.left = []

    def append(self, turn):
        self.came.append(threading.current_thread())
        super().append(turn)

    def remove(self, turn):
        self.left.append(threading.current_thread())
        super().remove(turn)


@pytest.mark.parametrize('degree, collectors', [(1, 4), (2, 6), (5, 6)])
def test_however_they_crowd_nobody_is_overtaken(restless, degree, collectors):
    coordinator = AsyncTrainingCoordinator(degree, max_train_ahead=0)
    line = coordinator._lines['collect']._waiting = Recorded()

    def role(number):
        if number == collectors:
            for _ in range(10 * collectors):
                coordinator.run_train(nothing)
            return
        for _ in range(10):
            coordinator.run_collect(nothing)

    at_once(role, threads=collectors + 1)
    assert line.left == line.came
    assert len(line.came) == 10 * collectors
    statistics = coordinator.get_statistics()
    assert (statistics['collect_count'], statistics['train_count']) == (10 * collectors, 10 * collectors)
    assert statistics['max_lag'] <= degree


# -------------------------------------------------------------------- who leaves


@pytest.mark.parametrize('late', ['first', 'second', 'third'])
def test_who_waits_too_long_leaves_the_line_and_the_others_go_in_their_order(let_time_pass, late):
    coordinator, order = full(1), []
    names = ['first', 'second', 'third']
    waiting = queue_up(coordinator, watch(coordinator), names, order, **{late: 1000})
    let_time_pass(coordinator, 1001)
    assert isinstance(waiting[late].exception(TIMEOUT), GateTimeout)
    assert order == []
    names.remove(late)
    for name in names:
        coordinator.run_train(nothing)
        waiting[name].result(TIMEOUT)
    assert order == names


def test_time_that_has_not_passed_keeps_nobody_from_waiting(let_time_pass):
    coordinator, order = full(1), []
    lines = watch(coordinator)
    waiting = queue_up(coordinator, lines, ['first'], order, first=1000)
    let_time_pass(coordinator, 999)
    lines.await_blocked('first')
    coordinator.run_train(nothing)
    waiting['first'].result(TIMEOUT)
    assert order == ['first']


def test_who_is_interrupted_leaves_the_line_and_the_next_goes():
    coordinator, order, slow = full(1), [], Gate()

    def interrupted():
        slow()
        raise Broken('while it waited')

    lines = LinesOf(coordinator, waking=interrupted)
    waiting = queue_up(coordinator, lines, ['first', 'second'], order)
    coordinator.run_train(nothing)  # wakes `first` alone, which will not go
    slow.open()
    assert isinstance(waiting['first'].exception(TIMEOUT), Broken)
    waiting['second'].result(TIMEOUT)
    assert order == ['second']


def test_a_stop_ends_the_line():
    coordinator, order = full(1), []
    waiting = queue_up(coordinator, watch(coordinator), ['first', 'second', 'third'], order)
    coordinator.request_stop()
    for future in waiting.values():
        assert isinstance(future.exception(TIMEOUT), Stopped)
    assert order == []
    assert coordinator.run_train(lambda: 'trained') == 'trained'


def test_a_collect_that_fails_lets_the_next_through_and_then_the_one_after():
    coordinator, order, work = AsyncTrainingCoordinator(1), [], Gate()
    gate = watch(coordinator)

    def fail():
        work()
        raise Broken

    failing = start(lambda: coordinator.run_collect(fail))
    work.await_arrival()
    waiting = queue_up(coordinator, gate, ['first', 'second'], order)
    work.open()
    assert isinstance(failing.exception(TIMEOUT), Broken)
    waiting['first'].result(TIMEOUT)
    coordinator.run_train(nothing)
    waiting['second'].result(TIMEOUT)
    assert order == ['first', 'second']


def test_collectors_in_line_do_not_keep_the_learner_waiting():
    coordinator, order = full(1), []
    waiting = queue_up(coordinator, watch(coordinator), ['first', 'second'], order)
    assert coordinator.run_train(lambda: 'trained', timeout=0) == 'trained'
    waiting['first'].result(TIMEOUT)
    coordinator.close()
    assert isinstance(waiting['second'].exception(TIMEOUT), Stopped)


# -------------------------------------------------------------------- who is overdue, and stays


def test_who_is_overdue_tells_it_each_time_and_keeps_its_place(let_time_pass):
    coordinator, order, told = full(1), [], []
    lines = watch(coordinator)
    first = start(lambda: coordinator.run_collect(lambda: order.append('first'), 1000, told.append), 'first')
    lines.await_blocked('first')
    waiting = queue_up(coordinator, lines, ['second'], order)
    for seconds, times in ((999, 0), (2, 1), (998, 1), (3, 2)):
        let_time_pass(coordinator, seconds)
        lines.await_blocked('first')
        assert len(told) == times
    assert all(isinstance(waited, GateTimeout) for waited in told)
    assert str(told[0]) == (
        'collect waited 1000 s for training: collect_count=1, train_count=0, collects in flight=0, '
        'off_policy_degree=1, max_train_ahead=None'
    )
    coordinator.run_train(nothing)
    first.result(TIMEOUT)
    coordinator.run_train(nothing)
    waiting['second'].result(TIMEOUT)
    assert order == ['first', 'second']


def test_who_is_told_may_ask_the_coordinator_and_misses_nothing_meanwhile(let_time_pass):
    coordinator, telling = full(1), Gate()
    lines = watch(coordinator)
    seen = []

    def overdue(_):
        seen.append(coordinator.get_statistics()['train_count'])
        telling()

    first = start(lambda: coordinator.run_collect(lambda: 'collected', 1000, overdue), 'first')
    lines.await_blocked('first')
    let_time_pass(coordinator, 1001)
    telling.await_arrival()
    coordinator.run_train(nothing)  # while it waits for nothing
    telling.open()
    assert first.result(TIMEOUT) == 'collected'
    assert seen == [0]


def test_who_fails_to_tell_leaves_the_line(let_time_pass):
    coordinator, order = full(1), []
    lines = watch(coordinator)

    def overdue(_):
        raise Broken('nobody to tell')

    first = start(lambda: coordinator.run_collect(nothing, 1000, overdue), 'first')
    lines.await_blocked('first')
    waiting = queue_up(coordinator, lines, ['second'], order)
    let_time_pass(coordinator, 1001)
    assert isinstance(first.exception(TIMEOUT), Broken)
    coordinator.run_train(nothing)
    waiting['second'].result(TIMEOUT)
    assert order == ['second']


def test_who_is_overdue_hears_of_a_stop(let_time_pass):
    coordinator, told = full(1), []
    lines = watch(coordinator)
    first = start(lambda: coordinator.run_collect(nothing, 1000, told.append), 'first')
    lines.await_blocked('first')
    let_time_pass(coordinator, 1001)
    lines.await_blocked('first')
    coordinator.request_stop()
    assert isinstance(first.exception(TIMEOUT), Stopped)
    assert len(told) == 1


# -------------------------------------------------------------------- in a loop


def test_a_collector_that_says_whom_it_waits_for_keeps_its_place(let_time_pass):
    order, entered = [], threading.Event()
    coordinator = WatchedCoordinator(1)
    lines = watch(coordinator)
    loops = make_loops(degree=1, coordinator=coordinator, collectors=[FakeCollector()], generation_timeout=1000)
    loops.collect()

    def enter(name):
        order.append(name)
        entered.set()

    loops.collector.work = lambda *_: enter('first')
    first = start(loops.collect, 'first')
    lines.await_blocked('first')
    second = start(lambda: coordinator.run_collect(lambda: enter('second')), 'second')
    lines.await_blocked('second')
    with listening() as ear:
        let_time_pass(coordinator, 1001)  # for `first`, which waits with a limit
        ear.await_message('collector-0: collect waited')
    lines.await_blocked('first')
    loops.train()
    try:
        await_event(entered)
        assert order[0] == 'first'
    finally:
        loops.channels.leave()
        for future in (first, second):
            future.exception(TIMEOUT)
