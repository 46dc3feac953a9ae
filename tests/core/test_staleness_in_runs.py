"""Whole runs of fakes: how old samples get, what becomes of those that are too old, and of weights that do not come."""
import contextlib
import threading

import pytest
from fakes import (
    ENDLESS,
    TIMEOUT,
    FakeClock,
    FakeCollector,
    FakeLearner,
    Gate,
    await_event,
    make_run,
    our_threads,
    start,
    watch,
)
from loops import DeafCollector, LateCollector, WildLearner, listening

from lzero_async.core.errors import BoundBroken, EverythingDropped, RoleFailed, WeightsTooStale

# A run that hangs does so in the main thread, where only this ends it.
pytestmark = pytest.mark.timeout(60)

COLLECTOR, LEARNER = 'lzero-async-collector-0', 'lzero-async-learner'


@contextlib.contextmanager
def running(run, *gates):
    """The run's outcome to come. No failing test leaves it running."""
    outcome = start(run.trainer.run)
    try:
        yield outcome
    finally:
        if not outcome.done():
            run.trainer._abort('the test failed')
        for gate in gates:
            gate.open()
        outcome.exception(TIMEOUT)


def assert_fails(run, role, kind, message=None):
    with pytest.raises(RoleFailed, match=message) as failure:
        run.trainer.run()
    assert failure.value.role == role
    assert isinstance(failure.value.__cause__, kind)
    assert our_threads() == []
    assert_nothing_lost(run)


def assert_nothing_lost(run):
    counts, queue = run.trainer.get_statistics(), run.trainer._queue.statistics()
    assert counts['total_generated_samples'] == counts['processed_samples'] + counts['dropped_samples']
    assert queue.total_produced == queue.total_consumed + queue.discarded
    assert queue.queue_size == 0
    return counts


def assert_all_trained_or_dropped(run):
    counts = assert_nothing_lost(run)
    assert counts['collect_count'] == counts['train_count'] + counts['drop_count']
    assert counts['train_count'] == len(run.learner.admitted)
    assert counts['processed_samples'] == run.learner.env_step
    return counts


def assert_bounded(run, degree):
    counts = run.trainer.get_statistics()
    assert all(0 <= record.staleness <= degree for record in run.observer.rounds)
    assert all(record.lag <= degree for record in run.observer.rounds)
    assert counts['max_staleness'] <= degree
    assert counts['max_lag'] <= degree


def with_clock(run):
    """From now on only the test lets samples age."""
    clock = FakeClock(100.0)
    object.__setattr__(run.trainer._channels, 'clock', clock)
    return clock


# -------------------------------------------------------------------- the bound


class FirstCollect:
    """The work of several collectors: whichever comes first stops at the gate."""

    def __init__(self):
        self.gate = Gate()
        self.collector = None
        self._lock = threading.Lock()

    def __call__(self, *_):
        with self._lock:
            first = self.collector is None
            self.collector = self.collector or threading.current_thread().name
        if first:
            self.gate()


@pytest.mark.parametrize('degree', [1, 2, 3, 8])
@pytest.mark.parametrize('collectors', [1, 2, 4])
def test_a_slow_collector_is_waited_for_and_no_bound_is_broken(collectors, degree):
    slow = FirstCollect()
    run = make_run(
        degree, collectors=[FakeCollector(work=slow) for _ in range(collectors)], max_env_step=200,
        max_staleness_allowed=ENDLESS,
    )
    gate, queue = watch(run.coordinator), watch(run.trainer._queue)
    # With a slot besides the one that is held, as many rounds are trained as its batch may be stale.
    trained_meanwhile = degree if min(collectors, degree) > 1 else 0
    all_trained = threading.Event()
    run.observer.work = lambda number: number == trained_meanwhile and all_trained.set()
    with running(run, slow.gate) as outcome:
        slow.gate.await_arrival()
        if trained_meanwhile:
            await_event(all_trained)
        for index in range(collectors):
            name = f'lzero-async-collector-{index}'
            if name != slow.collector:
                gate.await_blocked(name)
        queue.await_blocked(LEARNER)
        now = run.trainer.get_statistics()
        assert now['train_count'] == trained_meanwhile
        assert now['queue_size'] == (degree - 1 if trained_meanwhile else 0)  # there would be something to train
        slow.gate.open()
        assert outcome.result(TIMEOUT).ended_by == 'max_env_step'
    assert_bounded(run, degree)
    assert run.observer.rounds[trained_meanwhile].staleness == trained_meanwhile  # the batch that was waited for
    assert assert_all_trained_or_dropped(run)['drop_count'] == 0


