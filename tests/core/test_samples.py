"""What became of every sample."""
import logging
import threading
import time

import pytest
from fakes import FakeClock, FakeCollector, FakeLearner, at_once, fast, logged, make_run, nothing, watch
from loops import make_loops

from lzero_async.core import samples
from lzero_async.core.errors import RoleFailed
from lzero_async.core.samples import SampleAccount
from lzero_async.core.stop import RunLimits
from lzero_async.core.trainer import AsyncTrainer

# A run that hangs does so in the main thread, where only this ends it.
pytestmark = pytest.mark.timeout(60)

NOTHING_YET = dict(
    total_generated_samples=0, processed_samples=0, dropped_stale_samples=0, dropped_samples=0, generation_errors=0,
    generation_timeouts=0, avg_sample_age=0.0, max_sample_age=0.0, mean_staleness=0.0, max_staleness=0,
    max_late_staleness=0, stale_samples_ratio=0.0, time_to_first_batch=None,
)


def account_of(*calls):
    account = SampleAccount(begun=10.0, clock=lambda: 13.0)
    for name, *arguments in calls:
        getattr(account, name)(*arguments)
    return account


def numbers_of(*calls):
    return account_of(*calls).numbers()


def on_the_way(numbers):
    return numbers['total_generated_samples'] - numbers['processed_samples'] - numbers['dropped_samples']


# -------------------------------------------------------------------- counts


def test_nothing_yet():
    assert SampleAccount().numbers() == NOTHING_YET


@pytest.mark.parametrize('call, changed', [
    (('generated', 7), dict(total_generated_samples=7, time_to_first_batch=3.0)),
    (('generation_failed',), dict(generation_errors=1)),
    (('generation_overdue',), dict(generation_timeouts=1)),
    (('dropped', 7), dict(dropped_stale_samples=7, dropped_samples=7)),
    (('discarded', 7), dict(dropped_samples=7)),
    (('processed', 7, 0, 0.0, False), dict(processed_samples=7)),
    (
        ('processed', 7, 2, 0.5, True),
        dict(processed_samples=7, avg_sample_age=0.5, max_sample_age=0.5, mean_staleness=2.0, max_staleness=2,
             stale_samples_ratio=1.0),
    ),
])
def test_each_call_changes_its_own_numbers_and_no_other(call, changed):
    assert numbers_of(call) == {**NOTHING_YET, **changed}


def test_calls_add_up():
    numbers = numbers_of(
        ('generated', 30), ('generated', 12), ('dropped', 3), ('dropped', 4), ('discarded', 5), ('discarded', 6),
        ('generation_failed',), ('generation_failed',), ('generation_overdue',), ('generation_overdue',),
    )
    assert numbers['total_generated_samples'] == 42
    assert (numbers['dropped_stale_samples'], numbers['dropped_samples']) == (7, 18)
    assert (numbers['generation_errors'], numbers['generation_timeouts']) == (2, 2)


def test_generated_is_processed_and_dropped_and_still_on_the_way():
    account = account_of(('generated', 100))
    assert on_the_way(account.numbers()) == 100
    account.processed(60, 0, 0.0, False)
    assert on_the_way(account.numbers()) == 40
    account.dropped(25)
    assert on_the_way(account.numbers()) == 15
    account.discarded(15)
    assert on_the_way(account.numbers()) == 0


def test_numbers_are_a_copy():
    account = account_of(('generated', 7))
    account.numbers().clear()
    before = account.numbers()
    account.generated(1)
    assert (before['total_generated_samples'], account.numbers()['total_generated_samples']) == (7, 8)


# -------------------------------------------------------------------- the first batch


def test_the_first_batch_is_timed_from_when_the_run_began():
    clock = FakeClock(25.0)
    account = SampleAccount(begun=10.0, clock=clock)
    assert account.numbers()['time_to_first_batch'] is None
    account.generated(0)  # a batch, though an empty one
    clock.advance(100)
    account.generated(7)
    assert account.numbers()['time_to_first_batch'] == 15.0


def test_a_run_that_is_not_told_when_it_began_began_with_its_account():
    clock = FakeClock(25.0)
    account = SampleAccount(clock=clock)
    clock.advance(4)
    account.generated(7)
    assert account.numbers()['time_to_first_batch'] == 4.0


def test_a_run_that_began_at_zero_began_at_zero():
    account = SampleAccount(begun=0.0, clock=lambda: 13.0)
    account.generated(7)
    assert account.numbers()['time_to_first_batch'] == 13.0


