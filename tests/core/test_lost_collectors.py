"""Collectors whose workers are lost: another one takes over, and nothing that was collected is lost with it."""
import threading

import pytest
from fakes import TIMEOUT, Broken, FakeCollector, Gate, await_event, make_run, our_threads, start, watch
from loops import counts, listening, make_loops, samples
from losing import LosingCollector, lost_at, lost_from, told_to_end

from lzero_async.core.errors import RestartsExhausted, RoleFailed, Stopped, WorkerLost

# A run that hangs does so in the main thread, where only this ends it.
pytestmark = pytest.mark.timeout(60)

MEMBERS = ('await_ready', 'load_weights', 'collect')


def losing_loops(*losses, **settings):
    return make_loops(**{'degree': 4, **settings}, collectors=[LosingCollector(lost_at(*losses))])


def restarts(loops):
    return loops.channels.restarts.numbers()['worker_restarts']


# -------------------------------------------------------------------- another one takes over


@pytest.mark.parametrize('member', MEMBERS)
def test_the_batch_of_a_lost_worker_is_collected_by_another(member):
    loops = losing_loops((member, 1))
    batch = loops.collect()
    assert (batch.policy_version, batch.slot, batch.env_step) == (0, 1 if member == 'collect' else 0, 10)
    before = {'await_ready': 1, 'load_weights': 2, 'collect': 3}[member]
    assert loops.collector.history == [*MEMBERS[:before], 'replace', *MEMBERS]
    assert restarts(loops) == 1
    assert counts(loops) == (1, 0)
    loops.train()
    assert loops.outstanding.idle
    assert counts(loops) == (1, 1)


@pytest.mark.parametrize('member, errors', [('await_ready', 0), ('load_weights', 0), ('collect', 1)])
def test_a_collect_that_was_begun_and_lost_has_failed(member, errors):
    loops = losing_loops((member, 1))
    loops.collect()
    assert samples(loops, 'generation_errors', 'total_generated_samples', 'dropped_samples') == (errors, 10, 0)


def test_the_worker_that_takes_over_gets_the_newest_weights():
    loops = losing_loops(('collect', 3))
    loops.collect()
    loops.train()  # version 2
    loops.collect()
    assert loops.collect().policy_version == 2  # this one was lost at first
    assert loops.collector.loaded == [(0, 'weights-0'), (2, 'weights-2'), (2, 'weights-2')]


def test_weights_published_while_another_worker_starts_are_loaded():
    loops = losing_loops(('collect', 2))
    loops.collect()
    replace = loops.collector.replace
    loops.collector.replace = lambda: (loops.train(), replace())
    batch = loops.collect()
    assert (batch.policy_version, batch.rounds_at_pull) == (2, 1)
    assert loops.collector.loaded == [(0, 'weights-0'), (2, 'weights-2')]


def test_a_load_is_not_tried_again_with_a_lost_worker():
    loops = losing_loops(('load_weights', 1), max_sync_retries=3)
    with listening() as ear:
        loops.collect()
    assert loops.collector.calls['load_weights'] == 2  # one of each worker
    assert ear.messages == ['collector-0 is replaced, 1 of 3 times within 600 s: in load_weights, call 1']


def test_losses_one_after_the_other_in_all_places():
    loops = losing_loops(('await_ready', 1), ('load_weights', 1), ('collect', 1), max_worker_restarts=3)
    loops.collect()
    assert loops.collector.history == [
        'await_ready', 'replace', 'await_ready', 'load_weights', 'replace', 'await_ready', 'load_weights', 'collect',
        'replace', 'await_ready', 'load_weights', 'collect',
    ]
    assert restarts(loops) == 3
    loops.train()
    assert loops.outstanding.idle


def test_what_was_queued_before_the_loss_is_trained():
    loops = losing_loops(('collect', 3))
    before = [loops.collect(), loops.collect()]
    after = loops.collect()
    for _ in range(3):
        loops.train()
    assert [batch.slot for batch in loops.learner.admitted] == [0, 1, 3]
    assert loops.learner.admitted == [*before, after]
    assert samples(loops, 'total_generated_samples', 'processed_samples', 'dropped_samples') == (30, 30, 0)


