"""The learner's turns, taken by the test itself."""
import dataclasses
import threading

import pytest
from fakes import (
    TIMEOUT,
    Broken,
    FakeCollector,
    FakeLearner,
    Gate,
    IdleLearner,
    WatchedCoordinator,
    await_event,
    nothing,
    start,
    watch,
)
from loops import DeafCollector, LateCollector, WildLearner, counts, listening, make_loops, samples

from lzero_async.core.activity import Activity
from lzero_async.core.errors import BoundBroken, EverythingDropped, QueueClosed, Stopped
from lzero_async.core.protocols import RoundRecord, RoundResult
from lzero_async.core.strain import TrainingSignals

ACCOUNT = ('total_generated_samples', 'processed_samples', 'dropped_stale_samples', 'dropped_samples')


def turns(loops, times, collector=0):
    for _ in range(times):
        loops.collect(collector)
        loops.train()


def drop_count(loops):
    return loops.coordinator.get_statistics()['drop_count']


# -------------------------------------------------------------------- a round


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
    publish = loops.weights.publish

    def publish_and_look(snapshot):
        publish(snapshot)
        seen.append((snapshot.policy_version, snapshot.rounds, counts(loops), loops.outstanding.finished))

    loops.weights.publish = publish_and_look
    loops.collect()
    loops.train()
    assert seen == [(2, 1, (1, 0), 0)]
    assert (loops.weights.latest().policy_version, loops.outstanding.finished) == (2, 1)


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
    assert loops.weights.latest().policy_version == 3
    assert counts(loops) == (1, 0)
    assert loops.outstanding.finished == 0
    assert loops.observer.rounds == []


def test_the_learner_ends_after_the_last_batch():
    loops = make_loops()
    loops.collect()
    loops.queue.close()
    loops.train()
    with pytest.raises(QueueClosed):
        loops.train()
    assert counts(loops) == (1, 1)


def test_the_signals_of_a_round_are_reported_while_it_is_trained():
    loops = make_loops()
    seen = []
    loops.coordinator.report_signals = lambda signals: seen.append((signals, counts(loops)))
    train_round = loops.learner.train_round

    def with_signals(keep_going):
        return dataclasses.replace(train_round(keep_going), signals=TrainingSignals(loss=0.5))

    loops.learner.train_round = with_signals
    loops.collect()
    loops.train()
    assert seen == [(TrainingSignals(loss=0.5), (1, 0))]


def test_what_a_learner_replayed_is_told():
    loops = make_loops()
    loops.learner.train_round = lambda _: RoundResult(updates=0, sufficient=True, replayed='ages')
    loops.collect()
    loops.train()
    assert loops.observer.rounds[0].replayed == 'ages'


def test_weights_that_are_not_finite_are_not_published_and_the_round_counts():
    loops = make_loops(degree=3, learner=WildLearner(lambda train_iter: 0 < train_iter < 6))
    turns(loops, 2)
    assert loops.weights.latest().policy_version == 0
    assert loops.weights.get_statistics()['non_finite_weights'] == 2
    assert counts(loops) == (2, 2)
    turns(loops, 2)
    assert [batch.rounds_at_pull for batch in loops.learner.admitted] == [0, 0, 0, 3]
    assert loops.weights.latest().rounds == 4
    assert [record.train_iter for record in loops.observer.rounds] == [2, 4, 6, 8]
    assert [record.policy_version for record in loops.observer.rounds] == [0, 0, 6, 8]
    assert loops.weights.get_statistics()['non_finite_weights'] == 2


# -------------------------------------------------------------------- ahead


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


def wait_for_a_batch(*_):
    raise Waiting


def test_nothing_is_trained_ahead_before_the_first_batch_is_admitted():
    loops = make_loops(degree=2, ahead=2)
    loops.coordinator.run_collect(nothing)  # the collector is about to queue its batch
    loops.queue.wait_for = wait_for_a_batch
    with pytest.raises(Waiting):
        loops.train()
    assert loops.learner.aheads == []