def test_the_first_batch_is_told_once(caplog):
    with caplog.at_level(logging.INFO):
        account_of(('generated', 7), ('generated', 7), ('generated', 7))
    assert logged(caplog, logging.INFO) == ['the first batch was collected 3.0 s after the run was called for']


def test_of_many_first_batches_one_is_told(restless_in, caplog):
    restless_in(samples)
    account = SampleAccount(begun=10.0, clock=lambda: 13.0)
    with caplog.at_level(logging.INFO):
        at_once(lambda _: account.generated(1), threads=8)
    assert len(logged(caplog, logging.INFO)) == 1


# -------------------------------------------------------------------- steps of the environments


@pytest.mark.parametrize('before', [0, 500])
def test_steps_are_summed_over_the_run_from_where_it_began(before):
    account = SampleAccount(before)
    assert [account.stepped(steps) for steps in (10, 0, 25)] == [before + 10, before + 10, before + 35]
    assert account.numbers() == NOTHING_YET  # steps are no samples


class Meddled:
    """A lock after whose first release somebody else comes at once."""

    def __init__(self, meddle):
        self._lock = threading.Lock()
        self._meddle = meddle

    def __enter__(self):
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()
        meddle, self._meddle = self._meddle, nothing
        meddle()


def test_who_made_steps_is_told_the_sum_up_to_its_own():
    account = SampleAccount(env_step=7)
    account._lock = Meddled(lambda: account.stepped(100))
    assert account.stepped(3) == 10
    assert account.stepped(1) == 111


# -------------------------------------------------------------------- averages


def test_averages_are_per_sample_and_not_per_call():
    numbers = numbers_of(('processed', 30, 1, 0.5, False), ('processed', 10, 5, 2.5, True))
    assert numbers['mean_staleness'] == 2.0  # (30 * 1 + 10 * 5) / 40
    assert numbers['avg_sample_age'] == 1.0  # (30 * 0.5 + 10 * 2.5) / 40
    assert numbers['stale_samples_ratio'] == 0.25  # 10 / 40
    assert (numbers['max_staleness'], numbers['max_sample_age']) == (5, 2.5)


def test_samples_that_were_handed_over_late_have_a_maximum_of_their_own():
    numbers = numbers_of(('processed', 30, 1, 0.5, False), ('processed', 10, 5, 2.5, True, True))
    assert (numbers['max_staleness'], numbers['max_late_staleness']) == (1, 5)
    assert (numbers['mean_staleness'], numbers['stale_samples_ratio']) == (2.0, 0.25)


def test_the_maxima_stay_when_fresher_samples_follow():
    numbers = numbers_of(('processed', 1, 5, 2.5, True), ('processed', 3, 1, 0.5, False))
    assert (numbers['max_staleness'], numbers['max_sample_age']) == (5, 2.5)
    assert (numbers['mean_staleness'], numbers['avg_sample_age']) == (2.0, 1.0)  # (5 + 3 * 1) / 4, (2.5 + 3 * 0.5) / 4


def test_no_samples_have_no_age():
    assert numbers_of(('processed', 0, 9, 9.0, True)) == NOTHING_YET


def test_samples_that_were_dropped_do_not_count_in_the_averages():
    numbers = numbers_of(('processed', 4, 3, 1.5, False), ('dropped', 400), ('discarded', 400))
    assert (numbers['mean_staleness'], numbers['avg_sample_age']) == (3.0, 1.5)
    assert numbers['stale_samples_ratio'] == 0.0


# -------------------------------------------------------------------- threads


@pytest.mark.parametrize('call, name, total', [
    (('generated', 3), 'total_generated_samples', 1200),  # 4 threads of 100 calls
    (('processed', 3, 0, 0.0, False), 'processed_samples', 1200),
    (('dropped', 3), 'dropped_stale_samples', 1200),
    (('discarded', 3), 'dropped_samples', 1200),
    (('generation_failed',), 'generation_errors', 400),
    (('generation_overdue',), 'generation_timeouts', 400),
])
def test_calls_of_several_threads_add_up(restless_in, call, name, total):
    restless_in(samples)
    account = SampleAccount(begun=10.0, clock=lambda: 13.0)
    method, *arguments = call

    def hammer(_):
        for _ in range(100):
            getattr(account, method)(*arguments)

    at_once(hammer, threads=4)
    assert account.numbers()[name] == total


