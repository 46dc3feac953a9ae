"""The first failure stops everybody, wherever they are, and is raised with its cause."""
import contextlib
import threading

import pytest
from fakes import (
    FakeCollector,
    FakeEvaluator,
    FakeLearner,
    FakeObserver,
    IdleLearner,
    await_event,
    make_run,
    nothing,
    our_threads,
    watch,
)

from lzero_async.core.errors import RoleFailed, Stopped

# A run that hangs does so in the main thread, where only this ends it.
pytestmark = pytest.mark.timeout(60)

COLLECTOR, LEARNER = 'lzero-async-collector-0', 'lzero-async-learner'


class Broken(Exception):
    pass


def fail_at(turn):
    def work(now, *_):
        if now == turn:
            raise Broken(f'at {turn}')
    return work


def assert_fails(run, role, kind=Broken):
    with pytest.raises(RoleFailed) as failure:
        run.trainer.run()
    assert failure.value.role == role
    assert isinstance(failure.value.__cause__, kind)
    assert str(failure.value).startswith(f'the {role} failed: {kind.__name__}')
    assert our_threads() == []
    counts = run.trainer.get_statistics()
    assert counts['total_generated_samples'] == counts['processed_samples'] + counts['dropped_samples']
    return failure.value


@pytest.mark.parametrize('async_eval', [False, True])
@pytest.mark.parametrize('degree, name', [(0, 'collector'), (1, 'collector-0'), (4, 'collector-0')])
def test_the_collector_fails(degree, name, async_eval):
    run = make_run(degree, async_eval, collectors=[FakeCollector(work=fail_at(3))], evaluator=FakeEvaluator([2]))
    assert_fails(run, name)
    assert run.coordinator.get_statistics()['collect_count'] == 2
    assert run.trainer.get_statistics()['generation_errors'] == 1


def test_the_learner_fails_amid_idle_work():
    run = make_run(2, learner=IdleLearner(idle=fail_at(3)))
    run.collectors[0].work = lambda call, _: call == 3 and await_event(run.coordinator.ending)
    assert_fails(run, 'learner')


@pytest.mark.parametrize('async_eval', [False, True])
@pytest.mark.parametrize('degree', [0, 1, 4])
def test_the_learner_fails(degree, async_eval):
    run = make_run(degree, async_eval, learner=FakeLearner(work=fail_at(5)), evaluator=FakeEvaluator([2]))
    assert_fails(run, 'learner')
    assert run.learner.train_iter == 4
    assert run.coordinator.train_count == 2  # the third round is not counted


@pytest.mark.parametrize('async_eval', [False, True])
@pytest.mark.parametrize('degree', [0, 1, 4])
def test_the_evaluator_fails(degree, async_eval):
    run = make_run(degree, async_eval, evaluator=FakeEvaluator(always=True, work=fail_at(2)))
    assert_fails(run, 'evaluator')
    assert len(run.observer.evaluations) == 1


@pytest.mark.parametrize('degree', [0, 2])
def test_the_evaluator_fails_when_training_is_over(degree):
    run = make_run(degree, async_eval=True, evaluator=FakeEvaluator(due_at=[2]), max_env_step=50)
    run.evaluator.work = lambda *_: (await_event(run.coordinator.ending), fail_at(1)(1))
    assert_fails(run, 'evaluator')
    assert run.coordinator.get_statistics()['collect_count'] == run.coordinator.train_count == 5


@pytest.mark.parametrize('degree', [0, 2])
def test_an_observer_fails_in_the_role_that_tells_it(degree):
    run = make_run(degree, observer=FakeObserver(work=fail_at(3)))
    assert_fails(run, 'learner')


@pytest.mark.parametrize('role', ['collector-0', 'learner', 'evaluator'])
def test_a_role_context_fails(role):
    @contextlib.contextmanager
    def role_context(entered):
        if entered == role:
            raise Broken('no such device')
        yield

    assert_fails(make_run(2, evaluator=FakeEvaluator(always=True), role_context=role_context), role)


def test_whatever_a_thread_raises_is_heard():
    def leave(*_):
        raise SystemExit(3)

    assert_fails(make_run(2, collectors=[FakeCollector(work=leave)]), 'collector-0', SystemExit)