def test_nothing_is_trained_ahead_after_a_round_without_updates():
    loops = make_loops(degree=2, ahead=2, learner=FakeLearner(updates=0, sufficient=False))
    loops.collect()
    loops.train()
    loops.queue.wait_for = wait_for_a_batch
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


def in_flight(loops, index):
    """Start a collect that stays in flight until its gate is opened; returns gate and outcome."""
    gate = Gate()
    loops.collectors[index].work = gate
    outcome = start(lambda: loops.collect(index), f'collector-{index}')
    gate.await_arrival()
    return gate, outcome


def test_nothing_is_trained_ahead_that_would_make_a_batch_in_flight_too_stale():
    loops = make_loops(degree=1, ahead=9)
    turns(loops, 1)
    gate, collecting = in_flight(loops, 0)  # with the weights of round 1: may be trained after one more round
    loops.train()
    assert loops.learner.aheads == [2]
    loops.queue.wait_for = wait_for_a_batch
    with pytest.raises(Waiting):
        loops.train()
    del loops.queue.wait_for
    gate.open()
    assert collecting.result(TIMEOUT).staleness(loops.outstanding.finished) == 1
    loops.train()
    assert (loops.learner.aheads, loops.learner.rounds, len(loops.learner.admitted)) == ([2], [2], 2)
    assert samples(loops, 'max_staleness') == (1,)


def test_a_dropped_batch_that_was_paid_for_leaves_the_payment_to_the_next():
    loops = make_loops(degree=2, ahead=1, max_sample_age_s=5)
    turns(loops, 1)
    loops.train()
    assert loops.outstanding.paid == 1
    loops.collect()
    loops.clock.advance(6)
    loops.train()
    assert (loops.outstanding.paid, drop_count(loops), len(loops.learner.admitted)) == (1, 1, 1)
    turns(loops, 1)
    assert (loops.outstanding.paid, len(loops.learner.admitted)) == (0, 2)
    assert (loops.learner.rounds, loops.learner.aheads) == ([2], [2])
    turns(loops, 1)
    assert loops.learner.rounds == [2, 2]


def test_a_payment_that_an_older_batch_needs_is_kept_for_it():
    loops = make_loops(degree=3, ahead=1, collectors=[FakeCollector() for _ in range(4)])
    queue = watch(loops.queue)
    gates, collecting = zip(*(in_flight(loops, index) for index in (0, 1)))  # both of round 0, good up to round 3
    turns(loops, 1, collector=2)
    loops.train()  # ahead: round 2
    turns(loops, 1, collector=2)  # takes the payment
    loops.train()  # ahead: round 3, so that one of the two must be paid for by it, and both go next
    assert (loops.outstanding.finished, loops.outstanding.paid) == (3, 1)
    loops.collect(3)
    try:
        learner = start(lambda: [loops.train() for _ in range(3)], 'learner')
        queue.await_blocked('learner')
        for gate in gates:
            gate.open()
        for future in collecting:
            future.result(TIMEOUT)
        learner.result(TIMEOUT)
    finally:
        loops.channels.leave()
    assert len(loops.learner.admitted) == 5
    assert samples(loops, 'max_staleness') == (3,)


# -------------------------------------------------------------------- min_batch_count, batch_timeout


def test_so_many_batches_must_wait_before_the_learner_begins():
    loops = make_loops(degree=4, min_batch_count=2, batch_timeout=TIMEOUT)
    queue = watch(loops.queue)
    for trained in (0, 2):
        loops.collect()
        learner = start(loops.train, f'learner-{trained}')
        queue.await_blocked(f'learner-{trained}')
        assert counts(loops) == (trained + 1, trained)
        loops.collect()
        learner.result(TIMEOUT)
        loops.train()  # the second of the two is trained without a wait
        assert counts(loops) == (trained + 2, trained + 2)


def test_more_batches_than_needed_are_counted_off_in_groups():
    loops = make_loops(degree=3, min_batch_count=2)
    for _ in range(3):
        loops.collect()
    waits = []
    wait_for = loops.queue.wait_for
    loops.queue.wait_for = lambda *asked: (waits.append(loops.queue.statistics().queue_size), wait_for(*asked))[1]
    loops.train()
    loops.train()
    loops.collect()
    loops.train()
    assert waits == [3, 2]