def test_nothing_is_lost_between_threads(restless_in):
    restless_in(samples)
    account = SampleAccount(begun=10.0, clock=lambda: 13.0)

    def hammer(_):
        for turn in range(40):
            account.generated(10)
            account.processed(4, turn % 4, 0.25, is_stale=turn % 4 == 3)
            account.dropped(3)
            account.discarded(2)
            account.generation_failed()
            account.generation_overdue()

    at_once(hammer, threads=8)
    # 8 threads of 40 turns: 320 turns in all, of which each staleness from 0 to 3 had 80.
    assert account.numbers() == dict(
        total_generated_samples=3200,
        processed_samples=1280,
        dropped_stale_samples=960,
        dropped_samples=1600,  # and 640 discarded
        generation_errors=320,
        generation_timeouts=320,
        avg_sample_age=0.25,
        max_sample_age=0.25,
        mean_staleness=1.5,  # (0 + 1 + 2 + 3) / 4
        max_staleness=3,
        max_late_staleness=0,
        stale_samples_ratio=0.25,
        time_to_first_batch=3.0,  # begun at 10, and it is 13
    )
    assert on_the_way(account.numbers()) == 320  # 1 of each turn


def test_whoever_reads_sees_all_of_a_call_or_nothing_of_it(restless_in):
    restless_in(samples)
    account = SampleAccount(begun=10.0, clock=lambda: 13.0)

    def write():
        for _ in range(200):
            account.processed(5, 2, 0.5, is_stale=True)

    def read():
        for _ in range(200):
            now = account.numbers()
            any_yet = now['processed_samples'] > 0
            assert (now['mean_staleness'], now['avg_sample_age'], now['stale_samples_ratio']) == (
                (2.0, 0.5, 1.0) if any_yet else (0.0, 0.0, 0.0)
            )

    at_once(lambda number: write() if number < 2 else read(), threads=4)
    assert account.numbers()['processed_samples'] == 2000


# -------------------------------------------------------------------- whole runs


@pytest.mark.parametrize('settings', [dict(degree=0), dict(degree=3), dict(degree=0, sync_batch_size=35)])
def test_a_run_that_ends_in_order_has_processed_all_it_generated(settings):
    numbers = make_run(**settings, max_env_step=120).trainer.run().statistics
    assert numbers['total_generated_samples'] == numbers['processed_samples'] == 120
    assert numbers['dropped_samples'] == 0


def test_a_run_that_fails_counts_what_it_leaves():
    run = make_run(8, data_queue_size=1)
    queue = watch(run.trainer._queue)

    def fail_once_the_collector_waits(*_):
        queue.await_blocked('lzero-async-collector-0')
        raise ValueError('in the first update')

    run.learner.work = fail_once_the_collector_waits
    with pytest.raises(RoleFailed):
        run.trainer.run()
    numbers = run.trainer.get_statistics()
    # 10 samples with the learner, 10 in the queue, 10 in the collector's hands.
    assert (numbers['total_generated_samples'], numbers['processed_samples']) == (30, 10)
    assert (numbers['dropped_samples'], numbers['dropped_stale_samples']) == (20, 0)


def test_a_collect_that_fails_generates_nothing_and_is_counted():
    def fail_at_the_third(call, _):
        if call == 3:
            raise ValueError('at 3')

    run = make_run(collectors=[FakeCollector(work=fail_at_the_third)], learner=FakeLearner())
    with pytest.raises(RoleFailed):
        run.trainer.run()
    numbers = run.trainer.get_statistics()
    assert (numbers['total_generated_samples'], numbers['processed_samples']) == (20, 20)
    assert numbers['generation_errors'] == 1


def test_a_run_times_its_first_batch_by_its_own_clock():
    loops = make_loops(degree=4)
    loops.collector.work = lambda *_: loops.clock.advance(5)
    for _ in range(3):
        loops.collect()
    assert loops.channels.samples.numbers()['time_to_first_batch'] == 5.0


def test_a_trainer_is_told_when_its_run_was_called_for():
    run = make_run(max_env_step=60)
    trainer = AsyncTrainer(
        run.coordinator, run.collectors, run.learner, run.evaluator, run.observer, RunLimits(60, 1000),
        settings=fast(), begun=time.monotonic() - 1000,
    )
    assert 1000 <= trainer.run().statistics['time_to_first_batch'] < 2000


@pytest.mark.parametrize('degree, collectors', [(0, 1), (2, 1), (2, 3)])
def test_the_steps_of_all_collectors_are_those_of_the_run(degree, collectors):
    learner = FakeLearner()
    learner.env_step = 100  # made before the run
    run = make_run(degree, collectors=[FakeCollector(steps=10) for _ in range(collectors)], learner=learner,
                   max_env_step=160)
    run.trainer.run()
    steps = [batch.env_step for batch in learner.admitted]
    assert sorted(steps) == list(range(110, 110 + 10 * len(steps), 10))
    assert max(steps) >= 160
