"""Nobody moves: that is noticed, said once, and says who waits for what."""
import threading

import pytest
from fakes import FakeClock, our_threads

from lzero_async.core.watchdog import Watchdog, stacks
from lzero_async.core.whereabouts import Whereabouts


@pytest.fixture
def clock():
    return FakeClock(1000.0)


def make(clock, progress, told, lines=lambda: []):
    return Watchdog(60.0, progress, lines, told.append, clock)


def test_progress_puts_it_off(clock):
    moves, told = [0], []
    watchdog = make(clock, lambda: (moves[0],), told)
    for _ in range(10):
        watchdog.look()
        clock.advance(59)
        moves[0] += 1
    assert told == []


def test_a_stall_is_told_once_and_again_after_the_next_progress(clock):
    moves, told = [0], []
    watchdog = make(clock, lambda: (moves[0],), told)
    watchdog.look()
    clock.advance(59)
    watchdog.look()
    assert told == []
    clock.advance(1)
    watchdog.look()
    clock.advance(100)
    watchdog.look()
    assert len(told) == 1 and told[0].startswith('no role has made progress for 60 s (stall_timeout 60)\n')
    moves[0] += 1
    watchdog.look()
    clock.advance(60)
    watchdog.look()
    assert len(told) == 2


def test_the_report_names_every_role_and_where_every_thread_is(clock):
    whereabouts, told = Whereabouts(clock), []
    whereabouts.note('learner', 'waits for a batch')
    clock.advance(5)
    whereabouts.note('collector-0', 'collects with version 7')
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait, name='hanging-thread')
    thread.start()
    try:
        watchdog = make(clock, lambda: (whereabouts.moves,), told, whereabouts.lines)
        watchdog.look()
        clock.advance(60)
        watchdog.look()
    finally:
        leave.set()
        thread.join()
    lines = told[0].splitlines()
    assert lines[1:3] == ['collector-0: collects with version 7, for 60.0 s', 'learner: waits for a batch, for 65.0 s']
    assert 'thread hanging-thread:' in lines and any('threading.py' in line for line in lines)


def test_all_threads_have_a_stack():
    told = stacks()
    assert f'thread {threading.current_thread().name}:' in told and any('test_watchdog.py' in line for line in told)


def test_a_watchdog_that_watches_ends_with_its_context():
    told = threading.Event()
    with Watchdog(0.01, lambda: (0,), list, lambda report: told.set()):
        assert told.wait(60)
    assert our_threads() == []
