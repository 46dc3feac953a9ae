"""When evaluations start, and with which weights."""
import contextlib
import dataclasses
from types import SimpleNamespace

import pytest
from fakes import FakeEvaluator, FakeLearner, FakeObserver, Gate, WatchedCoordinator, fast, nothing
from loops import WildLearner, listening
from losing import LosingEvaluator, lost_at, lost_from

from lzero_async.core.channels import Channels
from lzero_async.core.errors import RestartsExhausted, RoleFailed, Stopped
from lzero_async.core.evaluation_schedule import EvaluationSchedule
from lzero_async.core.param_sync import ParameterSynchronizer


def make_schedule(evaluator, async_eval=False, learner=None, **settings):
    made = SimpleNamespace(
        coordinator=WatchedCoordinator(1, enable_async_eval=async_eval), learner=learner or FakeLearner(),
        weights=ParameterSynchronizer(fast()), observer=FakeObserver(), entered=[], failures=[], stop_values=[],
    )
    made.channels = Channels.open(made.coordinator, made.weights, fast(**settings))
    made.stop = made.channels.stop

    @contextlib.contextmanager
    def context():
        made.entered.append('enter')
        yield
        made.entered.append('leave')

    made.schedule = EvaluationSchedule(
        evaluator, made.learner, made.channels, made.observer, context=context, on_failure=made.failures.append,
        on_stop_value=lambda: made.stop_values.append(True),
    )
    made.weights.publish(made.learner.snapshot())

    def round_finished(train_iter):
        made.learner.train_iter = train_iter
        made.weights.publish(made.learner.snapshot())
        made.schedule.round_finished()

    made.round_finished = round_finished
    return made


def test_an_evaluation_takes_place_when_due_inside_its_context():
    evaluator = FakeEvaluator(due_at=[20], stop_at=30)
    made = make_schedule(evaluator)
    evaluator.work = lambda *_: made.entered.append('evaluate')
    for train_iter in (10, 20, 30):
        made.round_finished(train_iter)
    assert [snapshot.policy_version for snapshot in evaluator.snapshots] == [20]
    assert [evaluation.policy_version for evaluation in made.observer.evaluations] == [20]
    assert made.entered == ['enter', 'evaluate', 'leave']
    assert made.stop_values == []


def test_an_evaluation_has_the_published_weights_loaded_and_the_learners_state():
    evaluator = FakeEvaluator(due_at=[20])
    made = make_schedule(evaluator)
    loaded = []
    evaluator.work = lambda *_: loaded.extend(evaluator.loaded)
    for train_iter in (10, 20, 30):
        made.round_finished(train_iter)
    assert loaded == evaluator.loaded == [(20, 'weights-20')]
    snapshot, = evaluator.snapshots
    assert (snapshot.weights, snapshot.learner_state) == ('weights-20', 'state-20')
    assert made.weights.latest().learner_state is None  # it is copied for this one alone


def test_weights_that_are_not_finite_are_not_evaluated_but_the_next_that_are():
    evaluator = FakeEvaluator(due_at=[20])
    made = make_schedule(evaluator, learner=WildLearner(lambda train_iter: train_iter in (20, 30)))
    for train_iter in (10, 20, 30, 40, 50):
        made.round_finished(train_iter)
    assert [snapshot.policy_version for snapshot in evaluator.snapshots] == [40]
    assert [evaluation.policy_version for evaluation in made.observer.evaluations] == [40]


def test_weights_that_do_not_reach_the_evaluator_are_not_evaluated():
    evaluator = FakeEvaluator(always=True)
    made = make_schedule(evaluator)
    load = evaluator.load_weights

    def fails_at_20(weights, version):
        if version == 20:
            raise ConnectionError('broken')
        load(weights, version)

    evaluator.load_weights = fails_at_20
    with listening() as ear:
        for train_iter in (10, 20, 30):
            made.round_finished(train_iter)
    assert [evaluation.policy_version for evaluation in made.observer.evaluations] == [10, 30]
    assert ear.messages[-1] == 'version 20 is not evaluated: it did not reach the evaluator'
    assert made.failures == []


def test_weights_shared_with_the_learner_are_evaluated_without_loading():
    evaluator = FakeEvaluator(due_at=[20])
    made = make_schedule(evaluator)
    copy = made.learner.snapshot
    made.learner.snapshot = lambda: dataclasses.replace(copy(), weights=None)
    made.round_finished(20)
    assert [snapshot.weights for snapshot in evaluator.snapshots] == [None]
    assert evaluator.loaded == []


@pytest.mark.parametrize('stop_at, told', [(20, [True]), (21, [])])
def test_the_stop_value_is_told(stop_at, told):
    made = make_schedule(FakeEvaluator(due_at=[20], stop_at=stop_at))
    made.round_finished(20)
    assert made.stop_values == told


def test_a_failing_evaluation_is_named_and_told():
    def broken(*_):
        raise ValueError('broken')

    made = make_schedule(FakeEvaluator(always=True, work=broken))
    with pytest.raises(RoleFailed) as failure:
        made.round_finished(10)
    assert failure.value.role == 'evaluator'
    assert isinstance(failure.value.__cause__, ValueError)
    assert made.failures == [failure.value]


def test_an_evaluation_that_is_told_to_stop_is_no_failure():
    made = make_schedule(FakeEvaluator(always=True))
    made.stop.abort('enough')
    with pytest.raises(Stopped):
        made.round_finished(10)
    assert made.failures == []


