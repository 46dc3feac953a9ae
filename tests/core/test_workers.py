"""One turn of each role, taken by the test itself."""
from types import SimpleNamespace

import pytest
from fakes import (
    TIMEOUT,
    FakeClock,
    FakeCollector,
    FakeLearner,
    FakeObserver,
    WatchedCoordinator,
    nothing,
    start,
    watch,
)

from lzero_async.core.activity import Activity
from lzero_async.core.errors import QueueClosed, Stopped
from lzero_async.core.protocols import RoundRecord
from lzero_async.core.segment_queue import SegmentQueue
from lzero_async.core.segments import Collected, SegmentBatch
from lzero_async.core.stop import RunLimits, StopSignal
from lzero_async.core.weights import WeightStore
from lzero_async.core.workers import CollectorLoop, LearnerLoop


def make_loops(degree=2, ahead=0, collector=None, learner=None, max_env_step=1000, max_train_iter=1000):
    clock = FakeClock(100.0)
    made = SimpleNamespace(
        clock=clock,
        coordinator=WatchedCoordinator(degree, max_train_ahead=ahead, clock=clock),
        queue=SegmentQueue(10),
        stop=StopSignal(),
        collector=collector or FakeCollector(),
        learner=learner or FakeLearner(),
        observer=FakeObserver(),
    )
    made.store = WeightStore(made.learner.snapshot(with_state=False))
    made.collect = CollectorLoop(made.collector, made.coordinator, made.queue, made.store, made.stop, clock).step
    made.train = LearnerLoop(
        made.learner, made.coordinator, made.queue, made.store, RunLimits(max_env_step, max_train_iter), made.stop,
        made.observer, clock,
    ).step
    return made


def counts(loops):
    statistics = loops.coordinator.get_statistics()
    return statistics['collect_count'], statistics['train_count']


# -------------------------------------------------------------------- the collector


def test_a_batch_is_stamped_with_the_weights_it_was_collected_with():
    loops = make_loops(degree=2)
    loops.collector.work = lambda *_: loops.clock.advance(3)
    first, second = loops.collect(), loops.collect()
    assert loops.train() is None  # 2 updates
    third = loops.collect()
    collected = Collected(segments=1, transitions=10, env_step=10)
    assert first == SegmentBatch(collected, policy_version=0, rounds_at_pull=0, pulled_at=100.0, collected_at=103.0)
    assert (second.policy_version, second.rounds_at_pull, second.pulled_at) == (0, 0, 103.0)
    assert (third.policy_version, third.rounds_at_pull, third.pulled_at) == (2, 1, 106.0)
    assert [snapshot.weights for snapshot in loops.collector.snapshots] == ['weights-0', 'weights-0', 'weights-2']
    assert loops.queue.take() is second
    assert loops.queue.take() is third


def test_a_batch_reaches_the_learner_only_when_its_round_is_counted():
    loops = make_loops()
    seen = []
    put = loops.queue.put
    loops.queue.put = lambda batch: (seen.append(counts(loops)), put(batch))
    loops.collect()
    assert seen == [(1, 0)]


def test_a_collector_told_to_stop_counts_nothing():
    loops = make_loops()
    loops.stop.abort('enough')
    with pytest.raises(Stopped):
        loops.collect()
    assert counts(loops) == (0, 0)
    assert loops.queue.statistics().total_produced == 0


def test_a_collector_ends_when_nobody_takes_batches():
    loops = make_loops()
    loops.queue.close()
    with pytest.raises(QueueClosed):
        loops.collect()


# -------------------------------------------------------------------- the learner


def test_what_an_observer_is_told():
    loops = make_loops(degree=3)
    loops.collector.work = loops.learner.work = lambda *_: loops.clock.advance(1)
    loops.collect()
    loops.collect()
    loops.train()
    loops.train()
    assert loops.observer.rounds == [
        # pulled at 100, trained from 102 on: two collects of a second each
        RoundRecord(round=1, train_iter=2, env_step=10, updates=2, policy_version=2, staleness=0, sample_age=2.0,
                    lag=1, queue_size=1, off_policy_degree=3,
                    activity=Activity(4.0, {'collect': 2.0, 'train': 2.0, 'eval': 0.0}, 0.0)),
        # pulled at 101 with no round trained, trained from 104 on with one
        RoundRecord(round=2, train_iter=4, env_step=20, updates=2, policy_version=4, staleness=1, sample_age=3.0,
                    lag=0, queue_size=0, off_policy_degree=3,
                    activity=Activity(6.0, {'collect': 2.0, 'train': 4.0, 'eval': 0.0}, 0.0)),
    ]


