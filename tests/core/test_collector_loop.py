"""The collector's turns, taken by the test itself."""
import threading

import pytest
from fakes import TIMEOUT, FakeCollector, FakeLearner, Gate, await_event, start, watch
from loops import DeafCollector, LateCollector, WildLearner, counts, join_loads, listening, make_loops, samples

from lzero_async.core import collector_loop
from lzero_async.core.delivery import SyncRules
from lzero_async.core.errors import LzeroAsyncError, QueueClosed, Stopped, WeightsTooStale
from lzero_async.core.segments import Piece, SegmentBatch, Stamp

GENERATED = ('total_generated_samples', 'dropped_samples', 'generation_errors')


# -------------------------------------------------------------------- the stamp


def test_a_batch_is_stamped_with_the_weights_it_was_collected_with():
    loops = make_loops(degree=2)
    loops.collector.work = lambda *_: loops.clock.advance(3)
    first, second = loops.collect(), loops.collect()
    assert loops.train() is None  # 2 updates
    third = loops.collect()
    assert first == SegmentBatch(
        (Piece(policy_version=0, segments=1, transitions=10),), env_step=10, stamp=Stamp(0, 0, 100.0), earlier=(),
        collected_at=103.0, slot=0,
    )
    assert (second.stamp, second.slot) == (Stamp(0, 0, 103.0), 1)
    assert (third.stamp, third.slot) == (Stamp(2, 1, 106.0), 2)
    assert [snapshot.weights for snapshot in loops.collector.snapshots] == ['weights-0', 'weights-0', 'weights-2']
    assert loops.collector.loaded == [(0, 'weights-0'), (2, 'weights-2')]  # a version that is there costs nothing
    assert loops.queue.take() is second
    assert loops.queue.take() is third


def test_a_batch_reaches_the_learner_only_when_its_round_is_counted():
    loops = make_loops()
    seen = []
    put = loops.queue.put
    loops.queue.put = lambda *args: (seen.append((counts(loops), samples(loops, *GENERATED))), put(*args))[1]
    loops.collect()
    assert seen == [((1, 0), (10, 0, 0))]


def test_pieces_of_earlier_versions_carry_the_stamps_of_their_pulls():
    loops = make_loops(degree=2, collectors=[LateCollector(lambda call: {3: (2, 0), 4: (2,)}.get(call, ()))])
    batches = []
    for _ in range(4):
        loops.clock.advance(1)
        batches.append(loops.collect())
        loops.train()
    third, fourth = batches[2:]
    assert third.earlier == (Stamp(0, 0, 101.0), Stamp(2, 1, 102.0))
    assert [third.stamp_of(piece) for piece in third.pieces] == [Stamp(2, 1, 102.0), Stamp(0, 0, 101.0), third.stamp]
    assert (fourth.earlier, fourth.stamp) == ((Stamp(2, 1, 102.0),), Stamp(6, 3, 104.0))
    assert batches[0].earlier == batches[1].earlier == ()


def test_of_a_version_that_was_pulled_often_the_first_pull_counts():
    loops = make_loops(degree=4, collectors=[LateCollector(lambda call: (0,) if call == 4 else ())])
    loops.collect()
    loops.clock.advance(5)
    loops.collect()
    loops.train()
    loops.train()
    loops.collect()
    assert loops.collect().earlier == (Stamp(0, 0, 100.0),)


def test_a_version_that_is_not_remembered_counts_as_older_than_all(monkeypatch):
    monkeypatch.setattr(collector_loop, 'REMEMBERED_PULLS', 2)
    loops = make_loops(degree=1, collectors=[LateCollector(lambda call: (2, 4) if call == 4 else ())])
    for _ in range(3):
        loops.collect()
        loops.train()
        loops.clock.advance(1)
    # The versions are 0, 2, 4 and now 6, of which the last two are remembered.
    assert loops.collect().earlier == (Stamp(2, 0, 0.0), Stamp(4, 2, 102.0))


# -------------------------------------------------------------------- how a turn ends otherwise


def test_a_collector_told_to_stop_counts_nothing():
    loops = make_loops()
    loops.stop.abort('enough')
    with pytest.raises(Stopped):
        loops.collect()
    assert counts(loops) == (0, 0)
    assert loops.queue.statistics().total_produced == 0
    assert samples(loops, *GENERATED) == (0, 0, 0)
    assert loops.outstanding.idle


def test_a_collector_ends_when_nobody_takes_batches():
    loops = make_loops()
    loops.queue.close()
    with pytest.raises(QueueClosed):
        loops.collect()
    assert samples(loops, *GENERATED) == (10, 10, 0)  # generated, and given up


