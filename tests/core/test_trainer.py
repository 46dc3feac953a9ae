"""Whole runs of fakes that end well."""
import dataclasses
import itertools
import threading

import pytest
from fakes import (
    TIMEOUT,
    FakeCollector,
    FakeEvaluator,
    FakeLearner,
    FakeObserver,
    IdleLearner,
    await_event,
    make_run,
    our_threads,
    start,
    watch,
)
from loops import WildLearner, listening

from lzero_async.core.errors import ConfigError

# A run that hangs does so in the main thread, where only this ends it.
pytestmark = pytest.mark.timeout(60)


def assert_all_trained(run, outcome):
    """Every collected round was trained, once, and no thread is left."""
    counts = outcome.statistics
    assert counts['collect_count'] == counts['train_count'] == len(run.learner.admitted) == len(run.learner.rounds)
    assert counts['max_lag'] <= max(1, counts['off_policy_degree'])
    assert counts['total_generated_samples'] == counts['processed_samples'] == run.learner.env_step
    assert counts['dropped_samples'] == counts['drop_count'] == 0
    assert outcome.queue.total_produced == outcome.queue.total_consumed == counts['collect_count']
    assert (outcome.queue.queue_size, outcome.queue.discarded) == (0, 0)
    assert our_threads() == []


# -------------------------------------------------------------------- serial


class SharingLearner(FakeLearner):
    """The others work with its own weights, as in a serial run."""

    def snapshot(self):
        return dataclasses.replace(super().snapshot(), weights=None)


@pytest.mark.parametrize('stall_timeout', [None, 600.0])
def test_the_serial_order_and_no_thread_but_the_watchdogs(monkeypatch, stall_timeout):
    events, started = [], []
    log = events.append
    run = make_run(
        collectors=[FakeCollector(log=log)], learner=SharingLearner(log=log), observer=FakeObserver(log=log),
        evaluator=FakeEvaluator(due_at=[2], log=log), max_train_iter=6, stall_timeout=stall_timeout,
    )
    assert events == ['snapshot']  # the weights of the first collect
    events.clear()
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, 'start', lambda thread: (started.append(thread.name), start(thread)))
    outcome = run.trainer.run()
    monkeypatch.undo()
    assert started == ([] if stall_timeout is None else ['lzero-async-watchdog'])
    turn = ['collect', 'admit', 'train', 'snapshot', 'round']
    assert events == [
        *turn, 'due?', 'state', 'evaluate', 'evaluation',
        *turn, 'due?',
        *turn,  # the limit is reached: nothing more is evaluated
    ]
    assert outcome.ended_by == 'max_train_iter'
    assert_all_trained(run, outcome)


@pytest.mark.parametrize('degree', [0, 2])
def test_weights_that_are_shared_are_never_loaded(degree):
    run = make_run(degree, learner=SharingLearner(), evaluator=FakeEvaluator(always=True), max_env_step=100)
    outcome = run.trainer.run()
    assert run.collectors[0].loaded == run.evaluator.loaded == []
    assert outcome.statistics['sync_failures'] == 0
    assert_all_trained(run, outcome)


def test_serial_collects_with_the_weights_of_the_round_before():
    run = make_run(max_env_step=40)
    outcome = run.trainer.run()
    assert [snapshot.policy_version for snapshot in run.collectors[0].snapshots] == [0, 2, 4, 6]
    assert [record.staleness for record in run.observer.rounds] == [0, 0, 0, 0]
    assert outcome.ended_by == 'max_env_step'


# -------------------------------------------------------------------- how a run ends

DEGREES = pytest.mark.parametrize('degree', [0, 1, 4, 60])


@DEGREES
def test_until_max_env_step(degree):
    run = make_run(degree, max_env_step=120)
    outcome = run.trainer.run()
    assert outcome.ended_by == 'max_env_step'
    assert run.learner.env_step == 120  # the collector stops at the step, not the learner later
    assert_all_trained(run, outcome)