def test_fewer_batches_are_trained_after_the_timeout():
    loops = make_loops(degree=3, min_batch_count=3, batch_timeout=0.01)
    with listening() as ear:
        for trained in (1, 2):
            loops.collect()
            loops.train()
            assert counts(loops) == (trained, trained)
    assert ear.messages == 2 * [
        'the learner waited 0.01 s for min_batch_count 3, and goes on with 1: collector-0 is not collecting'
    ]


def test_without_any_batch_the_learner_says_whom_it_waits_for_and_waits_on():
    loops = make_loops(degree=2, batch_timeout=0.01, collectors=[FakeCollector(), FakeCollector()])
    gate, collecting = in_flight(loops, 1)
    with listening() as ear:
        learner = start(loops.train)
        ear.await_message(
            'the learner waited 0.01 s for min_batch_count 1, and waits on: collector-0 is not collecting, '
            'collector-1 has been collecting for 0.0 s'
        )
        assert not learner.done()
        gate.open()
        collecting.result(TIMEOUT)
        learner.result(TIMEOUT)
    assert counts(loops) == (1, 1)


def test_at_the_end_fewer_batches_are_trained_without_a_wait():
    loops = make_loops(degree=2, min_batch_count=2, batch_timeout=TIMEOUT)
    loops.collect()
    loops.queue.close()
    with listening() as ear:
        loops.train()
        with pytest.raises(QueueClosed):
            loops.train()
    assert counts(loops) == (1, 1)
    assert ear.messages == []


# -------------------------------------------------------------------- idle work


def at_piece(number, then):
    """Idle work that does `then` in its piece of that number."""
    return lambda piece: then() if piece == number else None


def assert_kept_apart(loops, rounds):
    """Idle work has left no trace in counts, updates and bounds."""
    assert counts(loops) == (rounds, rounds)
    assert loops.learner.rounds == rounds * [2]
    assert loops.learner.train_iter == 2 * rounds
    assert samples(loops, *ACCOUNT) == (10 * rounds, 10 * rounds, 0, 0)
    assert samples(loops, 'max_staleness') <= (loops.coordinator.off_policy_degree,)
    assert loops.outstanding.idle


def test_idle_work_is_done_to_its_end_and_then_the_learner_waits():
    loops = make_loops(learner=IdleLearner(pieces=3))
    queue = watch(loops.queue)
    for trained in (0, 1):
        learner = start(loops.train, f'learner-{trained}')
        queue.await_blocked(f'learner-{trained}')
        assert loops.learner.done == 3 * (trained + 1)
        loops.collect()
        learner.result(TIMEOUT)
    assert loops.learner.threads == {'learner-0', 'learner-1'}
    assert_kept_apart(loops, rounds=2)


def test_a_batch_that_arrives_amid_idle_work_is_trained_next():
    loops = make_loops(learner=IdleLearner())
    loops.learner.idle = at_piece(5, loops.collect)
    loops.train()
    assert loops.learner.done == 5
    assert_kept_apart(loops, rounds=1)


def test_with_a_batch_at_hand_there_is_no_idle_work():
    loops = make_loops(learner=IdleLearner())
    turns(loops, 3)
    assert loops.learner.done == 0
    assert_kept_apart(loops, rounds=3)


@pytest.mark.parametrize('end', ['request', 'abort', 'interrupt'])
def test_idle_work_ends_with_the_piece_in_which_a_stop_is_asked_for(end):
    loops = make_loops(learner=IdleLearner())
    queue = watch(loops.queue)
    stop = loops.stop.interrupt if end == 'interrupt' else lambda: getattr(loops.stop, end)('enough')
    loops.learner.idle = at_piece(3, stop)
    learner = start(loops.train, 'learner')
    queue.await_blocked('learner')
    assert loops.learner.done == 3
    loops.channels.leave()
    assert isinstance(learner.exception(TIMEOUT), QueueClosed)
    assert loops.learner.done == 3