@pytest.mark.parametrize('degree', [1, 2, 3, 8])
@pytest.mark.parametrize('collectors', [1, 2, 4])
def test_no_bound_is_broken_when_training_runs_ahead(collectors, degree):
    run = make_run(
        degree, ahead=1, collectors=[FakeCollector() for _ in range(collectors)], max_env_step=200,
        max_staleness_allowed=ENDLESS,
    )
    with running(run) as outcome:
        assert outcome.result(TIMEOUT).ended_by == 'max_env_step'
    assert_bounded(run, degree)
    counts = assert_nothing_lost(run)
    assert counts['processed_samples'] == counts['total_generated_samples']
    assert len(run.learner.admitted) == counts['collect_count']


def test_a_gate_that_does_not_hold_ends_the_run(monkeypatch):
    monkeypatch.setattr('lzero_async.core.coordinator.may_collect', lambda *_: True)
    run = make_run(1)
    run.learner.work = lambda *_: await_event(run.coordinator.ending)
    assert_fails(run, 'collector-0', BoundBroken, 'lag must be <= off_policy_degree 1, got 2')


def test_a_bound_that_does_not_hold_ends_the_run(monkeypatch):
    monkeypatch.setattr('lzero_async.core.outstanding.within_bound', lambda *_: True)
    slow = FirstCollect()
    run = make_run(2, collectors=[FakeCollector(work=slow), FakeCollector(work=slow)], max_staleness_allowed=10 ** 9)
    run.observer.work = lambda number: number == 4 and slow.gate.open()
    assert_fails(run, 'learner', BoundBroken, 'staleness must be <= off_policy_degree 2, got ')
    assert all(record.staleness <= 2 for record in run.observer.rounds)


# -------------------------------------------------------------------- nothing is lost


def fail_at(turn):
    def work(now, *_):
        if now == turn:
            raise ValueError(f'at {turn}')
    return work


@pytest.mark.parametrize('degree', [0, 1, 3, 8])
@pytest.mark.parametrize('part, turn', [
    ('collectors', 1), ('collectors', 7), ('learner', 1), ('learner', 6), ('learner', 13), ('observer', 5),
])
def test_nothing_is_lost_by_a_failure(degree, part, turn):
    run = make_run(degree)
    for failing in run.collectors if part == 'collectors' else [getattr(run, part)]:
        failing.work = fail_at(turn)
    with pytest.raises(RoleFailed, match=f'ValueError: at {turn}'):
        run.trainer.run()
    assert_nothing_lost(run)


def test_what_a_failure_leaves_in_the_queue_is_counted():
    run = make_run(3)
    gate = watch(run.coordinator)
    run.learner.work = lambda *_: (gate.await_blocked(COLLECTOR), fail_at(1)(1))
    assert_fails(run, 'learner', ValueError)
    counts = run.trainer.get_statistics()
    assert (counts['total_generated_samples'], counts['processed_samples'], counts['dropped_samples']) == (30, 10, 20)
    assert counts['dropped_stale_samples'] == counts['drop_count'] == 0  # they were not too old


@pytest.mark.parametrize('degree, collectors', [(0, 1), (1, 1), (3, 1), (3, 3), (8, 4)])
def test_nothing_is_lost_by_a_stop(degree, collectors):
    run = make_run(degree, collectors=[FakeCollector() for _ in range(collectors)])
    run.observer.work = lambda number: number == 9 and run.trainer.request_stop()
    assert run.trainer.run().ended_by == 'request_stop'
    counts = assert_all_trained_or_dropped(run)
    assert counts['dropped_samples'] == 0
    assert counts['train_count'] >= 9


# -------------------------------------------------------------------- too old, too stale


def take_seconds(run, clock, seconds, collects=ENDLESS):
    """Call n of the only collector takes seconds(n); with the last of `collects` a stop is requested."""
    def work(call, _):
        clock.advance(seconds(call))
        if call == collects:
            run.trainer.request_stop()

    run.collectors[0].work = work


@pytest.mark.parametrize('degree', [0, 1])
def test_samples_that_are_too_old_are_dropped_and_the_run_goes_on(degree):
    run = make_run(degree, max_sample_age_s=5)
    take_seconds(run, with_clock(run), lambda call: 6 if call % 3 == 0 else 5, collects=13)
    run.trainer.run()
    counts = assert_all_trained_or_dropped(run)
    assert (counts['collect_count'], counts['train_count'], counts['drop_count']) == (13, 9, 4)
    assert (counts['processed_samples'], counts['dropped_stale_samples']) == (90, 40)
    assert (counts['avg_sample_age'], counts['max_sample_age']) == (5, 5)
    assert run.learner.train_iter == 2 * 9  # what is dropped owes nothing


