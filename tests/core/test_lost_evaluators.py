"""Evaluators whose workers are lost, in whole runs."""
import threading

import pytest
from fakes import await_event, make_run, our_threads
from losing import LosingEvaluator, lost_at, told_to_end

from lzero_async.core.errors import RestartsExhausted, RoleFailed

# A run that hangs does so in the main thread, where only this ends it.
pytestmark = pytest.mark.timeout(60)

MODES = [(0, True), (2, False), (2, True)]  # a serial evaluator that blocks has no worker of its own
MEMBERS = ('await_ready', 'load_weights', 'evaluate')


def assert_all_trained(run):
    numbers = run.trainer.get_statistics()
    assert numbers['collect_count'] == numbers['train_count']
    assert numbers['total_generated_samples'] == numbers['processed_samples']
    assert (numbers['dropped_samples'], numbers['queue_size']) == (0, 0)
    assert our_threads() == []
    return numbers


@pytest.mark.parametrize('degree, async_eval', MODES)
@pytest.mark.parametrize('member', MEMBERS)
def test_a_run_goes_on_and_its_evaluation_is_repeated(degree, async_eval, member):
    evaluator = LosingEvaluator(lost_at((member, 1), (member, 2)), due_at=[2])
    run = make_run(degree, async_eval, evaluator=evaluator, max_env_step=60)
    assert run.trainer.run().ended_by == 'max_env_step'
    assert [evaluation.policy_version for evaluation in run.observer.evaluations] == [2]
    numbers = assert_all_trained(run)
    assert (numbers['worker_restarts'], numbers['generation_errors'], numbers['eval_count']) == (2, 0, 1)


@pytest.mark.parametrize('degree, async_eval', MODES)
@pytest.mark.parametrize('most', [0, 2])
def test_a_run_whose_evaluators_are_lost_too_often_ends_in_order(degree, async_eval, most):
    evaluator = LosingEvaluator(always=True)
    run = make_run(degree, async_eval, evaluator=evaluator, max_worker_restarts=most)
    told, second = told_to_end(run), threading.Event()
    evaluator.loses = lambda member, call: member == 'evaluate' and (await_event(second), True)[1]
    run.collectors[0].work = lambda call, _: call == 2 and second.set()
    run.learner.work = lambda update, _: update == 3 and await_event(told)  # in the second round
    with pytest.raises(RoleFailed) as failure:
        run.trainer.run()
    assert failure.value.role == 'evaluator'
    assert isinstance(failure.value.__cause__, RestartsExhausted)
    assert failure.value.__cause__.__cause__ is evaluator.losses[-1]
    assert len(evaluator.losses) == most + 1  # and none started after that
    numbers = assert_all_trained(run)
    assert numbers['worker_restarts'] == most
    assert numbers['train_count'] >= 2
    assert set(run.learner.rounds) == {2}
    assert run.observer.evaluations == []
    assert run.trainer._stop.reason == 'failure'


def test_the_last_evaluation_is_repeated_though_the_run_is_ending():
    evaluator = LosingEvaluator(always=True)
    run = make_run(2, async_eval=True, evaluator=evaluator, max_env_step=40)

    def lose_at_the_end(member, call):
        if member == 'evaluate':
            await_event(run.coordinator.ending)  # the learner has nothing left to do but wait for this
        return (member, call) == ('evaluate', 1)

    evaluator.loses = lose_at_the_end
    run.trainer.run()
    assert run.observer.evaluations[0].policy_version == 2
    assert assert_all_trained(run)['worker_restarts'] == 1