def test_idle_work_ends_when_nothing_more_can_come():
    loops = make_loops(learner=IdleLearner())
    loops.learner.idle = at_piece(2, loops.queue.close)
    with pytest.raises(QueueClosed):
        loops.train()
    assert loops.learner.done == 2


def test_idle_work_goes_on_until_enough_batches_wait():
    loops = make_loops(learner=IdleLearner(), min_batch_count=2)
    loops.collect()
    loops.learner.idle = at_piece(4, loops.collect)
    loops.train()
    loops.train()
    assert loops.learner.done == 4
    assert_kept_apart(loops, rounds=2)


def test_idle_work_does_not_put_off_the_timeout_after_which_fewer_batches_are_trained():
    loops = make_loops(learner=IdleLearner(), min_batch_count=2, batch_timeout=30)
    loops.collect()
    loops.learner.idle = lambda _: loops.clock.advance(20)
    with listening() as ear:
        loops.train()
    assert loops.learner.done == 2  # after 40 s
    assert ear.messages == [
        'the learner waited 30 s for min_batch_count 2, and goes on with 1: collector-0 is not collecting'
    ]
    assert_kept_apart(loops, rounds=1)


def test_with_no_batch_in_time_the_learner_says_so_and_goes_on_with_idle_work():
    loops = make_loops(learner=IdleLearner(), batch_timeout=30)
    loops.learner.idle = lambda piece: loops.collect() if piece == 5 else loops.clock.advance(20)
    with listening() as ear:
        loops.train()
    assert loops.learner.done == 5
    assert len(ear.all_with('for min_batch_count 1, and waits on')) == 2  # after 40 s and 80 s
    assert_kept_apart(loops, rounds=1)


def test_idle_work_while_a_batch_with_older_weights_is_awaited():
    loops = make_loops(degree=2, collectors=[FakeCollector(), FakeCollector()], learner=IdleLearner())
    gate, collecting = in_flight(loops, 0)
    turns(loops, 2, collector=1)
    loops.collect(1)
    loops.learner.idle = at_piece(3, lambda: (gate.open(), collecting.result(TIMEOUT)))
    loops.train()
    assert loops.learner.done == 3
    assert loops.learner.admitted[-1] == collecting.result()
    loops.train()
    assert [record.staleness for record in loops.observer.rounds] == [0, 0, 2, 1]
    assert_kept_apart(loops, rounds=4)


def test_training_ahead_comes_before_idle_work():
    loops = make_loops(degree=2, ahead=2, learner=IdleLearner())
    loops.collect()
    for _ in range(3):
        loops.train()
    assert (loops.learner.aheads, loops.learner.done) == ([2, 2], 0)
    loops.learner.idle = at_piece(2, loops.collect)
    loops.train()  # it was paid for
    assert loops.learner.done == 2
    assert counts(loops) == (2, 3)


def test_idle_work_that_fails_is_not_hidden():
    loops = make_loops(learner=IdleLearner())

    def fail(_):
        raise Broken

    loops.learner.idle = fail
    with pytest.raises(Broken):
        loops.train()
    assert counts(loops) == (0, 0)


# -------------------------------------------------------------------- the oldest weights first


def test_batches_with_older_weights_are_trained_first():
    loops = make_loops(degree=4, collectors=[FakeCollector(), FakeCollector()])
    gate, collecting = in_flight(loops, 0)
    turns(loops, 1, collector=1)
    loops.collect(1)
    gate.open()
    oldest = collecting.result(TIMEOUT)
    loops.train()
    assert loops.learner.admitted[-1] == oldest
    assert [record.staleness for record in loops.observer.rounds] == [0, 1]


def test_a_batch_that_arrives_after_the_choice_is_not_taken_for_it():
    loops = make_loops(degree=4, collectors=[FakeCollector(), FakeCollector()])
    gate, collecting = in_flight(loops, 0)
    turns(loops, 1, collector=1)
    chosen = loops.collect(1)
    claim = loops.outstanding.claim

    def claim_and_let_older_in(slot):
        claimed = claim(slot)
        gate.open()
        collecting.result(TIMEOUT)
        return claimed

    loops.outstanding.claim = claim_and_let_older_in
    loops.train()
    assert loops.learner.admitted[-1] == chosen
    assert loops.queue.first() is collecting.result()