@pytest.mark.parametrize('degree, ahead', [(1, 0), (2, 0), (3, 0), (8, 0), (1, 1), (3, 2)])
def test_whatever_is_dropped_the_run_goes_on_and_its_updates_are_those_of_what_is_not(degree, ahead):
    run = make_run(degree, ahead=ahead, max_sample_age_s=3, max_consecutive_drops=ENDLESS)
    take_seconds(run, with_clock(run), lambda call: call % 5, collects=60)
    run.trainer.run()
    counts = assert_nothing_lost(run)
    assert counts['collect_count'] == 60
    assert counts['drop_count'] >= 12  # each fifth takes 4 seconds by itself
    assert len(run.learner.admitted) == 60 - counts['drop_count']
    assert counts['max_sample_age'] <= 3
    paid_for_nothing = run.trainer._channels.outstanding.paid
    assert run.learner.train_iter == 2 * (len(run.learner.admitted) + paid_for_nothing)
    assert 0 <= paid_for_nothing <= ahead


@pytest.mark.parametrize('degree, allowed, dropped', [(3, 0, 2), (3, 1, 1), (8, 5, 2)])
def test_batches_staler_than_allowed_are_dropped_and_the_run_ends_as_ever(degree, allowed, dropped):
    run = make_run(degree, max_staleness_allowed=allowed, max_env_step=400)
    gate = watch(run.coordinator)
    # As many as the degree are collected with the weights of round 0, and would be 0, 1, 2, ... rounds stale.
    run.learner.work = lambda update, _: update == 1 and gate.await_blocked(COLLECTOR)
    with listening() as ear:
        outcome = run.trainer.run()
    assert outcome.ended_by == 'max_env_step'
    counts = assert_all_trained_or_dropped(run)
    assert counts['drop_count'] == counts['dropped_stale_samples'] / 10 == len(ear.all_with('max_staleness_allowed'))
    assert counts['drop_count'] >= dropped
    assert counts['max_staleness'] <= allowed
    assert all(record.staleness <= allowed for record in run.observer.rounds)
    assert run.learner.train_iter == 2 * counts['train_count']


@pytest.mark.parametrize('degree', [0, 1, 3])
def test_a_run_that_drops_everything_gives_up(degree):
    run = make_run(degree, max_sample_age_s=5, max_consecutive_drops=7)
    take_seconds(run, with_clock(run), lambda call: 6)
    assert_fails(run, 'learner', EverythingDropped, r'the last 7 batches were all dropped \(max_consecutive_drops\)')
    counts = run.trainer.get_statistics()
    assert (counts['drop_count'], counts['train_count'], run.learner.train_iter) == (7, 0, 0)
    assert counts['dropped_stale_samples'] == 70


def test_late_samples_past_the_degree_are_dropped_and_the_rest_of_their_batch_trained():
    # One at a time: call n, from 1, has version 2 * (n - 1), and the samples of the two calls before it.
    late = LateCollector(lambda call: (2 * (call - 2), 2 * (call - 3)) if call >= 3 else ())
    run = make_run(1, collectors=[late], max_env_step=100)
    run.trainer.run()
    counts = assert_all_trained_or_dropped(run)
    assert (counts['train_count'], counts['drop_count']) == (10, 0)
    # Calls 3 to 10 hand over one sample that is one round stale, and one that is two.
    assert (counts['processed_samples'], counts['dropped_stale_samples']) == (108, 8)
    assert counts['max_late_staleness'] == 1
    assert [len(batch.pieces) for batch in run.learner.admitted] == [1, 1] + 8 * [2]
    assert run.learner.train_iter == 20


@pytest.mark.parametrize('degree', [2, 3, 8])
def test_late_samples_never_pass_the_degree(degree):
    late = LateCollector(lambda call: {0, *late.seen[-12:-1:3]} if call > 12 else ())
    late.seen = []
    late.work = lambda *_: late.seen.append(late.snapshots[-1].policy_version)
    run = make_run(degree, collectors=[late], max_env_step=400)
    run.trainer.run()
    assert_bounded(run, degree)
    counts = assert_all_trained_or_dropped(run)
    assert counts['drop_count'] == 0
    assert 0 < counts['dropped_stale_samples'] < 400


