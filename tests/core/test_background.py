"""Work in a thread of its own, in order."""
import concurrent.futures
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fakes import TIMEOUT, Broken, Gate, at_once, our_threads, start

from lzero_async.core import background as background_module
from lzero_async.core.background import Background
from lzero_async.core.errors import Stopped

# A close that hangs does so in the main thread, where only this ends it.
pytestmark = pytest.mark.timeout(60)

NAME = 'lzero-async-background'
TimedOut = concurrent.futures.TimeoutError


def failing(text):
    def work():
        raise Broken(text)
    return work


def result_of(value):
    return lambda: value


def done(future):
    """Wait for the end of a piece of work, whichever it is, without taking part in what Background waits for."""
    assert concurrent.futures.wait([future], TIMEOUT).done


@pytest.fixture
def background():
    background = Background(NAME)
    yield background
    background.close(wait=True)


@pytest.fixture
def busy(background, gate):
    """A background whose thread is stopped inside a piece of work until the gate is opened."""
    background.submit(gate)
    gate.await_arrival()
    return background


# -------------------------------------------------------------------- order


def test_work_is_done_in_another_thread_of_that_name(background):
    name, ident = background.submit(
        lambda: (threading.current_thread().name, threading.get_ident())
    ).result(TIMEOUT)
    assert name.startswith(NAME)
    assert ident != threading.get_ident()


def test_no_thread_before_the_first_piece_of_work(background):
    assert our_threads() == []
    background.submit(result_of(1)).result(TIMEOUT)
    assert len(our_threads()) == 1


def test_work_is_done_in_the_order_in_which_it_was_asked_for(busy, gate):
    events = []
    for number in range(20):
        busy.submit(lambda number=number: events.append(number))
    assert events == []
    gate.open()
    busy.wait(TIMEOUT)
    assert events == list(range(20))


def test_one_piece_at_a_time_in_one_thread(background):
    idents = set()
    at_work = threading.Lock()

    def work():
        assert at_work.acquire(blocking=False), 'another piece of work is under way'
        idents.add(threading.get_ident())
        at_work.release()

    asking = [start(lambda: [background.submit(work) for _ in range(20)]) for _ in range(4)]
    futures = [future for asked in asking for future in asked.result(TIMEOUT)]
    background.wait(TIMEOUT)
    assert [future.exception(TIMEOUT) for future in futures] == [None] * 80
    assert len(idents) == 1


def test_submit_returns_while_the_work_waits(busy):
    future = busy.submit(result_of(1))
    assert not future.done()


# -------------------------------------------------------------------- waiting


def test_waiting_for_nothing(background):
    assert background.wait(TIMEOUT) is None


def test_wait_returns_the_last_result(busy, gate):
    for value in (1, 2, 3):
        busy.submit(result_of(value))
    gate.open()
    assert busy.wait(TIMEOUT) == 3


def test_a_result_is_given_to_one_wait(background):
    background.submit(result_of(1))
    assert background.wait(TIMEOUT) == 1
    assert background.wait(TIMEOUT) is None


def test_a_wait_that_takes_too_long_raises_and_can_be_repeated(background, gate):
    background.submit(lambda: (gate(), 'late')[1])
    gate.await_arrival()
    for _ in range(2):
        with pytest.raises(TimedOut):
            background.wait(0)
    gate.open()
    assert background.wait(TIMEOUT) == 'late'


def test_the_timeout_is_for_all_pieces_together(monkeypatch, background):
    timeouts = []

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    clock = Clock()

    class Waited(concurrent.futures.Future):
        def result(self, timeout=None):
            timeouts.append(timeout)
            clock.now += 4.0
            return super().result(TIMEOUT)

    monkeypatch.setattr(background_module, 'time', clock)
    for value in range(4):
        future = Waited()
        future.set_result(value)
        background._futures.append(future)
    assert background.wait(10.0) == 3
    assert timeouts == [10.0, 6.0, 2.0, 0.0]  # 4 s go by in each; never less than none


def test_without_a_timeout_it_waits_for_the_end(background, gate):
    background.submit(lambda: (gate(), 'late')[1])
    waiting = start(background.wait)
    gate.await_arrival()
    gate.open()
    assert waiting.result(TIMEOUT) == 'late'


# -------------------------------------------------------------------- failures


@pytest.mark.parametrize('error', [Broken, KeyboardInterrupt, SystemExit])
def test_wait_raises_what_the_work_raised(background, error):
    def work():
        raise error('in the background')

    background.submit(work)
    with pytest.raises(error, match='in the background'):
        background.wait(TIMEOUT)