def test_the_learner_waits_for_a_batch_that_one_more_round_would_make_too_stale():
    loops = make_loops(degree=2, collectors=[FakeCollector(), FakeCollector()], batch_timeout=0.01)
    gate, collecting = in_flight(loops, 0)
    turns(loops, 2, collector=1)
    loops.collect(1)
    with listening() as ear:
        learner = start(loops.train)
        ear.await_message(
            'the learner waited 0.01 s for a batch with older weights: collector-0 has been collecting for 0.0 s, '
            'collector-1 is not collecting'
        )
        assert counts(loops) == (3, 2)
        gate.open()
        oldest = collecting.result(TIMEOUT)
        learner.result(TIMEOUT)
    assert loops.learner.admitted[-1] == oldest
    loops.train()
    assert [record.staleness for record in loops.observer.rounds] == [0, 0, 2, 1]


def test_the_learner_goes_on_when_the_older_batch_never_comes():
    loops = make_loops(degree=2, collectors=[FakeCollector(), FakeCollector()], batch_timeout=1000 * TIMEOUT)
    queue, gate = watch(loops.queue), Gate()

    def leave(*_):
        gate()
        raise Stopped('the collect is left')

    loops.collector.work = leave
    collecting = start(loops.collect)
    gate.await_arrival()
    turns(loops, 2, collector=1)
    loops.collect(1)
    learner = start(loops.train, 'learner')
    queue.await_blocked('learner')
    gate.open()
    assert isinstance(collecting.exception(TIMEOUT), Stopped)
    learner.result(TIMEOUT)
    assert counts(loops) == (3, 3)


def test_a_full_queue_lets_the_batch_in_that_the_learner_waits_for():
    loops = make_loops(degree=2, data_queue_size=1, collectors=[FakeCollector(), FakeCollector()])
    queue = watch(loops.queue)
    gate, collecting = in_flight(loops, 0)
    turns(loops, 2, collector=1)
    loops.collect(1)
    try:
        learner = start(loops.train, 'learner')
        queue.await_blocked('learner')
        gate.open()
        collecting.result(TIMEOUT)
        learner.result(TIMEOUT)
    finally:
        loops.channels.leave()
    assert [record.staleness for record in loops.observer.rounds] == [0, 0, 2]


def test_a_pull_of_old_weights_between_the_choice_of_a_batch_and_its_round():
    refused_twice, held = threading.Event(), Gate()
    deaf = DeafCollector(lambda version: version > 2 and (deaf.attempts.count(6) < 2 or refused_twice.set() or True))
    loops = make_loops(degree=3, collectors=[FakeCollector(), FakeCollector(), deaf], max_sync_retries=0)
    turns(loops, 1, collector=1)
    loops.collect(2)  # has the weights of round 1, and gets no others
    gate, oldest = in_flight(loops, 0)  # of round 1, too
    loops.train()
    turns(loops, 1, collector=1)
    loops.collect(1)
    deaf.work = lambda *_: (refused_twice.set(), held())
    processed, late = loops.channels.samples.processed, []

    def pull_before_the_round(*args):
        loops.channels.samples.processed = processed
        late.append(start(lambda: loops.collect(2)))
        late[0].add_done_callback(lambda _: refused_twice.set())
        await_event(refused_twice)  # or else it is collecting
        processed(*args)

    loops.channels.samples.processed = pull_before_the_round
    try:
        learner = start(lambda: [loops.train() for _ in range(3)])
        await_event(refused_twice)
        deaf.deaf = lambda version: False
        gate.open()
        held.open()
        oldest.result(TIMEOUT)
        late[0].result(TIMEOUT)
        learner.result(TIMEOUT)
    finally:
        loops.channels.leave()
    assert len(loops.learner.admitted) == 6
    assert samples(loops, 'max_staleness') <= (3,)