def test_a_collect_that_fails_is_counted_and_leaves_nothing_outstanding():
    loops = make_loops(degree=1)

    def broken(call, _):
        if call == 1:
            raise ValueError('broken')

    loops.collector.work = broken
    with pytest.raises(ValueError, match='broken'):
        loops.collect()
    assert samples(loops, *GENERATED) == (0, 0, 1)
    assert loops.outstanding.idle
    assert counts(loops) == (0, 0)
    loops.collect()
    assert samples(loops, *GENERATED) == (10, 0, 1)


def test_a_collector_that_never_gets_weights_leaves_nothing_expected():
    loops = make_loops(degree=1, collectors=[DeafCollector(lambda version: len(loops.collector.attempts) < 4)],
                       max_sync_retries=0)
    for _ in range(3):
        with pytest.raises(LzeroAsyncError, match='the first weights never reached collector-0'):
            loops.collect()
        assert loops.outstanding.idle
    loops.collect()
    assert counts(loops) == (1, 0)


# -------------------------------------------------------------------- weights that do not arrive


def refusal_of(loops):
    """What the next collect ends with, in a thread of its own: it must not wait for ever."""
    collector = start(loops.collect)
    try:
        return collector.exception(TIMEOUT)
    finally:
        loops.channels.leave()


def test_old_weights_are_good_for_as_long_as_the_bound_allows():
    loops = make_loops(degree=3, collectors=[DeafCollector(lambda version: version > 0)], max_sync_retries=1)
    for staleness in range(4):
        batch = loops.collect()
        assert (batch.stamp.policy_version, batch.staleness(loops.outstanding.finished)) == (0, staleness)
        loops.train()
    refusal = refusal_of(loops)
    assert isinstance(refusal, WeightsTooStale)
    assert str(refusal) == (
        'nothing more can be collected: collector-0 holds the weights of round 0, 4 rounds are trained, and '
        'off_policy_degree is 3: version 8 did not reach it'
    )
    assert loops.collector.attempts == [0, 2, 2, 4, 4, 6, 6, 8, 8]
    assert samples(loops, *GENERATED) == (40, 0, 0)  # a collect that never began has not failed
    assert loops.outstanding.idle


def paused_while_another_goes_on(deaf):
    """Collector 0 has the weights of round 0, three rounds are trained, and a batch of collector 1 is queued."""
    loops = make_loops(degree=2, collectors=[DeafCollector(deaf), FakeCollector()], max_sync_retries=1)
    loops.collect(0)
    loops.train()
    for _ in range(2):
        loops.collect(1)
        loops.train()
    loops.collect(1)
    return loops


def test_collection_pauses_until_newer_weights_arrive():
    failures = 5  # two attempts fail, and again two, and one more
    loops = paused_while_another_goes_on(lambda version: version == 6 and loops.collector.attempts.count(6) <= failures)
    with listening() as ear:
        batch = loops.collect(0)
    assert (batch.policy_version, batch.rounds_at_pull) == (6, 3)
    assert loops.collector.attempts == [0] + [6] * 6
    assert ear.all_with('pauses') == 2 * [
        'collection pauses: collector-0 holds the weights of round 0, 3 rounds are trained, and off_policy_degree is '
        '2: version 6 did not reach it'
    ]
    loops.train()
    loops.train()
    assert counts(loops) == (5, 5)


def test_a_pause_ends_when_the_run_does():
    loops = paused_while_another_goes_on(lambda version: version > 0)
    with listening() as ear:
        collector = start(lambda: loops.collect(0))
        ear.await_message('collection pauses')
        loops.stop.request('enough')
        loops.coordinator.request_stop()
        assert isinstance(collector.exception(TIMEOUT), Stopped)


def test_weights_that_nobody_could_publish_end_the_run_once_all_is_trained():
    loops = make_loops(degree=2, learner=WildLearner(lambda train_iter: train_iter > 0))
    for _ in range(3):
        loops.collect()
        loops.train()
    refusal = refusal_of(loops)
    assert isinstance(refusal, WeightsTooStale)
    assert 'the weights of round 0, 3 rounds are trained' in str(refusal)
    assert str(refusal).endswith("no newer ones were published, since the learner's were not finite")


def test_a_pause_for_want_of_finite_weights_lasts_until_a_round_is_trained():
    loops = make_loops(degree=2, learner=WildLearner(lambda train_iter: 0 < train_iter < 6))
    for _ in range(2):
        loops.collect()
        loops.train()
    loops.collect()  # of round 0, to be trained as the third
    waiting = watch(loops.outstanding)
    with listening() as ear:
        collector = start(loops.collect, 'collector')
        ear.await_message('collection pauses')
        waiting.await_blocked('collector')
        loops.train()
        batch = collector.result(TIMEOUT)
    assert (batch.policy_version, batch.rounds_at_pull) == (6, 3)
    assert len(ear.all_with('pauses')) == 1


