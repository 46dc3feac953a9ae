"""Evaluation through a coordinator, blocking and in the background."""
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

import pytest
from fakes import TIMEOUT, nothing, our_threads

from lzero_async.core.coordinator import AsyncTrainingCoordinator
from lzero_async.core.errors import Stopped


def fail():
    raise ValueError('broken')


@pytest.fixture
def coordinator():
    with AsyncTrainingCoordinator(1, enable_async_eval=True) as made:
        yield made


# -------------------------------------------------------------------- blocking


def test_blocking_evaluation_returns_the_result():
    coordinator = AsyncTrainingCoordinator()
    assert coordinator.run_eval(threading.current_thread) is threading.current_thread()
    assert coordinator.get_statistics()['eval_count'] == 1
    assert coordinator.wait_for_eval() is None
    assert not coordinator.eval_in_progress


def test_blocking_evaluation_raises_and_is_not_counted():
    coordinator = AsyncTrainingCoordinator()
    with pytest.raises(ValueError, match='broken'):
        coordinator.run_eval(fail)
    assert coordinator.get_statistics()['eval_count'] == 0


# -------------------------------------------------------------------- in the background


def test_background_evaluation_returns_a_future_at_once(coordinator, gate):
    future = coordinator.run_eval(lambda: gate() or 'result')
    gate.await_arrival()
    assert isinstance(future, Future)
    assert not future.done()
    assert coordinator.eval_in_progress
    coordinator.run_collect(nothing)  # the training loop goes on meanwhile
    coordinator.run_train(nothing)
    assert coordinator.get_statistics()['eval_count'] == 0
    gate.open()
    assert coordinator.wait_for_eval(TIMEOUT) == 'result'
    assert future.result(TIMEOUT) == 'result'
    assert not coordinator.eval_in_progress
    assert coordinator.get_statistics()['eval_count'] == 1


def test_background_evaluations_run_one_at_a_time_in_order(coordinator, gate):
    order = []

    def evaluate(index):
        order.append(f'begin {index}')
        gate()
        order.append(f'end {index}')
        return index

    for index in range(3):
        coordinator.run_eval(lambda index=index: evaluate(index))
    gate.await_arrival()
    assert our_threads() == ['lzero-async-evaluator_0']  # no other could take the second and third meanwhile
    assert order == ['begin 0']
    gate.open()
    assert coordinator.wait_for_eval(TIMEOUT) == 2
    assert order == ['begin 0', 'end 0', 'begin 1', 'end 1', 'begin 2', 'end 2']


def test_wait_for_eval_raises_a_failure_once(coordinator):
    coordinator.run_eval(fail)
    with pytest.raises(ValueError, match='broken'):
        coordinator.wait_for_eval(TIMEOUT)
    assert coordinator.wait_for_eval(TIMEOUT) is None
    assert coordinator.get_statistics()['eval_count'] == 0


def test_a_failure_is_kept_when_later_evaluations_end_well(coordinator):
    failed = coordinator.run_eval(fail)
    assert isinstance(failed.exception(TIMEOUT), ValueError)
    for _ in range(3):
        coordinator.run_eval(nothing).result(TIMEOUT)
    with pytest.raises(ValueError, match='broken'):
        coordinator.wait_for_eval(TIMEOUT)


def test_an_evaluation_is_not_forgotten_when_the_wait_times_out(coordinator, gate):
    coordinator.run_eval(lambda: gate() or 'result')
    gate.await_arrival()
    with pytest.raises(FutureTimeout):
        coordinator.wait_for_eval(0.01)
    assert coordinator.eval_in_progress
    gate.open()
    assert coordinator.wait_for_eval(TIMEOUT) == 'result'


def test_an_evaluation_is_not_forgotten_when_an_earlier_one_failed(coordinator, gate):
    coordinator.run_eval(fail)
    coordinator.run_eval(gate)
    gate.await_arrival()
    # Whether it waits for all of them (and runs out of time) or raises at the failure, the second still runs.
    with pytest.raises((ValueError, FutureTimeout)):
        coordinator.wait_for_eval(0.01)
    assert coordinator.eval_in_progress


def test_each_failure_is_raised_by_a_wait_of_its_own(coordinator):
    for _ in range(2):
        assert isinstance(coordinator.run_eval(fail).exception(TIMEOUT), ValueError)
    for _ in range(2):
        with pytest.raises(ValueError, match='broken'):
            coordinator.wait_for_eval(TIMEOUT)
    assert coordinator.wait_for_eval(TIMEOUT) is None


def test_a_cancelled_evaluation_does_not_break_the_next(coordinator, gate):
    coordinator.run_eval(gate)
    gate.await_arrival()
    assert coordinator.run_eval(fail).cancel()
    third = coordinator.run_eval(lambda: 'third')
    gate.open()
    assert third.result(TIMEOUT) == 'third'
    assert coordinator.wait_for_eval(TIMEOUT) == 'third'


# -------------------------------------------------------------------- the end


def test_closing_waits_for_the_evaluation_that_runs_and_drops_those_that_wait(coordinator, gate):
    running = coordinator.run_eval(lambda: gate() or 'result')
    waiting = coordinator.run_eval(fail)
    gate.await_arrival()
    coordinator.close(wait=False)
    assert not running.done()
    gate.open()
    coordinator.close()
    assert running.result(timeout=0) == 'result'
    assert isinstance(waiting.exception(timeout=0), Stopped)
    assert our_threads() == []
    with pytest.raises(Stopped):
        coordinator.run_eval(nothing)