@pytest.mark.parametrize('degree', [1, 2, 5])
def test_several_collectors_until_max_env_step(degree):
    run = make_run(degree, collectors=[FakeCollector() for _ in range(3)], max_env_step=200)
    outcome = run.trainer.run()
    assert outcome.ended_by == 'max_env_step'
    assert 200 <= run.learner.env_step <= 200 + 10 * degree
    assert_all_trained(run, outcome)


@DEGREES
def test_until_max_train_iter(degree):
    run = make_run(degree, max_train_iter=20)
    outcome = run.trainer.run()
    assert outcome.ended_by == 'max_train_iter'
    assert 20 <= run.learner.train_iter <= 20 + 2 * degree  # what was collected by then is trained, 2 updates each
    assert_all_trained(run, outcome)


@DEGREES
@pytest.mark.parametrize('async_eval', [False, True])
def test_until_the_stop_value(degree, async_eval):
    run = make_run(degree, async_eval, evaluator=FakeEvaluator(always=True, stop_at=10))
    outcome = run.trainer.run()
    assert outcome.ended_by == 'stop_value'
    assert max(evaluation.policy_version for evaluation in run.observer.evaluations) >= 10
    assert_all_trained(run, outcome)


@DEGREES
@pytest.mark.parametrize('reason, ended_by', [((), 'request_stop'), (('enough',), 'enough')])
def test_until_a_stop_is_requested(degree, reason, ended_by):
    fifth = threading.Event()
    run = make_run(degree, collectors=[FakeCollector(work=lambda call, _: call == 5 and fifth.set())])
    asker = start(lambda: (await_event(fifth), run.trainer.request_stop(*reason)))
    outcome = run.trainer.run()
    asker.result(TIMEOUT)
    assert outcome.ended_by == ended_by
    assert len(run.learner.admitted) >= 5
    assert_all_trained(run, outcome)


@pytest.mark.parametrize('degree', [0, 2])
def test_a_stop_requested_before_the_run(degree):
    run = make_run(degree)
    run.trainer.request_stop()
    outcome = run.trainer.run()
    assert (outcome.ended_by, outcome.statistics['collect_count']) == ('request_stop', 0)


@pytest.mark.parametrize('degree', [0, 2])
def test_a_run_outside_the_main_thread(degree):
    run = make_run(degree, max_env_step=50)
    assert start(run.trainer.run).result(TIMEOUT).ended_by == 'max_env_step'


# -------------------------------------------------------------------- lag and staleness


@pytest.mark.parametrize('degree, queue_size', list(itertools.product([1, 2, 3, 8], [1, 10])))
def test_staleness_stays_below_the_degree(degree, queue_size):
    run = make_run(degree, max_env_step=600, data_queue_size=queue_size)
    outcome = run.trainer.run()
    assert [record.round for record in run.observer.rounds] == list(range(1, 61))
    assert all(0 <= record.staleness <= degree - 1 for record in run.observer.rounds)
    versions = [snapshot.policy_version for snapshot in run.collectors[0].snapshots]
    # Batch n (from 0) was collected with at least n - (degree - 1) rounds trained, of 2 updates each.
    assert all(2 * (n - degree + 1) <= version <= 2 * n for n, version in enumerate(versions))
    assert_all_trained(run, outcome)


def test_collecting_and_training_overlap():
    # Each waits inside its work for the other to be at work too: in turns, this would never end.
    both = threading.Barrier(2, timeout=TIMEOUT)

    def from_the_second_on(call, _):
        if 2 <= call <= 6:
            both.wait()

    run = make_run(
        1 + 1, collectors=[FakeCollector(work=from_the_second_on)],
        learner=FakeLearner(updates=1, work=lambda update, _: update <= 5 and both.wait()), max_env_step=80,
    )
    assert_all_trained(run, run.trainer.run())