# -------------------------------------------------------------------- weights that do not come


@pytest.mark.parametrize('degree, role', [(0, 'collector'), (1, 'collector-0'), (3, 'collector-0')])
def test_weights_that_never_arrive_again_end_the_run(degree, role):
    run = make_run(degree, collectors=[DeafCollector(lambda version: version > 0)], max_sync_retries=1)
    assert_fails(run, role, WeightsTooStale, 'holds the weights of round 0, .* did not reach it')
    # Staleness 0 to degree, all with the first weights.
    assert [batch.policy_version for batch in run.learner.admitted] == [0] * (degree + 1)
    assert assert_all_trained_or_dropped(run)['sync_failures'] >= 1
    assert_bounded(run, max(1, degree))


def test_old_weights_are_used_while_the_bound_allows():
    run = make_run(3, collectors=[DeafCollector(lambda version: 0 < version < 6)], max_env_step=200)
    assert run.trainer.run().ended_by == 'max_env_step'
    versions = [snapshot.policy_version for snapshot in run.collectors[0].snapshots]
    assert versions[:3] == [0, 0, 0] and versions[4] >= 6
    assert not {2, 4} & set(versions)
    assert_bounded(run, 3)
    assert assert_all_trained_or_dropped(run)['drop_count'] == 0


def test_collection_pauses_and_goes_on_once_weights_arrive_again():
    with listening() as ear:
        deaf = DeafCollector(lambda version: version > 0 and not ear.all_with('collection pauses'))
        run = make_run(2, collectors=[deaf], max_env_step=100, max_sync_retries=0)
        gate = watch(run.coordinator)

        def work(update, _):
            if update == 1:
                gate.await_blocked(COLLECTOR)  # two batches are collected
            if update == 5:  # of the third round: a fourth with the same weights would be too stale
                ear.await_message('collection pauses: collector-0 holds the weights of round 0, 2 rounds are trained')

        run.learner.work = work
        assert run.trainer.run().ended_by == 'max_env_step'
    versions = [snapshot.policy_version for snapshot in deaf.snapshots]
    assert versions[:3] == [0, 0, 0] and versions[3] in (4, 6)  # of the second round, or already of the third
    assert len(versions) == 10
    assert_bounded(run, 2)
    assert assert_all_trained_or_dropped(run)['sync_failures'] >= 2


@pytest.mark.parametrize('degree, role', [(0, 'collector'), (1, 'collector-0'), (3, 'collector-0')])
def test_weights_that_stay_non_finite_end_the_run(degree, role):
    run = make_run(degree, learner=WildLearner(lambda train_iter: train_iter > 4))  # finite up to round 2
    assert_fails(run, role, WeightsTooStale, 'holds the weights of round 2, .* no newer ones were published')
    counts = assert_all_trained_or_dropped(run)
    assert counts['train_count'] == 2 + degree + 1  # staleness 0 to degree with the last good weights
    assert counts['non_finite_weights'] == degree + 1
    assert counts['current_param_version'] == 4
    assert max(snapshot.policy_version for snapshot in run.collectors[0].snapshots) == 4


@pytest.mark.parametrize('degree, wild_rounds, in_time', [
    (1, 1, True),
    (1, 2, False),
    (3, 3, True),
    (3, 4, False),
    (8, 8, True),
])
def test_weights_that_are_finite_again_in_time(degree, wild_rounds, in_time):
    run = make_run(degree, learner=WildLearner(lambda train_iter: 2 < train_iter <= 2 + 2 * wild_rounds),
                   max_env_step=300)
    if in_time:
        assert run.trainer.run().ended_by == 'max_env_step'
        assert run.trainer.get_statistics()['train_count'] == 30
    else:
        assert_fails(run, 'collector-0', WeightsTooStale)
    assert assert_all_trained_or_dropped(run)['non_finite_weights'] == wild_rounds
    assert_bounded(run, degree)


@pytest.mark.parametrize('degree', [0, 1, 3])
def test_rounds_without_updates_do_not_make_weights_stale(degree):
    run = make_run(degree, learner=FakeLearner(updates=0, sufficient=False))
    run.collectors[0].work = lambda call, _: call == 20 and run.trainer.request_stop()
    run.trainer.run()
    assert run.collectors[0].loaded == [(0, 'weights-0')]
    assert assert_all_trained_or_dropped(run)['train_count'] == 20
    assert_bounded(run, max(1, degree))