def test_weights_are_published_before_the_round_counts():
    loops = make_loops()
    seen = []
    publish = loops.store.publish
    loops.store.publish = lambda snapshot: (publish(snapshot), seen.append((snapshot.policy_version, counts(loops))))
    loops.collect()
    loops.train()
    assert seen == [(2, (1, 0))]
    assert loops.store.latest().policy_version == 2


@pytest.mark.parametrize('limits, sufficient, reached', [
    ({}, True, None),
    ({'max_env_step': 10}, True, 'max_env_step'),
    ({'max_env_step': 11}, True, None),
    ({'max_train_iter': 2}, True, 'max_train_iter'),
    ({'max_train_iter': 3}, True, None),
    ({'max_env_step': 10, 'max_train_iter': 2}, False, None),
])
def test_limits_are_looked_at_after_a_round_with_enough_data(limits, sufficient, reached):
    loops = make_loops(learner=FakeLearner(sufficient=sufficient), **limits)
    loops.collect()
    assert loops.train() == reached
    assert counts(loops) == (1, 1)


def test_a_round_left_before_its_end_is_published_and_not_counted():
    loops = make_loops(learner=FakeLearner(updates=5))
    loops.learner.work = lambda update, _: loops.stop.interrupt() if update == 3 else None
    loops.collect()
    with pytest.raises(Stopped):
        loops.train()
    assert loops.learner.rounds == [3]
    assert loops.store.latest().policy_version == 3
    assert counts(loops) == (1, 0)
    assert loops.observer.rounds == []


def test_the_learner_ends_after_the_last_batch():
    loops = make_loops()
    loops.collect()
    loops.queue.close()
    loops.train()
    with pytest.raises(QueueClosed):
        loops.train()
    assert counts(loops) == (1, 1)


def test_training_ahead():
    loops = make_loops(degree=2, ahead=2)
    loops.collect()
    for _ in range(3):  # its own round, and two in advance
        loops.train()
    assert (loops.learner.rounds, loops.learner.aheads) == ([2], [2, 2])
    assert counts(loops) == (1, 3)
    assert not loops.coordinator.can_train()
    assert [record.staleness for record in loops.observer.rounds] == [0, 0, 0]

    # The next two batches are paid for: admitted, not trained, no round told.
    loops.collect()
    loops.collect()
    loops.train()
    loops.train()
    assert len(loops.learner.admitted) == 3
    assert counts(loops) == (3, 3)
    assert (len(loops.learner.rounds), len(loops.observer.rounds)) == (1, 3)

    loops.collect()
    loops.train()
    assert len(loops.learner.rounds) == 2
    assert counts(loops) == (4, 4)


class Waiting(Exception):
    """Raised in place of the wait for a batch."""


def wait_for_a_batch():
    raise Waiting


def test_nothing_is_trained_ahead_before_the_first_batch_is_admitted():
    loops = make_loops(degree=2, ahead=2)
    loops.coordinator.run_collect(nothing)  # the collector is about to queue its batch
    loops.queue.take = wait_for_a_batch
    with pytest.raises(Waiting):
        loops.train()
    assert loops.learner.aheads == []


def test_nothing_is_trained_ahead_after_a_round_without_updates():
    loops = make_loops(degree=2, ahead=2, learner=FakeLearner(updates=0, sufficient=False))
    loops.collect()
    loops.train()
    loops.queue.take = wait_for_a_batch
    with pytest.raises(Waiting):
        loops.train()
    assert counts(loops) == (1, 1)  # else the next batches would be admitted as paid for, and never trained


def test_nothing_is_trained_ahead_once_a_stop_is_requested():
    loops = make_loops(degree=2, ahead=2)
    queue = watch(loops.queue)
    loops.collect()
    loops.train()
    loops.stop.request('enough')
    learner = start(loops.train, 'learner')
    queue.await_blocked('learner')  # it waits for a batch that may still come
    loops.queue.close()
    assert isinstance(learner.exception(TIMEOUT), QueueClosed)
    assert loops.learner.aheads == []