def test_a_learner_that_waits_for_the_batch_that_was_lost_goes_on():
    lost, again = Gate(), Gate()
    losing = LosingCollector(lost_at(('collect', 2)))
    loops = make_loops(degree=2, collectors=[losing, FakeCollector()])
    loops.collect()
    loops.train()
    queue = watch(loops.queue)
    call = losing._work

    def work(member, snapshot):
        (lost if losing.calls[member] == 1 else again)()
        call(member, snapshot)

    losing._work = work
    collector = start(loops.collect)
    lost.await_arrival()  # it has the weights of round 1
    for _ in range(2):
        loops.collect(1)
        loops.train()
    loops.collect(1)
    learner = start(loops.train, 'learner')
    queue.await_blocked('learner')  # a fourth round would make the batch of collector-0 too stale
    assert loops.outstanding.finished == 3
    try:
        lost.open()
        learner.result(TIMEOUT)  # though collector-0 has not collected again
        again.await_arrival()
        assert loops.outstanding.finished == 4
    finally:
        again.open()
    assert collector.result(TIMEOUT).rounds_at_pull in (3, 4)
    loops.train()
    assert loops.outstanding.idle


def test_the_place_of_a_lost_collect_is_free_for_others():
    loops = make_loops(degree=1, collectors=[LosingCollector(lost_at(('collect', 1))), FakeCollector()])
    gate = watch(loops.coordinator)
    replace = loops.collector.replace
    loops.collector.replace = lambda: (loops.collect(1), replace())
    collector = start(loops.collect, 'collector')
    gate.await_blocked('collector')  # there is one place, and now the other has it
    assert counts(loops) == (1, 0)
    loops.train()
    assert collector.result(TIMEOUT).rounds_at_pull == 1
    assert counts(loops) == (2, 1)


# -------------------------------------------------------------------- the end


@pytest.mark.parametrize('member', MEMBERS)
@pytest.mark.parametrize('most', [0, 1, 3])
def test_a_worker_too_many_is_not_replaced(member, most):
    loops = make_loops(degree=4, collectors=[LosingCollector(lost_from(member, 1))], max_worker_restarts=most)
    with pytest.raises(RestartsExhausted) as exhausted:
        loops.collect()
    assert exhausted.value.__cause__ is loops.collector.losses[-1]
    assert len(loops.collector.losses) == most + 1
    assert loops.collector.history.count('replace') == restarts(loops) == most
    assert loops.outstanding.idle
    assert counts(loops) == (0, 0)
    assert samples(loops, 'generation_errors') == (most + 1 if member == 'collect' else 0,)


def test_time_gives_replacements_back():
    loops = make_loops(degree=9, collectors=[LosingCollector(lambda member, call: member == 'collect' and call % 2)],
                       max_worker_restarts=1, worker_restart_window_s=60)
    for _ in range(3):
        loops.collect()
        loops.clock.advance(61)
    loops.collect()
    with pytest.raises(RestartsExhausted):
        loops.collect()
    assert restarts(loops) == 4


def test_each_collector_may_lose_as_many():
    loops = make_loops(degree=9, collectors=[LosingCollector(lost_at(('collect', 1))) for _ in range(3)],
                       max_worker_restarts=1)
    for index in range(3):
        loops.collect(index)
    assert restarts(loops) == 3


@pytest.mark.parametrize('member', MEMBERS)
@pytest.mark.parametrize('end', ['request', 'abort'])
def test_no_worker_is_started_for_a_run_that_is_stopping(member, end):
    loops = losing_loops((member, 1))

    def stop_and_lose(called, call):
        if called == member:
            getattr(loops.stop, end)('enough')
        return called == member

    loops.collector.loses = stop_and_lose
    with pytest.raises(Stopped) as stopped:
        loops.collect()
    assert stopped.value.__cause__ is loops.collector.losses[0]
    assert 'replace' not in loops.collector.history
    assert restarts(loops) == 0
    assert loops.outstanding.idle


def test_who_waits_for_a_worker_is_told_when_the_run_is_over():
    loops = losing_loops()
    loops.stop.abort('enough')
    with pytest.raises(Stopped):
        loops.collect()
    assert loops.collector.history == ['await_ready']


# -------------------------------------------------------------------- whole runs


def exhausted_run(run, role):
    """Run to the end that the lost workers bring about, and return the last loss."""
    with pytest.raises(RoleFailed) as failure:
        run.trainer.run()
    assert failure.value.role == role
    exhausted = failure.value.__cause__
    assert isinstance(exhausted, RestartsExhausted)
    assert isinstance(exhausted.__cause__, WorkerLost)
    assert str(exhausted.__cause__) in str(failure.value)
    assert str(failure.value).startswith(f'the {role} failed: RestartsExhausted: {role} was replaced')
    assert our_threads() == []
    return exhausted.__cause__