def test_rounds_without_updates_do_not_make_weights_stale():
    loops = make_loops(degree=1, learner=FakeLearner(updates=0, sufficient=False))
    for rounds in range(5):
        batch = loops.collect()
        assert (batch.policy_version, batch.rounds_at_pull) == (0, rounds)
        loops.train()
    assert loops.collector.loaded == [(0, 'weights-0')]


def test_a_load_that_outlasts_the_bound_is_followed_by_another():
    loading = Gate()
    slow = FakeCollector()
    slow.load_weights = lambda weights, version: version == 0 and loading()
    loops = make_loops(degree=2, collectors=[slow, FakeCollector()])
    collector = start(loops.collect)
    loading.await_arrival()
    for _ in range(3):
        loops.collect(1)
        loops.train()
    loading.open()
    assert collector.result(TIMEOUT).rounds_at_pull == 3


def test_weights_may_still_come_while_another_collector_loads_its_own():
    loading, heard = Gate(), FakeCollector()
    loops = make_loops(degree=2, collectors=[DeafCollector(lambda version: version == 6), heard])
    loops.collect(0)
    loops.train()
    for _ in range(2):
        loops.collect(1)
        loops.train()
    heard.load_weights = lambda *_: loading()
    other = start(lambda: loops.collect(1))
    loading.await_arrival()
    with listening() as ear:
        collector = start(loops.collect)  # holds the weights of round 0, of three
        try:
            ear.await_message('never reached collector-0')
            loading.open()
            other.result(TIMEOUT)
            loops.train()
            assert collector.result(TIMEOUT).policy_version == 8
        finally:
            loading.open()
            other.exception(TIMEOUT)


def test_weights_may_still_come_when_another_collector_has_begun_meanwhile():
    deaf = DeafCollector(lambda version: version == 6)
    loops = make_loops(degree=2, collectors=[deaf, FakeCollector()], max_sync_retries=0)
    loops.collect(0)
    loops.train()
    for _ in range(2):
        loops.collect(1)
        loops.train()
    work, others = Gate(), []

    def deaf_to_6(version):
        if version == 6 and not others:
            loops.collectors[1].work = work
            others.append(start(lambda: loops.collect(1)))
            work.await_arrival()
        return version == 6

    deaf.deaf = deaf_to_6
    with listening() as ear:
        collector = start(loops.collect)  # holds the weights of round 0, of three; all was idle when it began
        try:
            ear.await_message('collection pauses', or_end_of=collector)
            work.open()
            others[0].result(TIMEOUT)
            loops.train()
            assert collector.result(TIMEOUT).policy_version == 8
        finally:
            loops.channels.leave()


def given_up(loading):
    """A collector whose load of version 2 is given up, and still under way; and what becomes of its second collect."""
    slow = FakeCollector()
    load = slow.load_weights
    slow.load_weights = lambda weights, version: (version == 2 and loading(), load(weights, version))
    loops = make_loops(degree=3, collectors=[slow])
    loops.collect()
    loops.train()
    loops.collector_loops[0]._target._rules = SyncRules(max_sync_retries=0, sync_timeout=0.01)
    with listening() as ear:
        collector = start(loops.collect)
        ear.await_message('version 2 never reached collector-0')
    return loops, collector


def test_weights_that_arrive_after_all_are_those_of_the_stamp():
    loading = Gate()
    loops, collector = given_up(loading)
    loading.open()
    batch = collector.result(TIMEOUT)
    assert (batch.policy_version, batch.rounds_at_pull) == (2, 1)
    assert [snapshot.policy_version for snapshot in loops.collector.snapshots] == [0, 2]
    assert samples(loops, *GENERATED) == (20, 0, 0)
    assert counts(loops) == (2, 1)
    loops.train()
    assert loops.outstanding.idle  # the turn that was taken back has left nothing


def test_the_end_of_the_run_is_not_kept_waiting_by_a_load():
    loading = Gate()
    loops, collector = given_up(loading)
    loops.channels.leave()
    assert isinstance(collector.exception(TIMEOUT), Stopped)
    loading.open()
    join_loads()
    assert counts(loops) == (1, 1)


# -------------------------------------------------------------------- batch_generation_interval


def waits_of(loops):
    """The clock of the test takes the place of the waits."""
    waits = []

    def wait(seconds):
        waits.append(seconds)
        loops.clock.advance(seconds)

    loops.stop.wait = wait
    return waits


