import pytest
from fakes import TIMEOUT, start

from lzero_async.core.stop import RunLimits, StopSignal


def signalled(*calls):
    stop = StopSignal()
    for name, *arguments in calls:
        getattr(stop, name)(*arguments)
    return stop


@pytest.mark.parametrize('calls, requested, keep_going, reason', [
    ([], False, True, None),
    ([('request', 'a')], True, True, 'a'),
    ([('request', 'a'), ('request', 'b')], True, True, 'a'),
    ([('abort', 'a')], True, False, 'a'),
    ([('request', 'a'), ('abort', 'b')], True, False, 'a'),
    ([('abort', 'a'), ('request', 'b')], True, False, 'a'),
    ([('interrupt',)], True, False, 'interrupt'),
    ([('interrupt',), ('abort', 'a')], True, False, 'interrupt'),
    # owed rounds are left, so the interrupt is what ended the run
    ([('request', 'a'), ('interrupt',)], True, False, 'interrupt'),
])
def test_stop_signal(calls, requested, keep_going, reason):
    stop = signalled(*calls)
    assert (stop.requested, stop.keep_going(), stop.reason) == (requested, keep_going, reason)


def test_interrupt_takes_no_lock():
    stop = StopSignal()
    with stop._lock:  # as when a signal arrives inside request()
        stop.interrupt()
        assert stop.requested
        assert not stop.keep_going()


@pytest.mark.parametrize('call', ['request', 'abort'])
def test_a_wait_ends_when_a_stop_is_asked_for(call):
    stop = StopSignal()
    waiting = start(lambda: stop.wait(1000 * TIMEOUT))
    getattr(stop, call)('a')
    waiting.result(TIMEOUT)
    stop.wait(1000 * TIMEOUT)  # and is over at once from then on


def test_a_wait_ends_without_a_stop():
    stop = StopSignal()
    start(lambda: stop.wait(0.01)).result(TIMEOUT)
    assert not stop.requested


@pytest.mark.parametrize('env_step, train_iter, reached', [
    (0, 0, None),
    (99, 49, None),
    (100, 0, 'max_env_step'),
    (101, 0, 'max_env_step'),
    (0, 50, 'max_train_iter'),
    (100, 50, 'max_env_step'),
])
def test_limits(env_step, train_iter, reached):
    assert RunLimits(max_env_step=100, max_train_iter=50).reached(env_step, train_iter) == reached