def assert_all_trained(run, rounds):
    numbers = run.trainer.get_statistics()
    assert (numbers['collect_count'], numbers['train_count']) == (rounds, rounds)
    assert numbers['total_generated_samples'] == numbers['processed_samples'] == 10 * rounds
    assert (numbers['dropped_samples'], numbers['queue_size']) == (0, 0)
    return numbers


@pytest.mark.parametrize('degree', [1, 4])
@pytest.mark.parametrize('collectors', [1, 3])
def test_a_run_goes_on_without_the_workers_it_lost(degree, collectors):
    losses = ('collect', 2), ('await_ready', 4), ('load_weights', 4)
    run = make_run(degree, collectors=[LosingCollector(lost_at(*losses)) for _ in range(collectors)], max_env_step=300)
    outcome = run.trainer.run()
    assert outcome.ended_by == 'max_env_step'
    lost = [len(collector.losses) for collector in run.collectors]
    numbers = assert_all_trained(run, outcome.statistics['train_count'])
    assert numbers['worker_restarts'] == sum(lost) > 0
    assert numbers['generation_errors'] == sum(
        str(loss).startswith('in collect') for collector in run.collectors for loss in collector.losses
    )
    assert numbers['train_count'] >= 30
    assert our_threads() == []


def test_a_run_that_loses_nothing_says_so():
    assert make_run(2, max_env_step=30).trainer.run().statistics['worker_restarts'] == 0


@pytest.mark.parametrize('loses, errors', [
    (lost_from('collect', 3), 2),
    (lost_from('await_ready', 3), 0),
    (lambda member, call: (member, call) == ('collect', 3) or (member == 'load_weights' and call > 1), 1),
])
def test_a_run_whose_workers_are_lost_too_often_ends_in_order(loses, errors):
    run = make_run(4, collectors=[LosingCollector(loses)], max_worker_restarts=1)
    told = told_to_end(run)
    run.learner.work = lambda update, _: update == 1 and await_event(told)  # two batches wait for it until then
    assert exhausted_run(run, 'collector-0') is run.collectors[0].losses[-1]
    numbers = assert_all_trained(run, rounds=2)
    assert run.learner.rounds == [2, 2]
    assert (numbers['worker_restarts'], numbers['generation_errors']) == (1, errors)
    assert run.trainer._stop.reason == 'failure'


def test_a_run_that_may_lose_no_worker_ends_with_the_first():
    run = make_run(4, collectors=[LosingCollector(lost_from('collect', 2))], max_worker_restarts=0)
    assert str(exhausted_run(run, 'collector-0')) == 'in collect, call 2'
    assert 'replace' not in run.collectors[0].history
    assert_all_trained(run, rounds=1)


def test_another_collector_finishes_its_batch():
    run = make_run(4, collectors=[LosingCollector(lost_from('collect', 2)), FakeCollector()], max_worker_restarts=0)
    told, begun = told_to_end(run), threading.Event()
    run.collectors[0].work = lambda *_: await_event(begun)
    run.collectors[1].work = lambda *_: (begun.set(), await_event(told))
    exhausted_run(run, 'collector-0')
    assert [len(collector.snapshots) for collector in run.collectors] == [1, 1]
    assert_all_trained(run, rounds=2)


def test_a_failure_while_the_run_ends_in_order_breaks_it_off_and_the_first_is_raised():
    run = make_run(4, collectors=[LosingCollector(lost_from('collect', 3))], max_worker_restarts=0)
    told = told_to_end(run)

    def fail_in_the_ruins(*_):
        await_event(told)
        raise Broken('a consequence')

    run.learner.work = fail_in_the_ruins
    exhausted_run(run, 'collector-0')
    numbers = run.trainer.get_statistics()
    assert (numbers['processed_samples'], numbers['dropped_samples']) == (10, 10)


def test_a_stop_request_meets_a_lost_worker():
    run = make_run(4, collectors=[LosingCollector(lost_at(('collect', 3)))])

    def lose_and_stop(member, call):
        if (member, call) == ('collect', 3):
            run.trainer.request_stop('enough')
            return True
        return False

    run.collectors[0].loses = lose_and_stop
    outcome = run.trainer.run()
    assert outcome.ended_by == 'enough'
    assert 'replace' not in run.collectors[0].history
    assert assert_all_trained(run, rounds=2)['worker_restarts'] == 0