def test_a_pull_of_old_weights_between_the_choice_to_train_ahead_and_its_round():
    refused_twice = threading.Event()
    deaf = DeafCollector(lambda version: version > 0 and (deaf.attempts.count(4) < 2 or refused_twice.set() or True))
    loops = make_loops(degree=2, ahead=1, collectors=[deaf, FakeCollector()], max_sync_retries=0)
    turns(loops, 1, collector=0)
    turns(loops, 1, collector=1)
    held = Gate()
    deaf.work = lambda *_: (refused_twice.set(), held())
    run_train, late = loops.coordinator.run_train, []

    def pull_before_the_round(fn):
        late.append(start(loops.collect))  # with the weights of round 0
        late[0].add_done_callback(lambda _: refused_twice.set())
        await_event(refused_twice)  # or else it is collecting
        return run_train(fn)

    loops.coordinator.run_train = pull_before_the_round
    loops.train()
    assert loops.learner.aheads == [2]
    loops.coordinator.run_train = run_train
    deaf.deaf = lambda version: False
    held.open()
    late[0].result(TIMEOUT)
    loops.train()
    assert len(loops.learner.admitted) == 3
    assert samples(loops, 'max_staleness') <= (2,)


def test_a_batch_past_its_bound_is_not_trained(monkeypatch):
    monkeypatch.setattr('lzero_async.core.outstanding.within_bound', lambda *_: True)
    loops = make_loops(degree=2, collectors=[FakeCollector(), FakeCollector()])
    gate, collecting = in_flight(loops, 0)
    turns(loops, 3, collector=1)
    gate.open()
    collecting.result(TIMEOUT)
    with pytest.raises(BoundBroken) as broken:
        loops.train()
    assert str(broken.value) == (
        'staleness must be <= off_policy_degree 2, got 3: the batch was collected with the weights of round 0, and 3 '
        'rounds are trained'
    )
    assert len(loops.learner.admitted) == 3


# -------------------------------------------------------------------- too stale, too old


def test_a_batch_that_is_too_old_is_dropped_counted_and_not_trained():
    loops = make_loops(degree=1, max_sample_age_s=5)
    turns(loops, 1)
    loops.collector.work = lambda call, _: loops.clock.advance(5 + (call == 3))  # age 5, then 6, then 5
    with listening() as ear:
        turns(loops, 3)
    assert ear.messages == ['dropped 10 samples of version 4 before round 3: age 6.00 s > max_sample_age_s 5']
    assert counts(loops) == (4, 3)
    assert drop_count(loops) == 1
    assert (loops.learner.rounds, loops.learner.env_step) == ([2, 2, 2], 30)
    assert samples(loops, *ACCOUNT) == (40, 30, 10, 10)
    assert samples(loops, 'avg_sample_age', 'max_sample_age') == (10 / 3, 5)  # (0 + 5 + 5) / 3
    assert loops.coordinator.collect_train_lag == 0
    assert loops.outstanding.idle
    assert [record.round for record in loops.observer.rounds] == [1, 2, 3]


def test_a_batch_staler_than_allowed_is_dropped_though_the_degree_allows_it():
    loops = make_loops(degree=3, max_staleness_allowed=1)
    for _ in range(3):
        loops.collect()
    with listening() as ear:
        for _ in range(3):
            loops.train()
    assert ear.messages == ['dropped 10 samples of version 0 before round 3: staleness 2 > max_staleness_allowed 1']
    assert counts(loops) == (3, 2)
    assert samples(loops, *ACCOUNT) == (30, 20, 10, 10)
    assert samples(loops, 'mean_staleness', 'max_staleness') == (0.5, 1)


def test_stale_samples_are_trained_and_counted():
    loops = make_loops(degree=4, staleness_threshold=1)
    for _ in range(4):
        loops.collect()
    for _ in range(4):  # staleness 0, 1, 2, 3
        loops.train()
    assert samples(loops, *ACCOUNT) == (40, 40, 0, 0)
    assert samples(loops, 'stale_samples_ratio', 'mean_staleness', 'max_staleness') == (0.5, 1.5, 3)


