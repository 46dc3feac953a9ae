import dataclasses

import pytest
from fakes import FakeCollector
from loops import make_loops

from lzero_async.core.segments import Collected, Piece, SegmentBatch, Stamp

OLD, OWN = Piece(policy_version=20, segments=[1], transitions=3, nbytes=100), Piece(40, [2, 3], 5, 11)
BATCH = SegmentBatch(
    (OLD, OWN), env_step=8, stamp=Stamp(policy_version=40, rounds_at_pull=4, pulled_at=100.0),
    earlier=(Stamp(10, 1, 70.0), Stamp(20, 2, 80.0)), collected_at=102.5, slot=7,
)


@pytest.mark.parametrize('train_count, staleness', [(4, 0), (5, 1), (9, 5)])
def test_staleness_is_the_rounds_finished_since_the_pull(train_count, staleness):
    assert BATCH.staleness(train_count) == BATCH.stamp.staleness(train_count) == staleness


def test_age_is_the_time_since_the_pull():
    assert BATCH.age(103.0) == BATCH.stamp.age(103.0) == 3.0


def test_a_batch_is_as_old_as_the_weights_pulled_for_it():
    assert (BATCH.policy_version, BATCH.rounds_at_pull, BATCH.pulled_at) == (40, 4, 100.0)


def test_a_batch_is_the_sum_of_its_pieces():
    assert (BATCH.transitions, BATCH.nbytes) == (8, 111)
    assert BATCH.keeping([OWN]) == dataclasses.replace(BATCH, pieces=(OWN,))
    assert (BATCH.keeping([OWN]).transitions, BATCH.keeping([]).transitions) == (5, 0)


def test_a_piece_has_the_stamp_of_the_version_that_collected_it():
    assert BATCH.stamp_of(OLD) == Stamp(20, 2, 80.0)
    assert BATCH.stamp_of(OWN) is BATCH.stamp
    with pytest.raises(KeyError):
        BATCH.stamp_of(Piece(30, [], 0))


def test_the_oldest_weights_come_first_and_then_the_first_pull():
    def batch(rounds, slot):
        return SegmentBatch((), 0, Stamp(0, rounds, 0.0), (), 0.0, slot)

    ordered = [batch(1, 5), batch(2, 3), batch(2, 4), batch(3, 0)]
    assert sorted(reversed(ordered), key=lambda one: one.order) == ordered


def test_all_of_a_collect_in_one_piece():
    collected = Collected.of(40, segments='played', transitions=5, env_steps=50)
    assert collected == Collected((Piece(40, 'played', 5, 0),), 50)


def test_a_collect_tells_its_own_steps_and_a_batch_those_of_the_run():
    loops = make_loops(degree=9, collectors=[FakeCollector(steps=10), FakeCollector(steps=3)])
    assert [loops.collect(index).env_step for index in (0, 0, 1, 0, 1)] == [10, 20, 23, 33, 36]


def test_steps_that_became_no_samples_are_steps_all_the_same():
    class Fruitless(FakeCollector):
        def collect(self, snapshot, keep_going):
            return dataclasses.replace(super().collect(snapshot, keep_going), env_steps=7)

    loops = make_loops(degree=9, collectors=[Fruitless(steps=2)])
    batches = [loops.collect() for _ in range(3)]
    assert [(batch.transitions, batch.env_step) for batch in batches] == [(2, 7), (2, 14), (2, 21)]


def test_a_collect_that_fails_has_made_no_steps():
    def fails_at_2(call, _):
        if call == 2:
            raise ValueError('broken')

    loops = make_loops(degree=9, collectors=[FakeCollector(steps=10, work=fails_at_2)])
    loops.collect()
    with pytest.raises(ValueError, match='broken'):
        loops.collect()
    assert loops.collect().env_step == 20


@pytest.mark.parametrize('value, name', [
    (BATCH, 'env_step'), (BATCH.stamp, 'policy_version'), (OWN, 'transitions'), (Collected((), 0), 'env_steps'),
])
def test_what_crosses_threads_is_frozen(value, name):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, 5)
