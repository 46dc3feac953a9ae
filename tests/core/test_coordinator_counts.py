"""The counts and times that a coordinator hands out."""
import json

import pytest
from fakes import TIMEOUT, FakeClock, Gate, nothing, start, watch

from lzero_async.core.activity import Activity
from lzero_async.core.coordinator import AsyncTrainingCoordinator

NO_TIMES = {f'{kind}_{what}_time': 0 for kind in ('collect', 'train', 'eval') for what in ('total', 'avg', 'wait')}


def make(degree=0):
    clock = FakeClock(1000.0)
    return AsyncTrainingCoordinator(degree, clock=clock), clock


def test_statistics_of_nothing():
    coordinator, _ = make(degree=3)
    assert coordinator.get_statistics() == {
        'collect_count': 0, 'train_count': 0, 'eval_count': 0, 'drop_count': 0, 'collect_train_lag': 0,
        'max_lag': 0, 'collects_in_flight': 0, 'mode': 'asynchronous', 'off_policy_degree': 3, 'overlap_time': 0,
        **NO_TIMES,
    }


def test_times_of_work():
    coordinator, clock = make()
    for collect, train in [(2, 1), (4, 2), (6, 3)]:
        coordinator.run_collect(lambda seconds=collect: clock.advance(seconds))
        coordinator.run_train(lambda seconds=train: clock.advance(seconds))
        clock.advance(10)  # belongs to nobody
    coordinator.run_eval(lambda: clock.advance(7))
    statistics = coordinator.get_statistics()
    times = {name: value for name, value in statistics.items() if name.endswith('_time')}
    assert times == {
        **NO_TIMES, 'overlap_time': 0,
        'collect_total_time': 12, 'collect_avg_time': 4,  # (2 + 4 + 6) / 3
        'train_total_time': 6, 'train_avg_time': 2,
        'eval_total_time': 7, 'eval_avg_time': 7,
    }
    assert statistics['eval_count'] == 1
    # 12 + 6 + 7 of work and 3 * 10 of nothing
    assert coordinator.activity() == Activity(55, {'collect': 12, 'train': 6, 'eval': 7}, 0)


def test_time_at_the_gate():
    coordinator, clock = make(degree=1)
    gate = watch(coordinator)
    coordinator.run_collect(nothing)
    collector = start(lambda: coordinator.run_collect(nothing), 'collector')
    gate.await_blocked('collector')
    clock.advance(5)
    coordinator.run_train(lambda: clock.advance(1))
    collector.result(TIMEOUT)
    assert coordinator.get_statistics()['collect_wait_time'] == 6  # 5 before the round, 1 while it was trained
    assert coordinator.get_statistics()['train_wait_time'] == 0


def test_time_of_overlap():
    coordinator, clock = make(degree=2)
    coordinator.run_collect(lambda: clock.advance(1))
    work = Gate()
    collector = start(lambda: coordinator.run_collect(work))
    work.await_arrival()
    clock.advance(2)
    coordinator.run_train(lambda: clock.advance(4))
    assert coordinator.get_statistics()['collects_in_flight'] == 1
    work.open()
    collector.result(TIMEOUT)
    statistics = coordinator.get_statistics()
    assert statistics['overlap_time'] == 4
    assert statistics['collect_total_time'] == 7  # 1 + (2 + 4)
    assert coordinator.activity() == Activity(7, {'collect': 7, 'train': 4, 'eval': 0}, 4)


def test_a_dropped_round_is_neither_trained_nor_outstanding():
    coordinator, _ = make(degree=3)
    for _ in range(3):
        coordinator.run_collect(nothing)
    coordinator.drop_round()
    coordinator.run_train(nothing)
    statistics = coordinator.get_statistics()
    assert (statistics['collect_count'], statistics['train_count'], statistics['drop_count']) == (3, 1, 1)
    assert statistics['collect_train_lag'] == coordinator.collect_train_lag == 1  # 3 - 1 - 1
    assert statistics['max_lag'] == 3


def test_statistics_are_read_only_copies():
    coordinator, _ = make()
    coordinator.run_collect(nothing)
    earlier = coordinator.get_statistics()
    with pytest.raises(TypeError):
        earlier['collect_count'] = 9
    coordinator.run_train(nothing)
    coordinator.run_collect(nothing)
    assert (earlier['collect_count'], earlier['train_count']) == (1, 0)
    assert json.loads(json.dumps(earlier)) == earlier


def test_reset_counters():
    coordinator, clock = make(degree=2)
    untouched = coordinator.get_statistics()
    for _ in range(2):
        coordinator.run_collect(lambda: clock.advance(3))
    coordinator.run_train(lambda: clock.advance(3))
    coordinator.run_eval(lambda: clock.advance(3))
    coordinator.drop_round()
    coordinator.reset_counters()
    assert coordinator.get_statistics() == untouched
    assert coordinator.activity().elapsed == 0
    assert coordinator.can_collect() and not coordinator.can_train()


def test_reset_opens_the_gate_for_a_blocked_collector():
    coordinator, _ = make(degree=1)
    gate = watch(coordinator)
    coordinator.run_collect(nothing)
    collector = start(lambda: coordinator.run_collect(nothing), 'collector')
    gate.await_blocked('collector')
    coordinator.reset_counters()
    collector.result(TIMEOUT)
    assert coordinator.get_statistics()['collect_count'] == 1


def test_work_in_flight_is_counted_after_a_reset():
    coordinator, _ = make(degree=2)
    work = Gate()
    collector = start(lambda: coordinator.run_collect(work))
    work.await_arrival()
    coordinator.reset_counters()
    assert coordinator.get_statistics()['collects_in_flight'] == 1
    work.open()
    collector.result(TIMEOUT)
    statistics = coordinator.get_statistics()
    assert (statistics['collect_count'], statistics['collects_in_flight']) == (1, 0)
