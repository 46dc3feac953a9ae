"""Strictly on-policy rounds: as a bare class in a plain loop, with threads, and in whole runs of fakes."""
import contextlib
import itertools

import numpy as np
import pytest
from fakes import (
    TIMEOUT,
    Broken,
    FakeClock,
    FakeCollector,
    FakeEvaluator,
    FakeLearner,
    FakeObserver,
    Gate,
    at_once,
    make_run,
    our_threads,
    start,
)

from lzero_async.core import on_policy
from lzero_async.core.config import AsyncConfig
from lzero_async.core.coordinator import AsyncTrainingCoordinator
from lzero_async.core.errors import BoundBroken, ConfigError, LzeroAsyncError, RoleFailed, Stopped
from lzero_async.core.on_policy import OnPolicyRecord, OnPolicyRounds
from lzero_async.core.on_policy_collector import OnPolicyCollector
from lzero_async.core.segments import Collected, Piece
from lzero_async.core.stop import RunLimits, StopSignal
from lzero_async.core.trainer import AsyncTrainer
from lzero_async.core.weights import WeightSnapshot

# A run that hangs does so in the main thread, where only this ends it.
pytestmark = pytest.mark.timeout(60)

ENVIRONMENTS = 32
EACH = 32
BATCH = ENVIRONMENTS * EACH  # 1024


def breaks(*_):
    raise Broken('in the update')


def fill(rounds, samples=None):
    """Store one sample after the other until the batch is full."""
    for sample in itertools.count() if samples is None else samples:
        assert rounds.store(sample)
        if rounds.should_sync_update():
            return


def full(size=3, **arguments):
    rounds = OnPolicyRounds(size, **arguments)
    fill(rounds)
    return rounds


# -------------------------------------------------------------------- the plain loop


def test_it_begins_empty_and_collecting():
    rounds = OnPolicyRounds(BATCH)
    assert rounds.collection_enabled
    assert not rounds.should_sync_update()
    assert (rounds.policy_version, rounds.samples_collected_this_round, rounds.refused_samples) == (0, 0, 0)
    assert rounds.sync_batch_size == BATCH
    assert rounds.last_round is None


def test_rounds_of_32_environments_with_32_samples_each():
    rounds = OnPolicyRounds(BATCH)
    updates = []
    for version in range(3):
        for step, environment in itertools.product(range(EACH), range(ENVIRONMENTS)):
            assert rounds.collection_enabled
            assert not rounds.should_sync_update()
            assert rounds.samples_collected_this_round == step * ENVIRONMENTS + environment
            assert rounds.store((environment, step, version), rounds.policy_version)
        assert rounds.should_sync_update()
        assert not rounds.collection_enabled
        rounds.sync_update(updates.append)
        assert (rounds.policy_version, rounds.samples_collected_this_round) == (version + 1, 0)
    assert updates == [
        [(environment, step, version) for step in range(EACH) for environment in range(ENVIRONMENTS)]
        for version in range(3)
    ]
    assert rounds.refused_samples == 0


def test_the_last_sample_turns_collection_off():
    rounds = OnPolicyRounds(BATCH)
    for sample in range(BATCH - 1):
        rounds.store(sample)
    assert (rounds.collection_enabled, rounds.should_sync_update()) == (True, False)
    assert rounds.store(BATCH - 1)
    assert (rounds.collection_enabled, rounds.should_sync_update()) == (False, True)


def test_the_update_turns_collection_on_again():
    rounds = full()
    rounds.sync_update()
    assert (rounds.collection_enabled, rounds.should_sync_update()) == (True, False)
    assert rounds.store('first of the next round')
    assert rounds.samples_collected_this_round == 1


@pytest.mark.parametrize('version', [None, 0, 1])
def test_a_sample_is_refused_and_counted_while_collection_is_off(version):
    rounds = full(3)
    assert rounds.store('late', version) is False
    assert (rounds.samples_collected_this_round, rounds.refused_samples) == (3, 1)
    updated = []
    rounds.sync_update(updated.extend)
    assert updated == [0, 1, 2]


def test_a_sample_is_refused_during_the_update():
    rounds = full(3)
    answers = rounds.sync_update(lambda samples: [rounds.store('late'), rounds.collection_enabled])
    assert answers == [False, False]
    assert (rounds.samples_collected_this_round, rounds.refused_samples) == (0, 1)


