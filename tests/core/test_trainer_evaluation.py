"""Evaluations of a whole run of fakes."""
import contextlib
import threading

import pytest
from fakes import FakeEvaluator, Gate, await_event, make_run, our_threads

# A run that hangs does so in the main thread, where only this ends it.
pytestmark = pytest.mark.timeout(60)


def hold_the_first_evaluation_until_the_end(run):
    """It has begun before a second round is trained, so that the two cannot become one."""
    begun = threading.Event()
    run.evaluator.work = lambda call, _: call == 1 and (begun.set(), await_event(run.coordinator.ending))
    run.collectors[0].work = lambda call, _: call == 2 and await_event(begun)


@pytest.mark.parametrize('degree', [0, 2])
@pytest.mark.parametrize('async_eval', [False, True])
def test_role_contexts(degree, async_eval):
    entered = []

    @contextlib.contextmanager
    def role_context(role):
        entered.append((role, threading.current_thread().name))
        yield

    run = make_run(
        degree, async_eval, evaluator=FakeEvaluator(due_at=[2]), max_env_step=40, role_context=role_context
    )
    run.trainer.run()
    main, learner = threading.current_thread().name, 'lzero-async-learner'
    evaluating = 'lzero-async-evaluator_0' if async_eval else learner if degree else main
    roles = [('evaluator', evaluating)]
    if degree:
        roles += [('collector-0', 'lzero-async-collector-0'), ('learner', learner)]
    assert sorted(entered) == sorted(roles)


@pytest.mark.parametrize('degree', [0, 2])
def test_the_run_waits_for_the_evaluations_that_run_and_wait(degree):
    run = make_run(degree, async_eval=True, evaluator=FakeEvaluator(due_at=[2, 4]), max_env_step=50)
    # The first evaluation ends when training is over; the one that fell due meanwhile starts after that.
    hold_the_first_evaluation_until_the_end(run)
    outcome = run.trainer.run()
    versions = [evaluation.policy_version for evaluation in run.observer.evaluations]
    assert len(versions) == 2 and versions[0] == 2 and versions[1] >= 4
    assert outcome.statistics['eval_count'] == 2
    assert outcome.statistics['collect_count'] == outcome.statistics['train_count']
    assert our_threads() == []


def test_an_evaluation_due_while_another_runs_gets_the_newest_weights():
    first, second = Gate(), Gate()
    run = make_run(async_eval=True, evaluator=FakeEvaluator(due_at=[2, 6]), max_env_step=80)
    run.evaluator.work = lambda call, _: (first, second)[call - 1]()

    def collect(call, _):
        if call == 2:
            first.await_arrival()
        if call == 6:  # five rounds are trained: 10 updates
            first.open()
            second.await_arrival()
            second.open()

    run.collectors[0].work = collect
    outcome = run.trainer.run()
    assert [evaluation.policy_version for evaluation in run.observer.evaluations] == [2, 10]
    assert outcome.statistics['collect_count'] == outcome.statistics['train_count']
    assert our_threads() == []


class StopAtTheGate:
    """A clock that is read just before the gate: asks for a stop after the run has looked for one."""

    def __init__(self):
        self.armed = None

    def __call__(self):
        if self.armed:
            armed, self.armed = self.armed, None
            armed()
        return 0.0


def test_a_stop_that_meets_the_serial_collector_at_its_gate_loses_no_evaluation():
    clock = StopAtTheGate()
    run = make_run(async_eval=True, clock=clock, evaluator=FakeEvaluator(due_at=[2, 4]))
    hold_the_first_evaluation_until_the_end(run)  # from then on, only the training loop reads the clock

    def due(train_iter, asked=run.evaluator.due):
        if train_iter == 6:
            clock.armed = run.trainer.request_stop
        return asked(train_iter)

    run.evaluator.due = due
    run.trainer.run()
    assert len(run.observer.evaluations) == 2