def test_an_idle_learner_trains_ahead_so_far_and_no_further():
    aheads_made = threading.Event()
    run = make_run(9, ahead=2, collectors=[FakeCollector()])  # so high a degree that it does not matter
    queue = watch(run.trainer._queue)
    run.learner.work = lambda update, _: update == 6 and aheads_made.set()  # one round and two ahead, 2 updates each

    def second_collect(call, _):
        if call == 2:
            await_event(aheads_made)
            queue.await_blocked('lzero-async-learner')
            run.trainer.request_stop()

    run.collectors[0].work = second_collect
    outcome = run.trainer.run()
    assert run.learner.train_iter == 6
    assert len(run.learner.admitted) == 2  # the second was paid for, so it is only admitted
    assert (outcome.statistics['collect_count'], outcome.statistics['train_count']) == (2, 3)


def test_an_idle_learner_trains_ahead_no_further_than_the_collect_in_flight_allows():
    collecting, ahead_made = threading.Event(), threading.Event()
    run = make_run(2, ahead=9)
    queue = watch(run.trainer._queue)
    run.learner.work = lambda update, _: update == 1 and await_event(collecting)
    run.observer.work = lambda number: number == 2 and ahead_made.set()

    def second_collect(call, _):
        if call == 2:  # with the weights of round 0: two rounds may be trained before it, and no third
            collecting.set()
            await_event(ahead_made)
            queue.await_blocked('lzero-async-learner')
            run.trainer.request_stop()

    run.collectors[0].work = second_collect
    outcome = run.trainer.run()
    assert (run.learner.rounds, run.learner.aheads) == ([2], [2])
    assert len(run.learner.admitted) == 2
    assert outcome.statistics['max_staleness'] == 2


@pytest.mark.parametrize('degree', [1, 2, 5])
def test_training_ahead_keeps_its_bound_in_a_whole_run(degree):
    run = make_run(degree, ahead=2, max_env_step=400)
    outcome = run.trainer.run()
    assert outcome.statistics['max_staleness'] <= degree
    assert len(run.learner.admitted) == outcome.statistics['collect_count'] == 40
    assert 40 <= outcome.statistics['train_count'] == len(run.learner.rounds) + len(run.learner.aheads) <= 42
    assert all(record.lag >= -2 for record in run.observer.rounds)


@pytest.mark.parametrize('degree', [1, 2, 5])
@pytest.mark.parametrize('pieces', [0, 1, 7])
def test_idle_work_changes_nothing_of_a_run(degree, pieces):
    collectors = [FakeCollector(), FakeCollector()]
    run = make_run(degree, learner=IdleLearner(pieces), collectors=collectors, max_env_step=400)
    outcome = run.trainer.run()
    assert run.learner.rounds == len(run.learner.rounds) * [2]
    assert outcome.statistics['max_staleness'] <= degree
    assert outcome.statistics['pieces_done'] == run.learner.done <= pieces * (len(run.learner.rounds) + 1)
    assert run.learner.threads <= {'lzero-async-learner'}
    assert_all_trained(run, outcome)


def test_a_learner_whose_idle_work_has_no_end_still_trains_every_batch_and_ends():
    enough = threading.Event()
    run = make_run(2, learner=IdleLearner(idle=lambda piece: piece == 50 and enough.set()), max_env_step=100)
    run.collectors[0].work = lambda call, _: call == 5 and await_event(enough)
    outcome = run.trainer.run()
    assert outcome.statistics['pieces_done'] >= 50
    assert_all_trained(run, outcome)


def test_a_serial_run_has_no_idle_work():
    run = make_run(0, learner=IdleLearner(), max_env_step=100)
    outcome = run.trainer.run()
    assert outcome.statistics['pieces_done'] == 0
    assert_all_trained(run, outcome)


def test_batches_of_the_last_collector_count_though_another_has_ended():
    run = make_run(2, collectors=[FakeCollector(), FakeCollector()])
    other_collects, stop_requested = threading.Event(), threading.Event()

    def collect_last(*_):
        await_event(other_collects)
        run.trainer.request_stop()
        stop_requested.set()
        for thread in threading.enumerate():
            if thread.name == 'lzero-async-collector-0':
                thread.join(TIMEOUT)
                assert not thread.is_alive()

    run.collectors[0].work = lambda *_: (other_collects.set(), await_event(stop_requested))
    run.collectors[1].work = collect_last
    outcome = run.trainer.run()
    assert outcome.statistics['collect_count'] == 2
    assert_all_trained(run, outcome)