@pytest.mark.parametrize('version', [6, 8, 0])
def test_a_sample_of_another_version_is_refused_and_counted(version):
    rounds = OnPolicyRounds(2, policy_version=7)
    assert rounds.store('other', version) is False
    assert (rounds.samples_collected_this_round, rounds.refused_samples) == (0, 1)
    fill(rounds, ['a', 'b'])
    assert rounds.sync_update(list) == ['a', 'b']


def test_a_sample_of_the_round_before_is_refused():
    rounds = full()
    before = rounds.policy_version
    rounds.sync_update()
    assert not rounds.store('late', before)
    assert rounds.store('in time', before + 1)


def test_a_refused_call_counts_all_its_samples():
    rounds = OnPolicyRounds(10)
    rounds.store('other', 5, count=7)
    rounds.store('fills it', count=10)
    rounds.store('late', count=4)
    assert rounds.refused_samples == 7 + 4


# -------------------------------------------------------------------- segments


@pytest.mark.parametrize('size, count, segments', [
    (1, 1, 1),
    (1024, 32, 32),
    (35, 10, 4),  # 40 samples
    (35, 35, 1),
    (35, 34, 2),  # 68 samples
    (35, 1000, 1),
])
def test_a_round_of_segments_has_at_least_the_batch_in_as_few_as_needed(size, count, segments):
    rounds = OnPolicyRounds(size)
    for number in range(segments):
        assert not rounds.should_sync_update()
        assert rounds.store(number, count=count)
    assert rounds.should_sync_update()
    assert rounds.samples_collected_this_round == segments * count
    assert rounds.sync_update(len) == segments
    assert rounds.last_round.batch_size == segments * count


def test_what_a_segment_has_too_much_does_not_count_for_the_next_round():
    rounds = OnPolicyRounds(10)
    rounds.store('long', count=19)
    rounds.sync_update()
    assert rounds.samples_collected_this_round == 0
    rounds.store('short', count=9)
    assert rounds.collection_enabled


def test_an_empty_segment_is_taken_and_fills_nothing():
    rounds = OnPolicyRounds(1)
    assert rounds.store('empty', count=0)
    assert (rounds.samples_collected_this_round, rounds.collection_enabled) == (0, True)


# -------------------------------------------------------------------- threads