def test_whatever_leaves_a_serial_run_the_coordinator_is_closed():
    def leave(*_):
        raise SystemExit(3)

    run = make_run(collectors=[FakeCollector(work=leave)])
    with pytest.raises((SystemExit, RoleFailed)):
        run.trainer.run()
    with pytest.raises(Stopped):
        run.coordinator.run_collect(nothing)


# -------------------------------------------------------------------- others stop, though they are blocked


def first_round_trained(run):
    trained = threading.Event()
    run.observer.work = lambda number: trained.set()
    return trained


def test_the_learner_fails_while_the_collector_is_blocked_at_the_gate():
    run = make_run(1)
    gate = watch(run.coordinator)
    run.learner.work = lambda *_: (gate.await_blocked(COLLECTOR), fail_at(1)(1))
    assert_fails(run, 'learner')
    assert len(run.collectors[0].snapshots) == 1


def test_the_learner_fails_while_the_collector_is_blocked_on_a_full_queue():
    run = make_run(8, data_queue_size=1)
    queue = watch(run.trainer._queue)
    run.learner.work = lambda *_: (queue.await_blocked(COLLECTOR), fail_at(1)(1))
    assert_fails(run, 'learner')
    # One batch with the learner, one in the queue, one in the collector's hands.
    assert run.coordinator.get_statistics()['collect_count'] == 3
    left = run.trainer._queue.statistics()
    assert (left.total_produced, left.total_consumed, left.discarded, left.queue_size) == (2, 1, 1, 0)


def test_the_collector_fails_while_the_learner_is_blocked_on_an_empty_queue():
    run = make_run(2)
    queue = watch(run.trainer._queue)
    trained = first_round_trained(run)

    def second_collect(call, _):
        if call == 2:
            await_event(trained)
            queue.await_blocked(LEARNER)
            raise Broken('at 2')

    run.collectors[0].work = second_collect
    assert_fails(run, 'collector-0')
    assert run.learner.rounds == [2]


def test_one_collector_fails_while_another_is_blocked_at_the_gate():
    run = make_run(1, collectors=[FakeCollector(), FakeCollector()])
    gate = watch(run.coordinator)
    entered = []

    def blocks_the_other(index):
        def work(*_):
            entered.append(index)
            gate.await_blocked(f'lzero-async-collector-{1 - index}')
            raise Broken('while the other waits')
        return work

    for index, collector in enumerate(run.collectors):
        collector.work = blocks_the_other(index)
    with pytest.raises(RoleFailed) as failure:
        run.trainer.run()
    assert len(entered) == 1
    assert failure.value.role == f'collector-{entered[0]}'
    assert our_threads() == []


def test_the_background_evaluator_fails_while_learner_and_collector_wait():
    run = make_run(2, async_eval=True, evaluator=FakeEvaluator(due_at=[2]))
    queue = watch(run.trainer._queue)
    trained = first_round_trained(run)
    run.collectors[0].work = lambda call, _: call == 2 and await_event(run.coordinator.ending)

    def evaluate(*_):
        await_event(trained)
        queue.await_blocked(LEARNER)
        raise Broken('in the background')

    run.evaluator.work = evaluate
    assert_fails(run, 'evaluator')
    assert len(run.collectors[0].snapshots) == 2


def test_the_background_evaluator_fails_in_the_middle_of_a_round():
    run = make_run(1, async_eval=True, learner=FakeLearner(updates=5), evaluator=FakeEvaluator(due_at=[5]))
    gate = watch(run.coordinator)
    third_update = threading.Event()
    run.learner.work = lambda update, _: update == 8 and (third_update.set(), await_event(run.coordinator.ending))
    run.evaluator.work = lambda *_: (await_event(third_update), gate.await_blocked(COLLECTOR), fail_at(1)(1))
    assert_fails(run, 'evaluator')
    assert run.learner.rounds == [5, 3]  # the update was finished, the rest left


def test_the_first_failure_is_the_one_that_is_raised():
    run = make_run(4)
    training = threading.Event()
    run.collectors[0].work = lambda call, _: call == 2 and (await_event(training), fail_at(2)(2))

    def fails_in_the_ruins(*_):
        training.set()
        await_event(run.coordinator.ending)
        raise KeyError('a consequence')

    run.learner.work = fails_in_the_ruins
    assert_fails(run, 'collector-0')