def test_after_so_many_drops_in_a_row_the_learner_gives_up():
    loops = make_loops(degree=1, max_sample_age_s=5, max_consecutive_drops=3)
    old = {2, 3, 5, 6, 7}  # two in a row, and then three
    loops.collector.work = lambda call, _: loops.clock.advance(6 if call in old else 0)
    turns(loops, 6)
    assert drop_count(loops) == 4
    loops.collect()
    with pytest.raises(EverythingDropped) as given_up:
        loops.train()
    assert str(given_up.value) == (
        'the last 3 batches were all dropped (max_consecutive_drops): collecting is too slow, or '
        'max_staleness_allowed 5 or max_sample_age_s 5.0 too low'
    )
    assert drop_count(loops) == 5
    assert len(loops.learner.admitted) == 2


@pytest.mark.parametrize('degree, late_by, kept', [
    (0, 1, False),
    (1, 1, True),
    (1, 2, False),
    (3, 3, True),
    (3, 4, False),
])
def test_samples_handed_over_late_are_dropped_once_they_pass_the_degree(degree, late_by, kept):
    # The version rises by 2 a round, so that call n, from 1, has version 2 * (n - 1).
    late = LateCollector(lambda call: (2 * (5 - late_by),) if call == 6 else ())
    loops = make_loops(degree=degree, collectors=[late], max_staleness_allowed=100)
    with listening() as ear:
        turns(loops, 6)
    assert [piece.segments for piece in loops.learner.admitted[-1].pieces] == (['late', 6] if kept else [6])
    assert samples(loops, *ACCOUNT) == ((61, 61, 0, 0) if kept else (61, 60, 1, 1))
    assert samples(loops, 'max_staleness', 'max_late_staleness') == (0, late_by if kept else 0)
    assert ear.messages == ([] if kept else [
        f'dropped 1 samples of version {2 * (5 - late_by)} before round 6: staleness {late_by} > off_policy_degree '
        f'{degree}, handed over late'
    ])
    assert counts(loops) == (6, 6)
    assert drop_count(loops) == 0  # only what is left of no batch is a dropped round
    assert loops.learner.rounds == 6 * [2]


@pytest.mark.parametrize('collectors, late_by, kept', [(1, 3, False), (2, 3, True), (2, 4, False), (3, 4, True)])
def test_samples_handed_over_late_may_be_a_turn_of_all_collectors_older(collectors, late_by, kept):
    late = LateCollector(lambda call: (2 * (5 - late_by),) if call == 6 else ())
    loops = make_loops(degree=2, collectors=[late], num_collectors=collectors)
    with listening() as ear:
        turns(loops, 6)
    assert samples(loops, *ACCOUNT) == ((61, 61, 0, 0) if kept else (61, 60, 1, 1))
    more = ' + 1 for the other collectors' if collectors == 2 else ''
    assert ear.messages == ([] if kept else [
        f'dropped 1 samples of version {2 * (5 - late_by)} before round 6: staleness {late_by} > off_policy_degree '
        f'2{more}, handed over late'
    ])


@pytest.mark.parametrize('late_age, dropped', [(5, 0), (6, 1)])
def test_late_samples_are_as_old_as_the_pull_that_collected_them(late_age, dropped):
    loops = make_loops(degree=9, collectors=[LateCollector(lambda call: (0,) if call == 2 else ())], max_sample_age_s=5)
    turns(loops, 1)
    loops.clock.advance(late_age)
    turns(loops, 1)
    assert samples(loops, 'dropped_stale_samples') == (dropped,)
    assert [piece.policy_version for piece in loops.learner.admitted[1].pieces] == ([2] if dropped else [0, 2])


def test_what_a_degree_that_was_raised_allows_is_not_dropped():
    coordinator = WatchedCoordinator(-1, buffer_size=320, batch_size=32, max_off_policy_degree=20)
    assert coordinator.off_policy_degree == 1
    loops = make_loops(degree=-1, coordinator=coordinator, max_off_policy_degree=20)
    coordinator._degree = 20  # as the controller would
    for _ in range(8):
        loops.collect()
    for _ in range(8):
        loops.train()
    assert samples(loops, *ACCOUNT) == (80, 80, 0, 0)
    assert samples(loops, 'max_staleness') == (7,)