@pytest.mark.parametrize('count', [1, 8])
def test_32_threads_at_once_fill_each_round_exactly(count):
    rounds = OnPolicyRounds(BATCH)

    def store(number):  # 40 samples, so that all threads offer 1280
        offered = [(number, call) for call in range(40 // count)]
        return [sample for sample in offered if rounds.store(sample, rounds.policy_version, count)]

    for finished in range(1, 4):
        stored = set(itertools.chain.from_iterable(at_once(store, threads=ENVIRONMENTS)))
        assert len(stored) * count == BATCH
        assert rounds.refused_samples == finished * (1280 - BATCH)
        assert set(rounds.sync_update(list)) == stored
        assert rounds.last_round.batch_size == BATCH


@pytest.mark.parametrize('count', [1, 3])
def test_no_thread_stores_more_than_the_batch_has_room_for(restless_in, count):
    restless_in(on_policy)
    rounds = OnPolicyRounds(30)
    stored = sum(map(sum, at_once(lambda _: [rounds.store('sample', count=count) for _ in range(10)], threads=8)))
    assert stored * count == rounds.samples_collected_this_round == 30
    assert rounds.refused_samples == 8 * 10 * count - 30
    assert rounds.sync_update(len) == stored


def test_threads_store_and_update_as_they_like(restless_in):
    restless_in(on_policy)
    rounds = OnPolicyRounds(10)
    updates, offered = [], 40

    def store_and_update(number):
        accepted = 0
        for step in range(offered):
            version = rounds.policy_version
            accepted += rounds.store((version, number, step), version)
            if rounds.should_sync_update():
                with contextlib.suppress(LzeroAsyncError):  # another thread came first
                    rounds.sync_update(updates.append)
        return accepted

    accepted = sum(at_once(store_and_update, threads=8))
    assert accepted + rounds.refused_samples == 8 * offered
    assert accepted == sum(map(len, updates)) + rounds.samples_collected_this_round
    assert [len(samples) for samples in updates] == [10] * rounds.policy_version
    for version, samples in enumerate(updates):
        assert {sample[0] for sample in samples} == {version}
        assert len(set(samples)) == 10


def test_of_several_threads_one_makes_the_update(restless_in):
    restless_in(on_policy)
    rounds = OnPolicyRounds(3)
    updates = []

    def try_to_update(_):
        try:
            return rounds.sync_update(lambda samples: updates.append(samples) or 'updated')
        except LzeroAsyncError:
            return 'refused'

    for finished in range(1, 31):
        fill(rounds)
        assert sorted(at_once(try_to_update, threads=8)) == ['refused'] * 7 + ['updated']
        assert rounds.policy_version == finished
    assert updates == [[0, 1, 2]] * 30


def test_a_second_update_is_refused_while_one_is_under_way():
    rounds = full(3)
    gate = Gate()
    first = start(lambda: rounds.sync_update(gate))
    gate.await_arrival()
    assert not rounds.should_sync_update()
    with pytest.raises(LzeroAsyncError, match='while an update is under way'):
        rounds.sync_update(breaks)
    gate.open()
    first.result(TIMEOUT)
    assert rounds.policy_version == 1


def test_every_member_answers_while_an_update_is_under_way():
    rounds = full(3)
    gate = Gate()
    first = start(lambda: rounds.sync_update(gate))
    gate.await_arrival()
    answers = start(lambda: (
        rounds.policy_version, rounds.collection_enabled, rounds.samples_collected_this_round, rounds.store('late'),
        rounds.refused_samples, rounds.last_round, rounds.get_statistics()['sync_rounds'],
    ))
    assert answers.result(TIMEOUT) == (0, False, 3, False, 1, None, 0)
    gate.open()
    first.result(TIMEOUT)


# -------------------------------------------------------------------- the update


def test_the_update_gets_a_list_of_its_own_and_its_result_is_returned():
    rounds = full(3)

    def update(samples):
        samples.clear()
        raise Broken

    with pytest.raises(Broken):
        rounds.sync_update(update)
    assert rounds.sync_update(lambda samples: ('loss', samples)) == ('loss', [0, 1, 2])


@pytest.mark.parametrize('stored', [0, 1, 2])
def test_an_update_before_the_batch_is_full_is_refused(stored):
    rounds = OnPolicyRounds(3)
    for sample in range(stored):
        rounds.store(sample)
    updated = []
    with pytest.raises(
        LzeroAsyncError, match=rf'^sync_update needs a full batch of sync_batch_size 3 samples, got {stored}$'
    ):
        rounds.sync_update(updated.append)
    assert updated == []
    assert (rounds.policy_version, rounds.samples_collected_this_round) == (0, stored)
    assert rounds.collection_enabled


def test_a_second_update_of_the_same_round_is_refused():
    rounds = full(3)
    rounds.sync_update()
    with pytest.raises(LzeroAsyncError, match=r'got 0$'):
        rounds.sync_update()
    assert rounds.policy_version == 1


@pytest.mark.parametrize('error', [Broken, KeyboardInterrupt, SystemExit, Stopped])
def test_an_update_that_raises_leaves_the_round_full_and_can_be_tried_again(error):
    rounds = full(3)

    def fails(samples):
        raise error('at once')

    for _ in range(2):
        with pytest.raises(error):
            rounds.sync_update(fails)
        assert rounds.should_sync_update()
        assert (rounds.policy_version, rounds.samples_collected_this_round) == (0, 3)
        assert (rounds.collection_enabled, rounds.last_round) == (False, None)
    assert not rounds.store('late')
    assert rounds.sync_update(list) == [0, 1, 2]
    assert (rounds.policy_version, rounds.get_statistics()['sync_rounds']) == (1, 1)


def test_a_new_version_that_raises_leaves_the_round_full():
    rounds = full(3)
    with pytest.raises(Broken):
        rounds.sync_update(new_version=breaks)
    assert rounds.should_sync_update()
    assert (rounds.policy_version, rounds.samples_collected_this_round) == (0, 3)


def test_the_new_version_is_asked_for_after_the_update():
    rounds = OnPolicyRounds(1, policy_version=4)
    events = []
    rounds.store('only')
    rounds.sync_update(lambda samples: events.append('update'), lambda: events.append('version') or 9)
    assert events == ['update', 'version']
    assert rounds.policy_version == 9
    assert rounds.last_round.policy_version == 4
    assert not rounds.store('late', 5)
    assert rounds.store('in time', 9)


def test_without_a_new_version_it_is_raised_by_one():
    rounds = full(policy_version=41)
    rounds.sync_update()
    assert rounds.policy_version == 42


def test_an_update_that_changes_nothing_keeps_its_version():
    rounds = full(policy_version=4)
    rounds.sync_update(new_version=lambda: 4)
    assert (rounds.policy_version, rounds.collection_enabled) == (4, True)


@pytest.mark.parametrize('version', [3, -1, None, 5.5, '5', True])
def test_a_new_version_that_is_no_int_or_goes_back_is_refused(version):
    rounds = full(policy_version=4)
    with pytest.raises(LzeroAsyncError, match='version'):
        rounds.sync_update(new_version=lambda: version)


def test_a_round_with_a_sample_of_another_version_is_a_defect_and_not_trained():
    rounds = full(3, policy_version=7)
    rounds._samples[1] = ('from nowhere', 6)
    updated = []
    with pytest.raises(BoundBroken, match=r'^every sample of a round must be of version 7, got 6$'):
        rounds.sync_update(updated.append)
    assert updated == []


# -------------------------------------------------------------------- records, times and statistics


def test_the_record_of_a_round():
    clock = FakeClock(100.0)
    rounds = OnPolicyRounds(20, policy_version=3, clock=clock)
    rounds.store('other', 2, count=5)
    clock.advance(4.0)
    rounds.store('a', count=15)
    clock.advance(3.0)
    rounds.store('b', count=15)
    rounds.store('late', count=2)
    rounds.sync_update(lambda samples: clock.advance(2.5))
    assert rounds.last_round == OnPolicyRecord(
        batch_size=30, policy_version=3, collection_time=7.0, update_time=2.5, samples_collected=30, refused_samples=7
    )


def test_times_of_the_second_round_begin_with_it():
    clock = FakeClock(100.0)
    rounds = full(1, clock=clock)
    rounds.sync_update(lambda samples: clock.advance(8.0))
    clock.advance(2.0)
    rounds.store('second')
    rounds.sync_update(lambda samples: clock.advance(0.5))
    last = rounds.last_round
    assert (last.collection_time, last.update_time, last.samples_collected) == (2.0, 0.5, 2)


def test_waiting_for_the_update_counts_as_neither():
    clock = FakeClock()
    rounds = OnPolicyRounds(1, clock=clock)
    clock.advance(1.0)
    rounds.store('only')
    clock.advance(60.0)
    rounds.sync_update(lambda samples: clock.advance(2.0))
    assert (rounds.last_round.collection_time, rounds.last_round.update_time) == (1.0, 2.0)


def test_the_update_time_is_that_of_the_attempt_that_went_well():
    clock = FakeClock()
    rounds = full(1, clock=clock)
    with pytest.raises(Broken):
        rounds.sync_update(lambda samples: (clock.advance(60.0), breaks()))
    rounds.sync_update(lambda samples: clock.advance(2.0))
    assert rounds.last_round.update_time == 2.0


def test_a_record_does_not_follow_later_rounds():
    rounds = full(2)
    rounds.sync_update()
    first = rounds.last_round
    fill(rounds)
    rounds.store('late')
    rounds.sync_update()
    assert (first.policy_version, first.samples_collected, first.refused_samples) == (0, 2, 0)
    last = rounds.last_round
    assert (last.policy_version, last.samples_collected, last.refused_samples) == (1, 4, 1)


def test_statistics_through_a_round():
    rounds = OnPolicyRounds(10, policy_version=5)
    expected = dict(
        policy_version=5, collection_enabled=True, samples_collected_this_round=0, samples_collected=0,
        refused_samples=0, sync_batch_size=10, sync_rounds=0,
    )
    assert rounds.get_statistics() == expected
    rounds.store('a', count=6)
    rounds.store('other', 4, count=2)
    expected.update(samples_collected_this_round=6, samples_collected=6, refused_samples=2)
    assert rounds.get_statistics() == expected
    rounds.store('b', count=6)
    expected.update(collection_enabled=False, samples_collected_this_round=12, samples_collected=12)
    assert rounds.get_statistics() == expected
    rounds.sync_update()
    expected.update(policy_version=6, collection_enabled=True, samples_collected_this_round=0, sync_rounds=1)
    assert rounds.get_statistics() == expected


def test_statistics_are_a_read_only_copy():
    rounds = OnPolicyRounds(2)
    statistics = rounds.get_statistics()
    with pytest.raises(TypeError, match='read-only'):
        statistics['samples_collected'] = 9
    rounds.store('a')
    assert statistics['samples_collected'] == 0
    assert rounds.get_statistics()['samples_collected'] == 1


def test_statistics_are_consistent_at_any_time(restless_in):
    restless_in(on_policy)
    # Each round adds 7 samples and one version; collection is off exactly while all 7 are there.
    rounds = OnPolicyRounds(7)

    def train(_):
        for _ in range(50):
            fill(rounds)
            rounds.sync_update()

    def read(_):
        for _ in range(200):
            now = rounds.get_statistics()
            assert now['policy_version'] == now['sync_rounds']
            assert now['samples_collected'] == 7 * now['sync_rounds'] + now['samples_collected_this_round']
            assert now['collection_enabled'] == (now['samples_collected_this_round'] < 7)

    at_once(lambda number: train(number) if number == 0 else read(number), threads=4)
    assert rounds.policy_version == 50


# -------------------------------------------------------------------- bad arguments


@pytest.mark.parametrize('size, rule', [
    (0, '>= 1'), (-1, '>= 1'), (1.5, 'an int >= 1'), (True, 'an int >= 1'), ('32', 'an int >= 1'), (None, 'an int >= 1')
])
def test_a_bad_batch_size_is_refused(size, rule):
    with pytest.raises(ConfigError, match=rf'^sync_batch_size must be {rule}, got {size!r}$'):
        OnPolicyRounds(size)


@pytest.mark.parametrize('version, rule', [(-1, '>= 0'), (0.5, 'an int >= 0'), (None, 'an int >= 0')])
def test_a_bad_version_to_begin_with_is_refused(version, rule):
    with pytest.raises(ConfigError, match=rf'^policy_version must be {rule}, got {version!r}$'):
        OnPolicyRounds(1, version)


@pytest.mark.parametrize('count, rule', [
    (-1, '>= 0'), (1.5, 'an int >= 0'), (True, 'an int >= 0'), ('3', 'an int >= 0')
])
def test_a_bad_count_is_refused_and_changes_nothing(count, rule):
    rounds = OnPolicyRounds(1)
    before = rounds.get_statistics()
    with pytest.raises(ConfigError, match=rf'^count must be {rule}, got {count!r}$'):
        rounds.store('sample', count=count)
    assert rounds.get_statistics() == before


def test_numpy_integers_are_integers():
    rounds = OnPolicyRounds(np.int64(4), np.int32(2))
    assert rounds.store('a', np.int64(2), np.int64(4))
    rounds.sync_update()
    assert (rounds.policy_version, rounds.last_round.batch_size) == (3, 4)


# -------------------------------------------------------------------- OnPolicyCollector


class PieceCollector(FakeCollector):
    """`pieces(version, call)` says what a collect returns, as (version, transitions)."""

    def __init__(self, pieces, **arguments):
        super().__init__(**arguments)
        self.pieces = pieces

    def collect(self, snapshot, keep_going):
        collected = super().collect(snapshot, keep_going)
        call = len(self.snapshots)
        pieces = [Piece(version, call, count) for version, count in self.pieces(snapshot.policy_version, call)]
        return Collected(tuple(pieces), collected.env_steps)


def collect_round(collector, rounds, version=0):
    return OnPolicyCollector(collector, rounds, StopSignal()).collect(WeightSnapshot(version, 0, None), lambda: True)


def test_a_collect_goes_on_until_the_batch_is_full():
    collector, rounds = FakeCollector(steps=10), OnPolicyRounds(35)
    collected = collect_round(collector, rounds)
    assert [piece.segments for piece in collected.pieces] == [1, 2, 3, 4]
    assert collected.env_steps == 40
    assert rounds.should_sync_update()


def test_a_collect_without_samples_is_followed_by_another():
    collector = PieceCollector(lambda version, call: [(version, 10)] if call > 2 else [])
    collected = collect_round(collector, OnPolicyRounds(10))
    assert [piece.segments for piece in collected.pieces] == [3]


def test_weights_of_another_version_than_the_round_are_refused():
    collector = FakeCollector()
    with pytest.raises(BoundBroken, match=r'^a round of version 3 must be collected with it, got version 2$'):
        collect_round(collector, OnPolicyRounds(35, policy_version=3), version=2)
    assert collector.snapshots == []


def test_weights_are_handed_to_the_collector():
    collector = FakeCollector()
    OnPolicyCollector(collector, OnPolicyRounds(1), StopSignal()).load_weights('weights', 6)
    assert collector.loaded == [(6, 'weights')]


def test_a_collect_that_is_told_to_stop_does_so_in_the_middle_of_a_round():
    collector, rounds = FakeCollector(), OnPolicyRounds(35)
    answers = iter([True, True, False])
    with pytest.raises(Stopped):
        OnPolicyCollector(collector, rounds, StopSignal()).collect(WeightSnapshot(0, 0, None), lambda: next(answers))
    assert (len(collector.snapshots), rounds.samples_collected_this_round) == (3, 20)


# -------------------------------------------------------------------- whole runs


def assert_on_policy(run, size):
    """All that was trained came in full batches, each of one version, and each was told of."""
    for batch in run.learner.admitted:
        assert batch.transitions >= size
        assert {piece.policy_version for piece in batch.pieces} == {batch.policy_version}
        assert batch.transitions - batch.pieces[-1].transitions < size  # not one collect more than needed
    records = run.observer.on_policy_rounds
    told = [(record.policy_version, record.batch_size) for record in records]
    assert told == [(batch.policy_version, batch.transitions) for batch in run.learner.admitted[:len(records)]]


@pytest.mark.parametrize('size, collects', [(1, 1), (10, 1), (11, 2), (35, 4), (40, 4), (41, 5)])
def test_each_round_is_as_many_collects_as_it_needs(size, collects):
    run = make_run(sync_batch_size=size, max_train_iter=6)  # three rounds of two updates
    outcome = run.trainer.run()
    assert outcome.ended_by == 'max_train_iter'
    versions = [snapshot.policy_version for snapshot in run.collectors[0].snapshots]
    assert versions == [0] * collects + [2] * collects + [4] * collects
    assert [batch.transitions for batch in run.learner.admitted] == [10 * collects] * 3
    assert_on_policy(run, size)


def test_the_records_of_a_run():
    run = make_run(sync_batch_size=35, max_train_iter=6)
    run.trainer.run()
    records = run.observer.on_policy_rounds
    assert [record.batch_size for record in records] == [40, 40, 40]
    assert [record.policy_version for record in records] == [0, 2, 4]
    assert [record.samples_collected for record in records] == [40, 80, 120]
    assert [record.refused_samples for record in records] == [0, 0, 0]


def test_the_statistics_of_a_run():
    run = make_run(sync_batch_size=35, max_train_iter=6)
    before = run.trainer.get_statistics()
    outcome = run.trainer.run()
    names = OnPolicyRounds(35).get_statistics()
    assert {name: before[name] for name in names} == names
    after = dict(names, policy_version=6, samples_collected=120, sync_rounds=3)
    assert {name: outcome.statistics[name] for name in names} == after
    assert outcome.statistics == run.trainer.get_statistics()
    assert outcome.statistics['collect_count'] == outcome.statistics['train_count'] == 3  # a round is one collect
    assert outcome.statistics['total_generated_samples'] == outcome.statistics['processed_samples'] == 120


def test_without_a_batch_size_there_are_no_rounds_to_tell_of():
    run = make_run(max_train_iter=6)
    statistics = run.trainer.run().statistics
    assert run.observer.on_policy_rounds == []
    assert not {'collection_enabled', 'samples_collected_this_round', 'refused_samples'} & set(statistics)


def test_the_order_of_a_run():
    events = []
    log = events.append
    run = make_run(
        collectors=[FakeCollector(log=log)], learner=FakeLearner(log=log), observer=FakeObserver(log=log),
        evaluator=FakeEvaluator(due_at=[2], log=log), sync_batch_size=35, max_train_iter=4,
    )
    events.clear()
    run.trainer.run()
    turn = ['collect', 'collect', 'collect', 'collect', 'admit', 'train', 'snapshot', 'round']
    assert events == [
        *turn, 'on-policy round', 'due?', 'state', 'evaluate', 'evaluation',
        *turn, 'on-policy round',  # the limit is reached: nothing more is evaluated
    ]


def test_collection_is_on_while_collecting_and_off_while_updating():
    seen = []
    run = make_run(evaluator=FakeEvaluator(always=True), sync_batch_size=35, max_train_iter=6)

    def look(role):
        def work(*_):
            now = run.trainer.get_statistics()
            seen.append((role, now['collection_enabled'], now['samples_collected_this_round']))
        return work

    run.collectors[0].work, run.learner.work, run.evaluator.work = look('collect'), look('train'), look('evaluate')
    run.trainer.run()
    a_round = [('collect', True, collected) for collected in (0, 10, 20, 30)] + [('train', False, 40)] * 2
    assert seen == 2 * [*a_round, ('evaluate', True, 0)] + a_round


def test_weights_are_loaded_once_per_round():
    run = make_run(sync_batch_size=35, max_train_iter=6)
    run.trainer.run()
    assert run.collectors[0].loaded == [(0, 'weights-0'), (2, 'weights-2'), (4, 'weights-4')]


def test_a_run_that_begins_at_a_later_version():
    learner = FakeLearner()
    learner.train_iter = 100
    run = make_run(learner=learner, sync_batch_size=35, max_train_iter=104)
    run.trainer.run()
    assert [record.policy_version for record in run.observer.on_policy_rounds] == [100, 102]


def test_a_learner_that_makes_no_updates_keeps_its_version():
    run = make_run(learner=FakeLearner(updates=0), sync_batch_size=35, max_env_step=120)
    run.trainer.run()
    assert [record.policy_version for record in run.observer.on_policy_rounds] == [0, 0, 0]
    assert_on_policy(run, 35)


def test_pieces_of_an_earlier_version_are_refused_and_counted_and_never_trained():
    # From the second round on each collect also hands over 3 samples of the version before: 4 * 3 a round.
    late = PieceCollector(lambda version, _: [(version - 2, 3), (version, 10)] if version else [(version, 10)])
    run = make_run(collectors=[late], sync_batch_size=35, max_train_iter=6)
    outcome = run.trainer.run()
    assert [record.refused_samples for record in run.observer.on_policy_rounds] == [0, 12, 24]
    assert outcome.statistics['refused_samples'] == 24
    assert [[piece.transitions for piece in batch.pieces] for batch in run.learner.admitted] == [[10] * 4] * 3
    assert outcome.statistics['processed_samples'] == run.learner.env_step == 120
    assert_on_policy(run, 35)


def test_pieces_that_come_when_the_batch_is_full_are_refused_and_counted():
    many = PieceCollector(lambda version, _: [(version, 10)] * 5)  # 50 samples, of which 40 fill the batch
    run = make_run(collectors=[many], sync_batch_size=35, max_train_iter=4)
    run.trainer.run()
    assert [record.batch_size for record in run.observer.on_policy_rounds] == [40, 40]
    assert [record.refused_samples for record in run.observer.on_policy_rounds] == [10, 20]
    assert_on_policy(run, 35)


def test_a_round_that_is_dropped_as_too_old_is_not_told_of():
    run = make_run(sync_batch_size=35, max_sample_age_s=1e-12, max_consecutive_drops=3)
    with pytest.raises(RoleFailed, match='EverythingDropped'):
        run.trainer.run()
    assert run.learner.admitted == run.observer.on_policy_rounds == []


@pytest.mark.parametrize('degree', [-1, 1, 4])
def test_rounds_are_refused_unless_the_degree_is_0(degree):
    rule = r'^sync_batch_size must be None unless off_policy_degree is 0 \(serial\), got 35 with off_policy_degree '
    with pytest.raises(ConfigError, match=rf'{rule}{degree}$'):
        make_run(degree, sync_batch_size=35)


def test_rounds_are_refused_with_a_coordinator_that_is_not_serial():
    with AsyncTrainingCoordinator(2) as coordinator, pytest.raises(ConfigError, match='sync_batch_size'):
        AsyncTrainer(
            coordinator, [FakeCollector()], FakeLearner(), FakeEvaluator(), FakeObserver(), RunLimits(100, 100),
            settings=AsyncConfig(sync_batch_size=35),
        )


# -------------------------------------------------------------------- runs that end in the middle of a round


def assert_fails(run, role):
    with pytest.raises(RoleFailed) as failure:
        run.trainer.run()
    assert failure.value.role == role
    assert isinstance(failure.value.__cause__, Broken)
    assert our_threads() == []


def at(turn, action):
    return lambda now, *_: action() if now == turn else None


def test_the_collector_fails_in_the_middle_of_a_round():
    run = make_run(collectors=[FakeCollector(work=at(6, breaks))], sync_batch_size=35)  # the second of round two
    assert_fails(run, 'collector')
    now = run.trainer.get_statistics()
    assert (now['sync_rounds'], now['samples_collected_this_round'], now['collection_enabled']) == (1, 10, True)
    assert (now['collect_count'], now['train_count'], now['generation_errors']) == (1, 1, 1)
    assert (len(run.learner.admitted), len(run.observer.on_policy_rounds)) == (1, 1)
    assert_on_policy(run, 35)


def test_the_learner_fails_in_the_middle_of_an_update():
    run = make_run(learner=FakeLearner(work=at(4, breaks)), sync_batch_size=35)  # the second of round two
    assert_fails(run, 'learner')
    now = run.trainer.get_statistics()
    assert (now['sync_rounds'], now['samples_collected_this_round'], now['collection_enabled']) == (1, 40, False)
    assert (now['collect_count'], now['train_count']) == (2, 1)
    assert len(run.observer.on_policy_rounds) == 1


def test_the_evaluator_fails_between_two_rounds():
    run = make_run(evaluator=FakeEvaluator(due_at=[2], work=breaks), sync_batch_size=35)
    assert_fails(run, 'evaluator')
    assert len(run.collectors[0].snapshots) == 4


def test_an_observer_fails_when_told_of_a_round():
    run = make_run(sync_batch_size=35)
    run.observer.on_policy_round = breaks
    assert_fails(run, 'learner')
    assert run.trainer.get_statistics()['sync_rounds'] == 1


@pytest.mark.parametrize('call', [1, 4, 6, 8])
def test_a_stop_is_requested_in_the_middle_of_collecting(call):
    run = make_run(sync_batch_size=35)
    run.collectors[0].work = at(call, run.trainer.request_stop)
    outcome = run.trainer.run()
    assert outcome.ended_by == 'request_stop'
    counts = outcome.statistics
    assert counts['collect_count'] == counts['train_count'] == len(run.observer.on_policy_rounds)
    assert (outcome.queue.queue_size, outcome.queue.discarded) == (0, 0)
    assert len(run.collectors[0].snapshots) <= 4 * -(-call // 4)  # the round that was begun, and no other
    assert_on_policy(run, 35)


@pytest.mark.parametrize('update', [3, 4])
def test_a_stop_is_requested_in_the_middle_of_an_update(update):
    run = make_run(sync_batch_size=35)
    run.learner.work = at(update, run.trainer.request_stop)
    outcome = run.trainer.run()
    assert (outcome.ended_by, run.learner.train_iter, outcome.statistics['sync_rounds']) == ('request_stop', 4, 2)
    assert (len(run.collectors[0].snapshots), len(run.observer.on_policy_rounds)) == (8, 2)


def test_a_stop_ends_a_round_that_nothing_fills():
    only_late = PieceCollector(lambda version, call: [(version + 1, 10)])
    run = make_run(collectors=[only_late], sync_batch_size=35)
    actions = {3: run.trainer.request_stop, 50: breaks}  # long after it should have ended
    only_late.work = lambda call, _: actions.get(call, lambda: None)()
    assert run.trainer.run().ended_by == 'request_stop'
    assert run.learner.admitted == []


def test_a_stop_requested_before_the_run():
    run = make_run(sync_batch_size=35)
    run.trainer.request_stop('enough')
    assert run.trainer.run().ended_by == 'enough'
    assert run.collectors[0].snapshots == run.observer.on_policy_rounds == []


def test_an_interrupt_in_the_middle_of_collecting_leaves_the_round():
    run = make_run(sync_batch_size=35)
    run.collectors[0].work = at(6, run.trainer._stop.interrupt)
    outcome = run.trainer.run()
    assert outcome.ended_by == 'interrupt'
    assert (len(run.collectors[0].snapshots), len(run.learner.admitted)) == (6, 1)
    assert outcome.statistics['samples_collected_this_round'] == 10


def test_an_interrupt_in_the_middle_of_an_update_leaves_the_round_full():
    run = make_run(sync_batch_size=35)
    run.learner.work = at(3, run.trainer._stop.interrupt)
    outcome = run.trainer.run()
    assert (outcome.ended_by, run.learner.train_iter) == ('interrupt', 3)
    now = outcome.statistics
    assert (now['sync_rounds'], now['samples_collected_this_round'], now['collection_enabled']) == (1, 40, False)
    assert len(run.observer.on_policy_rounds) == 1


@pytest.mark.parametrize('version', [-1, '0', True, 1.0])
def test_a_version_that_is_none_is_refused(version):
    rounds = OnPolicyRounds(3)
    with pytest.raises(ConfigError, match='policy_version must be'):
        rounds.store('sample', version)
    assert rounds.refused_samples == rounds.samples_collected_this_round == 0


def test_a_discarded_round_is_collected_anew():
    rounds = OnPolicyRounds(3, 7)
    with pytest.raises(LzeroAsyncError, match='needs a full round'):
        rounds.discard_round()
    for sample in range(4):
        rounds.store(sample)
    rounds.discard_round()
    assert (rounds.collection_enabled, rounds.policy_version, rounds.samples_collected_this_round) == (True, 7, 0)
    assert rounds.refused_samples == 4
    for sample in range(3):
        rounds.store(sample)
    trained = []
    rounds.sync_update(trained.extend)
    assert trained == [0, 1, 2]
    assert rounds.last_round.samples_collected == 3


def test_a_round_that_nothing_ever_fills_ends_with_an_error():
    only_late = PieceCollector(lambda version, call: [(version + 1, 10)])
    run = make_run(collectors=[only_late], sync_batch_size=35, max_consecutive_drops=4)
    with pytest.raises(RoleFailed, match='the last 4 collects'):
        run.trainer.run()
    assert len(only_late.snapshots) == 4
