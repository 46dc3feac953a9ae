"""Runs that go on from the state of another one: counts, bounds and schedules."""
import json

import pytest
from fakes import FakeEvaluator, FakeLearner, WatchedCoordinator, fast, make_run
from hypothesis import given
from hypothesis import strategies as st

from lzero_async.core.autotune import DegreeController
from lzero_async.core.coordinator import AsyncTrainingCoordinator
from lzero_async.core.counts import RoundCounts
from lzero_async.core.on_policy import OnPolicyRounds
from lzero_async.core.samples import SampleAccount
from lzero_async.core.strain import TrainingSignals
from lzero_async.core.trainer import AsyncTrainer
from lzero_async.core.updates import UpdateAccount


class Saving:
    """Keeps the state after every round, as it would come back from a file."""

    def __init__(self):
        self.states = []

    def round_finished(self, run_state):
        self.states.append(json.loads(json.dumps(run_state())))

    def numbers(self):
        return {'checkpoint_count': len(self.states)}


class ResumableEvaluator(FakeEvaluator):
    last = 0

    def state(self):
        return {'last': self.last}

    def restore(self, state):
        self.last = state['last']


def resumed(state, degree=3, evaluator=None, train_iter=0, **more):
    run = make_run(degree=degree, evaluator=evaluator, **more)
    run.learner.train_iter = train_iter
    run.coordinator = WatchedCoordinator(degree)
    run.trainer = AsyncTrainer(
        run.coordinator, run.collectors, run.learner, run.evaluator, run.observer, run.trainer._limits,
        settings=fast(off_policy_degree=degree), resumed=state, checkpoints=Saving(),
    )
    return run


def saved(degree=3, rounds=7, **more):
    run = make_run(degree=degree, max_train_iter=2 * rounds, **more)
    run.trainer._checkpoints = saving = Saving()
    run.trainer.run()
    return run, saving.states


def test_every_round_can_be_saved():
    run, states = saved(rounds=7)
    trained = [state['coordinator']['counts']['finished']['train'] for state in states]
    assert trained == list(range(1, len(trained) + 1)) and len(trained) >= 7
    assert run.trainer.get_statistics()['checkpoint_count'] == len(states)


@pytest.mark.parametrize('degree', [0, 1, 3])
def test_counts_go_on_and_the_bound_holds_from_the_first_round_on(degree):
    _, states = saved(degree=degree, rounds=6)
    state = states[3]
    run = resumed(state, degree=degree, train_iter=8, max_train_iter=30)
    before = run.trainer.get_statistics()
    assert before['train_count'] == 4 and before['collect_train_lag'] == 0
    assert before['collect_count'] == before['train_count'] + before['drop_count']
    assert before['total_generated_samples'] == before['processed_samples'] + before['dropped_samples']
    run.trainer.run()
    assert run.observer.rounds[0].round == 5
    assert all(record.lag <= max(1, degree) and record.staleness <= degree for record in run.observer.rounds)
    after = run.trainer.get_statistics()
    assert after['collect_count'] >= before['collect_count'] and after['train_count'] > 4
    assert run.collectors[0].snapshots[0].rounds == 4


def test_an_evaluation_that_was_under_way_is_due_again():
    _, states = saved(degree=2, rounds=3)
    state = {**states[-1], 'evaluation': {'due': True, 'evaluator': {'last': 17}}}
    evaluator = ResumableEvaluator()
    run = resumed(state, degree=2, evaluator=evaluator, max_train_iter=2)
    assert evaluator.last == 17
    run.trainer.run()
    assert len(evaluator.snapshots) == 1


def test_what_was_queued_when_the_run_was_interrupted_is_kept_in_the_buffer():
    learner = FakeLearner()
    run = make_run(degree=4, learner=learner)
    run.trainer._checkpoints = Saving()

    def work(update, keep_going):
        if update == 3:
            while run.coordinator.collect_train_lag < 3:
                pass
            run.trainer._stop.interrupt()
            run.trainer._doorbell.ring()

    learner.work = work
    assert run.trainer.run().ended_by == 'interrupt'
    numbers = run.trainer.get_statistics()
    assert numbers['dropped_samples'] == 0
    assert numbers['processed_samples'] == numbers['total_generated_samples'] == learner.env_step


# -------------------------------------------------------------------- the parts


def test_rounds_on_their_way_count_as_dropped():
    counts = RoundCounts()
    for _ in range(5):
        counts.begin('collect', 0.5)
        counts.end('collect')
        counts.finish('collect', 1.0)
    counts.finish('train', 2.0)
    other = RoundCounts()
    other.restore(json.loads(json.dumps(counts.state())))
    assert (other.finished['collect'], other.finished['train'], other.dropped, other.lag) == (5, 1, 4, 0)
    assert other.numbers()['collect_total_time'] == 5.0 and other.max_lag == counts.max_lag


def test_samples_on_their_way_count_as_dropped():
    account = SampleAccount()
    account.generated(100)
    account.processed(60, staleness=2, age=1.5, is_stale=False)
    account.dropped(10)
    other = SampleAccount()
    other.restore(json.loads(json.dumps(account.state())))
    numbers = other.numbers()
    assert numbers['total_generated_samples'] == 100 and numbers['dropped_samples'] == 40
    assert numbers['max_staleness'] == 2 and numbers['avg_sample_age'] == 1.5


@given(st.lists(st.integers(0, 100)), st.integers(0, 50), st.integers(0, 20), st.booleans())
def test_no_more_updates_are_owed_than_allowed(batches, paid, most, carry):
    account = UpdateAccount(0.3, None, carry)
    for transitions in batches:
        account.owe(transitions)
    account.pay(paid)
    other = UpdateAccount(0.3, None, carry)
    let_go = other.restore(json.loads(json.dumps(account.state())), most)
    assert other.owed == min(account.owed, most) and let_go == account.owed - other.owed


def test_a_degree_that_tunes_itself_goes_on_as_if_nothing_had_happened():
    def rounds(controller, first, last):
        changes = []
        for number in range(first, last):
            controller.collected(1.0 + number % 3)
            signals = TrainingSignals(loss=50.0 if number == 250 else 1.0)
            changes.append(controller.trained(1.5, 2, signals))
        return changes

    one = DegreeController(31)
    rounds(one, 0, 200)
    other = DegreeController(31)
    other.restore(json.loads(json.dumps(one.state())))
    assert rounds(one, 200, 600) == rounds(other, 200, 600)
    assert one.degree == other.degree and one.state() == other.state()


def test_a_degree_is_kept_within_the_bounds_of_now():
    one = DegreeController(31)
    other = DegreeController(31, highest=8)
    other.restore(one.state())
    assert other.degree == 8


def test_a_coordinator_with_another_kind_of_degree():
    tuned = AsyncTrainingCoordinator(-1)
    fixed = AsyncTrainingCoordinator(4)
    fixed.restore(tuned.state())
    tuned.restore(fixed.state())
    assert (fixed.off_policy_degree, tuned.off_policy_degree) == (4, 31)


def test_on_policy_rounds():
    rounds = OnPolicyRounds(2)
    for sample in range(2):
        rounds.store(sample)
    rounds.sync_update()
    rounds.store('left')
    other = OnPolicyRounds(2, rounds.policy_version)
    other.restore(rounds.state())
    assert other.get_statistics()['samples_collected'] == 2 and other.get_statistics()['sync_rounds'] == 1
