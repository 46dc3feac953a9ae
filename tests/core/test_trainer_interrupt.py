"""Ctrl-C. The signal is raised from inside the work of a fake, so it comes where the test says."""
import os
import signal
import threading

import pytest
from fakes import (
    TIMEOUT,
    FakeCollector,
    FakeEvaluator,
    FakeLearner,
    await_event,
    make_run,
    nothing,
    our_threads,
    start,
)

from lzero_async.core.errors import RoleFailed, Stopped

# A run that hangs does so in the main thread, where only this ends it.
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def handler():
    """A handler of the program that uses us; it must be back after every run."""
    def of_the_program(*_):
        pytest.fail('the signal reached the handler of the program')

    before = signal.signal(signal.SIGINT, of_the_program)
    yield of_the_program
    restored = signal.signal(signal.SIGINT, before)
    assert restored is of_the_program


def ctrl_c_at(turn, times=1):
    def work(now, _):
        if now == turn:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
    return work


def kill_until(signum, event):
    """Send the signal to the process, from a thread, and wait until `event` shows that the main thread reacted."""
    os.kill(os.getpid(), signum)
    assert event.wait(TIMEOUT), 'the main thread did not react'


def ctrl_c_from_thread_at(run, turn):
    def work(now, _):
        if now == turn:
            kill_until(signal.SIGINT, run.coordinator.ending)
    return work


def assert_interrupted(run):
    outcome = run.trainer.run()
    assert outcome.ended_by == 'interrupt'
    assert outcome.queue.total_produced == outcome.queue.total_consumed + outcome.queue.discarded
    assert outcome.queue.queue_size == 0
    counts = outcome.statistics
    assert counts['total_generated_samples'] == counts['processed_samples'] + counts['dropped_samples']
    assert our_threads() == []
    return outcome.statistics


# -------------------------------------------------------------------- serial


def test_serial_finishes_the_update_and_leaves_the_rest():
    run = make_run(learner=FakeLearner(updates=5, work=ctrl_c_at(8)))
    counts = assert_interrupted(run)
    assert run.learner.rounds == [5, 3]
    assert (counts['collect_count'], counts['train_count']) == (2, 1)


def test_serial_leaves_a_collect():
    run = make_run(collectors=[FakeCollector(work=ctrl_c_at(3))])
    counts = assert_interrupted(run)
    assert (counts['collect_count'], counts['train_count']) == (2, 2)


@pytest.mark.parametrize('async_eval', [False, True])
def test_serial_leaves_an_evaluation(async_eval):
    run = make_run(async_eval=async_eval, evaluator=FakeEvaluator(due_at=[4]))
    if async_eval:
        arrived = threading.Event()
        run.evaluator.work = lambda *_: (arrived.set(), await_event(run.coordinator.ending))
        run.collectors[0].work = lambda call, _: call == 3 and (await_event(arrived), ctrl_c_at(3)(3, None))
    else:
        run.evaluator.work = ctrl_c_at(1)
    counts = assert_interrupted(run)
    assert (counts['collect_count'], counts['train_count'], counts['eval_count']) == (2, 2, 0)
    assert run.observer.evaluations == []


def test_the_second_ctrl_c_raises_at_once():
    run = make_run(learner=FakeLearner(updates=5, work=ctrl_c_at(8, times=2)))
    with pytest.raises(KeyboardInterrupt):
        run.trainer.run()
    assert run.learner.train_iter == 7
    with pytest.raises(Stopped):
        run.coordinator.run_collect(nothing)


def test_the_second_ctrl_c_raises_at_once_inside_an_evaluation():
    run = make_run(evaluator=FakeEvaluator(due_at=[4], work=ctrl_c_at(1, times=2)))
    with pytest.raises(KeyboardInterrupt):
        run.trainer.run()


# -------------------------------------------------------------------- threads


def test_the_learner_finishes_the_update_and_leaves_the_rest():
    run = make_run(2, learner=FakeLearner(updates=5))
    run.learner.work = ctrl_c_from_thread_at(run, 8)
    counts = assert_interrupted(run)
    assert run.learner.rounds == [5, 3]
    assert counts['train_count'] == 1
    assert 2 <= counts['collect_count'] <= 3  # at most the degree ahead


def test_a_collect_is_left_while_the_learner_waits_for_it():
    run = make_run(1)
    run.collectors[0].work = ctrl_c_from_thread_at(run, 3)
    counts = assert_interrupted(run)
    assert (counts['collect_count'], counts['train_count']) == (2, 2)


@pytest.mark.parametrize('async_eval', [False, True])
def test_an_evaluation_is_left(async_eval):
    run = make_run(2, async_eval, evaluator=FakeEvaluator(due_at=[4]))
    run.evaluator.work = ctrl_c_from_thread_at(run, 1)
    counts = assert_interrupted(run)
    assert counts['eval_count'] == 0
    assert run.observer.evaluations == []


def test_the_second_ctrl_c_raises_while_the_threads_are_still_at_work():
    run = make_run(2)
    reacted, let_go = threading.Event(), threading.Event()
    discard = run.trainer._queue.discard

    def discard_and_tell():
        # The last thing that a run does in answer to the first Ctrl-C.
        left = discard()
        reacted.set()
        return left

    def work(update, _):
        if update == 3:
            kill_until(signal.SIGINT, reacted)
            kill_until(signal.SIGINT, let_go)

    run.trainer._queue.discard = discard_and_tell
    run.learner.work = work
    with pytest.raises(KeyboardInterrupt):
        run.trainer.run()
    threads = [thread for thread in threading.enumerate() if thread.name in our_threads()]
    let_go.set()
    assert 'lzero-async-learner' in [thread.name for thread in threads]
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    assert run.learner.train_iter == 3


# -------------------------------------------------------------------- the handler


@pytest.mark.parametrize('degree', [0, 2])
def test_the_handler_is_ours_during_the_run_and_restored_after_a_failure(degree, handler):
    seen = []

    def work(call, _):
        seen.append(signal.getsignal(signal.SIGINT))
        if call == 3:
            raise ValueError('broken')

    with pytest.raises(RoleFailed):
        make_run(degree, collectors=[FakeCollector(work=work)]).trainer.run()
    assert handler not in seen
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize('degree', [0, 2])
def test_a_run_outside_the_main_thread_leaves_the_handler_alone(degree, handler):
    seen = []
    collector = FakeCollector(work=lambda *_: seen.append(signal.getsignal(signal.SIGINT)))
    start(make_run(degree, collectors=[collector], max_env_step=30).trainer.run).result(TIMEOUT)
    assert seen == [handler] * 3