@pytest.mark.parametrize('interval, collect_time, waits', [
    (0, 1, []),
    (5, 1, [4, 4]),  # begun at 100, over at 101, begun again at 105
    (5, 4.5, [0.5, 0.5]),
    (5, 5, []),
    (5, 7, []),
])
def test_the_interval_lies_between_the_starts_of_two_collects(interval, collect_time, waits):
    loops = make_loops(degree=9, batch_generation_interval=interval)
    waited = waits_of(loops)
    loops.collector.work = lambda *_: loops.clock.advance(collect_time)
    begun = [loops.collect().pulled_at for _ in range(3)]
    assert waited == waits
    assert [later - earlier for earlier, later in zip(begun, begun[1:])] == 2 * [max(interval, collect_time)]


def test_each_collector_has_an_interval_of_its_own():
    loops = make_loops(degree=9, collectors=[FakeCollector(), FakeCollector()], batch_generation_interval=5)
    waited = waits_of(loops)
    assert [loops.collect(index).pulled_at for index in (0, 1, 0, 1)] == [100, 100, 105, 105]
    assert waited == [5]


def test_a_serial_run_keeps_no_interval():
    loops = make_loops(degree=0, batch_generation_interval=5)
    waited = waits_of(loops)
    for _ in range(3):
        loops.collect()
        loops.train()
    assert waited == []


def test_a_stop_ends_the_wait_between_two_collects():
    loops = make_loops(degree=9, batch_generation_interval=1000 * TIMEOUT)
    loops.collect()
    waiting = threading.Event()
    wait = loops.stop.wait
    loops.stop.wait = lambda seconds: (waiting.set(), wait(seconds))
    collector = start(loops.collect)
    await_event(waiting)
    loops.coordinator.request_stop()
    loops.stop.request('enough')
    assert isinstance(collector.exception(TIMEOUT), Stopped)
    assert len(loops.collector.snapshots) == 1


# -------------------------------------------------------------------- generation_timeout


def test_a_collect_is_reported_once_when_it_is_overdue():
    loops = make_loops(degree=9, generation_timeout=30)
    loop = loops.collector_loops[0]
    reported = []

    def work(*_):
        with listening() as ear:
            for seconds in (29, 0.5, 0.5, 30):
                loops.clock.advance(seconds)
                loop.report_overdue()
                reported.append(list(ear.messages))

    loops.collector.work = work
    loops.collect()
    message = (
        'collector-0 has been collecting for 30.0 s: generation_timeout is 30 s; the learner gets no batch from it'
    )
    assert reported == [[], [], [message], [message]]
    assert samples(loops, 'generation_timeouts') == (1,)
    loop.report_overdue()  # between two collects nothing is overdue
    assert samples(loops, 'generation_timeouts') == (1,)
    loops.collect()
    assert samples(loops, 'generation_timeouts') == (2,)


def test_a_collector_says_whom_it_waits_for_and_waits_on():
    loops = make_loops(degree=1, generation_timeout=0.01)
    loops.collect()
    with listening() as ear:
        collector = start(loops.collect)
        ear.await_message(
            'collector-0: collect waited 0.01 s for training: collect_count=1, train_count=0, collects in flight=0, '
            'off_policy_degree=1'
        )
        loops.train()
        assert collector.result(TIMEOUT).rounds_at_pull == 1
    assert samples(loops, 'generation_timeouts') == (0,)


def test_what_a_collector_says_of_itself():
    loops = make_loops()
    loop = loops.collector_loops[0]
    said = []
    loops.collector.work = lambda *_: (loops.clock.advance(2.25), said.append(loop.describe()))
    assert loop.describe() == 'collector-0 is not collecting'
    loops.collect()
    assert said == ['collector-0 has been collecting for 2.2 s']
    assert loop.describe() == 'collector-0 is not collecting'


def test_a_collector_that_waits_for_room_in_the_queue_says_so():
    loops = make_loops(degree=4, data_queue_size=1, generation_timeout=0.01)
    loops.collect()
    with listening() as ear:
        collector = start(loops.collect)
        ear.await_message('collector-0 waited 0.01 s for the learner to make room in the queue: data_queue_size is 1')
    loops.train()
    collector.result(TIMEOUT)
    assert loops.queue.statistics().queue_size == 1


def test_a_late_piece_of_a_version_that_rounds_without_updates_keep_is_as_fresh_as_its_last_pull():
    loops = make_loops(
        degree=2, collectors=[LateCollector(lambda call: [0] if call == 4 else [])],
        learner=FakeLearner(updates=0, sufficient=False),
    )
    for updates in (0, 0, 2):
        loops.collect()
        loops.learner.updates = updates
        loops.train()
    batch = loops.collect()
    late = batch.pieces[0]
    # Pulled after 0, 1 and 2 rounds, all of them version 0; after the third there is version 2.
    assert (batch.policy_version, late.policy_version, batch.stamp_of(late).rounds_at_pull) == (2, 0, 2)
    loops.train()
    assert samples(loops, 'dropped_samples', 'processed_samples', 'max_late_staleness') == (0, 41, 1)