def test_a_failure_is_raised_once(background):
    background.submit(failing('once'))
    with pytest.raises(Broken):
        background.wait(TIMEOUT)
    assert background.wait(TIMEOUT) is None


def test_failures_are_raised_one_per_wait_the_first_first(busy, gate):
    for work in (failing('one'), result_of(2), failing('three'), result_of(4)):
        busy.submit(work)
    gate.open()
    for text in ('one', 'three'):
        with pytest.raises(Broken, match=text):
            busy.wait(TIMEOUT)
    assert busy.wait(TIMEOUT) == 4


def test_work_goes_on_after_a_failure(background):
    background.submit(failing('first'))
    assert background.submit(result_of(2)).result(TIMEOUT) == 2


def test_a_failure_is_kept_through_later_work_until_it_is_waited_for(background):
    done(background.submit(failing('long ago')))
    for value in range(5):
        done(background.submit(result_of(value)))
    with pytest.raises(Broken, match='long ago'):
        background.wait(TIMEOUT)


def test_what_ended_well_is_not_kept(background):
    for value in range(50):
        done(background.submit(result_of(value)))
    assert len(background._futures) == 1  # the last


def test_a_failure_that_its_own_future_has_raised_is_still_waited_for(background):
    future = background.submit(failing('twice'))
    with pytest.raises(Broken):
        future.result(TIMEOUT)
    with pytest.raises(Broken):
        background.wait(TIMEOUT)


def test_work_that_was_cancelled_is_passed_over(busy, gate):
    events = []
    assert busy.submit(lambda: events.append('never')).cancel()
    busy.submit(result_of('kept'))
    assert busy.submit(lambda: events.append('never')).cancel()
    gate.open()
    assert busy.wait(TIMEOUT) == 'kept'
    assert events == []
    assert not busy.in_progress


# -------------------------------------------------------------------- in progress


def test_nothing_is_in_progress_before_and_after(background, gate):
    assert not background.in_progress
    background.submit(gate)
    assert background.in_progress
    gate.open()
    background.wait(TIMEOUT)
    assert not background.in_progress


def test_work_that_waits_for_its_turn_is_in_progress(busy, gate):
    second = Gate()
    busy.submit(second)
    gate.open()
    second.await_arrival()
    assert busy.in_progress
    second.open()


def test_a_failure_that_nobody_waited_for_is_not_in_progress(background):
    done(background.submit(failing('over')))
    assert not background.in_progress


# -------------------------------------------------------------------- close


def test_a_closed_background_takes_no_work(background):
    background.close(wait=True)
    with pytest.raises(Stopped):
        background.submit(pytest.fail)


@pytest.mark.parametrize('wait', [True, False])
def test_closing_without_work_and_twice(background, wait):
    background.close(wait)
    background.close(wait)
    assert our_threads() == []


def test_close_waits_for_what_is_running_and_what_was_asked_for(monkeypatch, background, gate):
    waits = []

    class OpensTheGate(ThreadPoolExecutor):
        def shutdown(self, wait=True):
            waits.append(wait)
            gate.open()
            super().shutdown(wait)

    monkeypatch.setattr(background_module, 'ThreadPoolExecutor', OpensTheGate)
    running = background.submit(gate)
    asked_for = background.submit(result_of('last'))
    gate.await_arrival()
    background.close(wait=True)
    assert running.done()
    assert asked_for.result(0) == 'last'
    assert our_threads() == []
    assert waits == [True]


def test_close_without_waiting_returns_while_work_is_running(busy, gate):
    asked_for = busy.submit(result_of('last'))
    busy.close(wait=False)
    with pytest.raises(Stopped):
        busy.submit(pytest.fail)
    assert busy.in_progress
    gate.open()
    assert asked_for.result(TIMEOUT) == 'last'


def test_what_was_asked_for_before_the_close_can_be_waited_for_after_it(busy, gate):
    busy.submit(failing('before the close'))
    busy.close(wait=False)
    gate.open()
    with pytest.raises(Broken, match='before the close'):
        busy.wait(TIMEOUT)


# -------------------------------------------------------------------- threads


def test_many_threads_ask_and_wait_and_nothing_is_lost(restless, background):
    finished = []

    def ask_and_wait(number):
        for turn in range(20):
            background.submit(lambda: finished.append((number, turn)))  # noqa: B023  waited for below
            background.wait(TIMEOUT)

    at_once(ask_and_wait, threads=8)
    background.wait(TIMEOUT)
    assert sorted(finished) == [(number, turn) for number in range(8) for turn in range(20)]
    assert not background.in_progress