# -------------------------------------------------------------------- what is reported


def test_an_overdue_collect_is_reported_while_it_lasts():
    with listening() as ear:
        run = make_run(1, generation_timeout=0.01, max_env_step=30)
        run.collectors[0].work = lambda call, _: call == 2 and ear.await_message('generation_timeout is 0.01 s')
        outcome = run.trainer.run()
    assert ear.all_with('generation_timeout')[0].startswith('collector-0 has been collecting for ')
    assert outcome.statistics['generation_timeouts'] >= 1
    assert_all_trained(run, outcome)


def test_a_collector_that_waits_for_the_learner_is_reported_and_waits_on():
    with listening() as ear:
        run = make_run(1, generation_timeout=0.01, max_env_step=30)
        run.learner.work = lambda update, _: update == 1 and ear.await_message('collector-0: collect waited 0.01 s for')
        outcome = run.trainer.run()
    assert_all_trained(run, outcome)


def test_a_learner_that_waits_for_batches_says_for_whose():
    with listening() as ear:
        run = make_run(2, batch_timeout=0.01, max_env_step=30, collectors=[FakeCollector(), FakeCollector()])
        calls = itertools.count()

        def first_collect(*_):
            if next(calls) == 0:
                ear.await_message('the learner waited 0.01 s for ')

        for collector in run.collectors:
            collector.work = first_collect
        outcome = run.trainer.run()
    assert all(f'{name} ' in ear.all_with('the learner waited')[0] for name in ('collector-0', 'collector-1'))
    assert_all_trained(run, outcome)


@pytest.mark.parametrize('degree, count', [(2, 2), (4, 2), (4, 4)])
def test_a_run_whose_learner_waits_for_several_batches(degree, count):
    run = make_run(degree, min_batch_count=count, max_env_step=12 * 10)
    outcome = run.trainer.run()
    # The first of each group is trained with all others of it in the queue.
    assert all(record.queue_size >= count - 1 for record in run.observer.rounds[::count])
    assert_all_trained(run, outcome)


def test_the_numbers_of_all_parts_in_one_copy():
    run = make_run(1, max_env_step=30)
    outcome = run.trainer.run()
    assert outcome.statistics == run.trainer.get_statistics()
    expected = {
        'collect_count': 3, 'train_count': 3, 'drop_count': 0, 'global_steps': 6, 'total_generated_samples': 30,
        'processed_samples': 30, 'dropped_samples': 0, 'queue_size': 0, 'total_produced': 3, 'total_consumed': 3,
        'queue_memory_bytes': 0, 'current_param_version': 6, 'param_sync_count': 4, 'non_finite_weights': 0,
        'generation_errors': 0, 'max_lag': 1, 'off_policy_degree': 1, 'mode': 'asynchronous',
    }
    assert {name: outcome.statistics[name] for name in expected} == expected


# -------------------------------------------------------------------- refused


@pytest.mark.parametrize('degree', [0, 2])
def test_weights_to_begin_with_that_are_not_finite_are_refused(degree):
    with pytest.raises(ConfigError, match=r'^the weights to begin with must be finite'):
        make_run(degree, learner=WildLearner(lambda train_iter: True))


def test_a_serial_run_has_one_collector():
    with pytest.raises(ConfigError, match=r'^collectors must be one when off_policy_degree is 0, got 2$'):
        make_run(0, collectors=[FakeCollector(), FakeCollector()])


@pytest.mark.parametrize('degree', [0, 2])
def test_no_collectors_are_refused(degree):
    with pytest.raises(ConfigError, match=r'^collectors must hold at least one collector, got none$'):
        make_run(degree, collectors=[])