def test_due_while_another_runs_waits_and_takes_the_newest_weights():
    gates = {1: Gate(), 2: Gate()}
    evaluator = FakeEvaluator(due_at=[10, 20], work=lambda call, _: gates.get(call, nothing)())
    made = make_schedule(evaluator, async_eval=True)
    made.round_finished(10)
    gates[1].await_arrival()
    for train_iter in (20, 30, 40):  # due at 20, which waits; each round makes the waiting weights newer
        made.round_finished(train_iter)
    gates[1].open()
    gates[2].await_arrival()
    made.round_finished(50)  # nothing is due any more
    gates[2].open()
    made.schedule.finish()
    assert [snapshot.policy_version for snapshot in evaluator.snapshots] == [10, 40]
    assert [evaluation.policy_version for evaluation in made.observer.evaluations] == [10, 40]
    made.coordinator.close()


def test_weights_taken_while_the_learner_copies_newer_ones_are_not_evaluated_twice():
    gates = {1: Gate(), 2: Gate()}
    evaluator = FakeEvaluator(due_at=[10, 20], work=lambda call, _: gates.get(call, nothing)())
    made = make_schedule(evaluator, async_eval=True)
    made.round_finished(10)
    gates[1].await_arrival()
    made.round_finished(20)
    copy = made.learner.state

    def slow_copy():
        gates[1].open()
        gates[2].await_arrival()  # the evaluator's thread has gone on with the weights of 20
        return copy()

    made.learner.state = slow_copy
    made.round_finished(30)
    gates[2].open()
    made.schedule.finish()
    assert [snapshot.policy_version for snapshot in evaluator.snapshots] == [10, 20]
    made.coordinator.close()


# -------------------------------------------------------------------- lost workers

MEMBERS = ('await_ready', 'load_weights', 'evaluate')


def restarts(made):
    return made.channels.restarts.numbers()['worker_restarts']


@pytest.mark.parametrize('member', MEMBERS)
def test_an_evaluation_whose_worker_is_lost_is_repeated_by_another(member):
    evaluator = LosingEvaluator(lost_at((member, 1)), always=True)
    made = make_schedule(evaluator)
    made.round_finished(10)
    before = MEMBERS.index(member) + 1
    assert evaluator.history == [*MEMBERS[:before], 'replace', *MEMBERS]
    assert set(evaluator.loaded) == {(10, 'weights-10')}
    assert [evaluation.policy_version for evaluation in made.observer.evaluations] == [10]
    assert evaluator.snapshots[-1].learner_state == 'state-10'
    assert made.entered == ['enter', 'leave']  # all in one context
    assert (made.failures, restarts(made)) == ([], 1)
    made.round_finished(20)
    assert [evaluation.policy_version for evaluation in made.observer.evaluations] == [10, 20]


@pytest.mark.parametrize('member', MEMBERS)
@pytest.mark.parametrize('most', [0, 2])
def test_an_evaluator_that_is_lost_too_often_is_a_failure_that_is_told_and_none_starts_after_it(member, most):
    evaluator = LosingEvaluator(lost_from(member, 1), always=True)
    made = make_schedule(evaluator, max_worker_restarts=most)
    for train_iter in (10, 20, 30):
        made.round_finished(train_iter)
    failure, = made.failures
    assert failure.role == 'evaluator'
    assert isinstance(failure.__cause__, RestartsExhausted)
    assert failure.__cause__.__cause__ is evaluator.losses[-1]
    assert len(evaluator.losses) == most + 1
    assert (restarts(made), evaluator.history.count('replace')) == (most, most)
    assert made.observer.evaluations == made.stop_values == []


def test_an_evaluator_that_is_lost_too_often_takes_no_evaluation_that_waits():
    lost = Gate()
    evaluator = LosingEvaluator(lost_from('evaluate', 1), always=True)
    evaluator.loses = lambda member, call: member == 'evaluate' and (lost(), True)[1]
    made = make_schedule(evaluator, async_eval=True, max_worker_restarts=0)
    made.round_finished(10)
    lost.await_arrival()
    made.round_finished(20)
    lost.open()
    made.schedule.finish()
    made.round_finished(30)
    made.schedule.finish()
    assert len(made.failures) == len(evaluator.losses) == 1
    assert evaluator.loaded == [(10, 'weights-10')]
    made.coordinator.close()


def test_evaluations_of_a_run_that_ends_in_order_are_repeated_all_the_same():
    evaluator = LosingEvaluator(always=True)
    made = make_schedule(evaluator)
    evaluator.loses = lambda member, call: (member, call) == ('evaluate', 1) and not made.stop.request('enough')
    made.round_finished(10)
    assert [evaluation.policy_version for evaluation in made.observer.evaluations] == [10]
    assert restarts(made) == 1


@pytest.mark.parametrize('member', MEMBERS)
def test_no_evaluator_is_started_for_a_run_that_is_over(member):
    evaluator = LosingEvaluator(always=True)
    made = make_schedule(evaluator)
    evaluator.loses = lambda called, call: called == member and not made.stop.abort('enough')
    with pytest.raises(Stopped) as stopped:
        made.round_finished(10)
    assert stopped.value.__cause__ is evaluator.losses[0]
    assert 'replace' not in evaluator.history
    assert (made.failures, restarts(made)) == ([], 0)
