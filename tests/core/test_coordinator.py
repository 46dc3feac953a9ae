import asyncio
import threading

import pytest
from fakes import TIMEOUT, FakeClock, Gate, nothing, start, watch

from lzero_async.core.coordinator import AsyncTrainingCoordinator
from lzero_async.core.errors import BoundBroken, ConfigError, GateTimeout, Stopped
from lzero_async.core.strain import TrainingSignals


def fail():
    raise ValueError('broken')


def collected(coordinator, rounds):
    for _ in range(rounds):
        coordinator.run_collect(nothing)
    return coordinator


# -------------------------------------------------------------------- the modes


def test_serial_three_by_three():
    coordinator = AsyncTrainingCoordinator()
    order = []
    for turn in range(3):
        assert coordinator.can_collect() and not coordinator.can_train()
        assert coordinator.run_collect(lambda turn=turn: order.append(f'collect {turn}') or turn) == turn
        assert coordinator.can_train() and not coordinator.can_collect()
        assert coordinator.collect_train_lag == 1
        assert coordinator.run_train(lambda turn=turn: order.append(f'train {turn}') or -turn) == -turn
    assert order == ['collect 0', 'train 0', 'collect 1', 'train 1', 'collect 2', 'train 2']
    statistics = coordinator.get_statistics()
    assert (statistics['collect_count'], statistics['train_count']) == (3, 3)
    assert statistics['collect_train_lag'] == coordinator.collect_train_lag == 0
    assert statistics['max_lag'] == 1
    assert statistics['mode'] == 'synchronous'
    assert coordinator.is_synchronous


@pytest.mark.parametrize('degree', [1, 2, 5, 10, 50, 100])
def test_asynchronous_collects_as_far_ahead_as_the_degree(degree):
    coordinator = collected(AsyncTrainingCoordinator(degree), degree)
    assert coordinator.collect_train_lag == degree
    assert not coordinator.can_collect()
    coordinator.run_train(nothing)
    assert coordinator.can_collect()  # one trained, one more may be collected
    coordinator.run_collect(nothing)
    assert not coordinator.can_collect()
    assert coordinator.get_statistics()['mode'] == 'asynchronous'
    assert coordinator.get_statistics()['max_lag'] == degree
    assert not coordinator.is_synchronous
    assert coordinator.off_policy_degree == degree


@pytest.mark.parametrize('ahead, rounds', [(None, 9), (0, 1), (2, 3)])
def test_how_many_rounds_one_collect_lets_through(ahead, rounds):
    coordinator = AsyncTrainingCoordinator(4, max_train_ahead=ahead)
    assert not coordinator.can_train()
    coordinator.run_collect(nothing)
    for _ in range(rounds):
        assert coordinator.can_train()
        coordinator.run_train(nothing)
    assert coordinator.train_count == rounds
    assert coordinator.can_train() is (ahead is None)


@pytest.mark.parametrize('sizes, degree', [({}, 31), ({'buffer_size': 100, 'batch_size': 32}, 1)])
def test_auto_tune(sizes, degree):
    coordinator = AsyncTrainingCoordinator(-1, **sizes)
    assert coordinator.off_policy_degree == coordinator.get_statistics()['off_policy_degree'] == degree
    assert not coordinator.is_synchronous


@pytest.mark.parametrize('field, value', [
    ('off_policy_degree', True),
    ('off_policy_degree', 1.5),
    ('off_policy_degree', '2'),
    ('off_policy_degree', -2),
    ('buffer_size', 0),
    ('batch_size', 0),
    ('enable_async_eval', 1),
    ('max_train_ahead', -1),
])
def test_refused_settings(field, value):
    with pytest.raises(ConfigError, match=rf'^{field} must be .*, got {value!r}$'):
        AsyncTrainingCoordinator(**{field: value})


@pytest.mark.parametrize('settings, highest', [
    ({'off_policy_degree': 0}, 0),
    ({'off_policy_degree': 7}, 7),
    ({'off_policy_degree': -1}, 31),
    ({'off_policy_degree': -1, 'max_off_policy_degree': 50}, 50),
    ({'off_policy_degree': -1, 'max_off_policy_degree': 5}, 5),
    ({'off_policy_degree': -1, 'min_off_policy_degree': 40}, 40),
])
def test_what_the_degree_can_grow_to(settings, highest):
    assert AsyncTrainingCoordinator(**settings).highest_degree == highest


def tuned(signals, start=16):
    """The degree after so many rounds of equal length, with what the learner said of each."""
    clock = FakeClock()
    coordinator = AsyncTrainingCoordinator(-1, buffer_size=10 * start, batch_size=1, clock=clock)
    for loss in signals:
        coordinator.run_collect(lambda: clock.advance(1))
        if loss is not None:
            coordinator.report_signals(TrainingSignals(loss=loss))
        coordinator.run_train(lambda: clock.advance(1))
    return coordinator.off_policy_degree


def test_a_degree_that_tunes_itself_hears_the_signals_of_its_round():
    calm = [1.0] * 7  # before the first decision
    assert tuned(calm) == 16
    assert tuned([*calm, float('nan')]) == 8
    assert tuned([*calm, float('nan'), *[None] * 9]) == 8  # heard once: after so many rounds it would count again
    assert tuned([*calm, *[float('nan')] * 10]) == 4


def test_a_degree_that_was_lowered_comes_into_force_as_rounds_are_trained():
    coordinator = collected(AsyncTrainingCoordinator(-1, buffer_size=160, batch_size=1), 12)
    coordinator.run_train(lambda: coordinator.report_signals(TrainingSignals(loss=float('nan'))))
    seen = [coordinator.off_policy_degree]
    for _ in range(5):
        assert coordinator.can_collect() is (coordinator.collect_train_lag < 8)
        coordinator.run_train(nothing)
        seen.append(coordinator.off_policy_degree)
    assert seen == [11, 10, 9, 8, 8, 8]


# -------------------------------------------------------------------- the work


@pytest.mark.parametrize('degree', [0, 1])
def test_a_collect_that_raises_is_not_counted_and_frees_its_slot(degree):
    coordinator = AsyncTrainingCoordinator(degree)
    with pytest.raises(ValueError, match='broken'):
        coordinator.run_collect(fail)
    statistics = coordinator.get_statistics()
    assert (statistics['collect_count'], statistics['collects_in_flight']) == (0, 0)
    assert statistics['collect_total_time'] == 0
    assert coordinator.can_collect() and not coordinator.can_train()


def test_a_round_that_raises_is_still_owed():
    coordinator = collected(AsyncTrainingCoordinator(1, max_train_ahead=0), 1)
    with pytest.raises(ValueError, match='broken'):
        coordinator.run_train(fail)
    assert coordinator.train_count == 0
    assert coordinator.can_train() and not coordinator.can_collect()


def test_a_collect_that_raises_wakes_the_next_collector():
    coordinator = AsyncTrainingCoordinator(1)
    gate = watch(coordinator)
    work = Gate()
    failing = start(lambda: coordinator.run_collect(lambda: (work(), fail())))
    work.await_arrival()
    waiting = start(lambda: coordinator.run_collect(lambda: 'collected'), 'waiting')
    gate.await_blocked('waiting')
    work.open()
    assert isinstance(failing.exception(TIMEOUT), ValueError)
    assert waiting.result(TIMEOUT) == 'collected'


async def twice(value):
    await asyncio.sleep(0)
    return 2 * value


def test_coroutine_functions_from_plain_code():
    coordinator = AsyncTrainingCoordinator()
    assert coordinator.run_collect(lambda: twice(1)) == 2
    assert coordinator.run_train(lambda: twice(2)) == 4
    assert coordinator.run_eval(lambda: twice(3)) == 6
    assert coordinator.get_statistics()['eval_count'] == 1


def test_coroutine_functions_from_inside_a_running_loop():
    coordinator = AsyncTrainingCoordinator()

    async def main():
        return coordinator.run_collect(lambda: twice(1)), coordinator.run_train(lambda: twice(2))

    assert asyncio.run(main()) == (2, 4)


@pytest.mark.parametrize('in_loop', [False, True])
def test_a_coroutine_that_raises_is_not_counted(in_loop):
    coordinator = AsyncTrainingCoordinator()

    async def broken():
        fail()

    async def main():
        coordinator.run_collect(broken)

    with pytest.raises(ValueError, match='broken'):
        asyncio.run(main()) if in_loop else coordinator.run_collect(broken)
    assert coordinator.get_statistics()['collect_count'] == 0
    assert coordinator.can_collect()


# -------------------------------------------------------------------- the gates


@pytest.mark.parametrize('degree', [0, 1, 3])
def test_a_blocked_collect_is_released_by_a_trained_round(degree):
    coordinator = AsyncTrainingCoordinator(degree)
    gate = watch(coordinator)
    collected(coordinator, max(1, degree))
    order = []
    collector = start(lambda: coordinator.run_collect(lambda: order.append('collect')), 'collector')
    gate.await_blocked('collector')
    coordinator.run_train(lambda: order.append('train'))
    collector.result(TIMEOUT)
    assert order == ['train', 'collect']


@pytest.mark.parametrize('degree', [0, 1, 3])
def test_a_blocked_collect_is_released_by_a_dropped_round(degree):
    coordinator = AsyncTrainingCoordinator(degree)
    gate = watch(coordinator)
    collected(coordinator, max(1, degree))
    collector = start(lambda: coordinator.run_collect(lambda: 'collected'), 'collector')
    gate.await_blocked('collector')
    coordinator.drop_round()
    assert collector.result(TIMEOUT) == 'collected'
    assert not coordinator.can_collect()


def test_a_dropped_round_is_not_there_to_be_trained():
    coordinator = collected(AsyncTrainingCoordinator(3, max_train_ahead=0), 2)
    coordinator.drop_round()
    assert coordinator.can_train()
    coordinator.run_train(nothing)
    assert not coordinator.can_train()


@pytest.mark.parametrize('degree', [1, 3])
def test_a_gate_that_lets_too_much_through_is_noticed(degree, monkeypatch):
    monkeypatch.setattr('lzero_async.core.coordinator.may_collect', lambda *_: True)
    coordinator = collected(AsyncTrainingCoordinator(degree), degree)
    with pytest.raises(BoundBroken, match=f'^lag must be <= off_policy_degree {degree}, got {degree + 1} with this'):
        coordinator.run_collect(fail)
    assert coordinator.get_statistics()['collects_in_flight'] == 0


def test_a_blocked_train_is_released_by_a_collect():
    coordinator = AsyncTrainingCoordinator(2)
    gate = watch(coordinator)
    learner = start(lambda: coordinator.run_train(lambda: 'trained'), 'learner')
    gate.await_blocked('learner')
    coordinator.run_collect(nothing)
    assert learner.result(TIMEOUT) == 'trained'


def test_five_collectors_share_two_slots():
    coordinator = AsyncTrainingCoordinator(2)
    gate = watch(coordinator)
    work = Gate()
    entered, finished = threading.Semaphore(0), threading.Semaphore(0)

    def collect():
        coordinator.run_collect(lambda: (entered.release(), work()))
        finished.release()

    for index in range(5):
        start(collect, f'collector-{index}')
        if index < 2:
            assert entered.acquire(timeout=TIMEOUT)
        else:
            gate.await_blocked(f'collector-{index}')
    assert coordinator.get_statistics()['collects_in_flight'] == 2
    work.open()
    assert finished.acquire(timeout=TIMEOUT) and finished.acquire(timeout=TIMEOUT)
    for trained in range(3):
        # A slot stays taken after the collect, until its round is trained.
        now = coordinator.get_statistics()
        assert (now['collect_count'], now['collects_in_flight'], now['train_count']) == (2 + trained, 0, trained)
        coordinator.run_train(nothing)
        assert finished.acquire(timeout=TIMEOUT)
    assert coordinator.get_statistics()['collect_count'] == 5
    assert coordinator.get_statistics()['max_lag'] == 2


@pytest.mark.parametrize('degree, ready, call, message', [
    (0, 1, 'run_collect', 'collect waited 0.01 s for training: collect_count=1, train_count=0'),
    (3, 3, 'run_collect', 'collect waited 0.01 s for training: collect_count=3, train_count=0'),
    (3, 0, 'run_train', 'train waited 0.01 s for collecting: collect_count=0, train_count=0'),
])
def test_a_time_out_names_who_waited_for_whom(degree, ready, call, message):
    coordinator = collected(AsyncTrainingCoordinator(degree), ready)
    with pytest.raises(GateTimeout) as refusal:
        getattr(coordinator, call)(fail, timeout=0.01)
    assert str(refusal.value).startswith(message)
    assert f'off_policy_degree={degree}' in str(refusal.value)
    assert isinstance(refusal.value, TimeoutError)


def test_an_open_gate_does_not_time_out():
    assert AsyncTrainingCoordinator().run_collect(lambda: 'collected', timeout=0) == 'collected'


# -------------------------------------------------------------------- the end


def test_a_stop_wakes_a_collector_and_leaves_owed_rounds_to_be_trained():
    coordinator = AsyncTrainingCoordinator(1)
    gate = watch(coordinator)
    coordinator.run_collect(nothing)
    collector = start(lambda: coordinator.run_collect(nothing), 'collector')
    gate.await_blocked('collector')
    coordinator.request_stop()
    assert isinstance(collector.exception(TIMEOUT), Stopped)
    with pytest.raises(Stopped, match='no further collect'):
        coordinator.run_collect(fail)
    assert coordinator.run_train(lambda: 'trained') == 'trained'
    assert coordinator.collect_train_lag == 0


def test_closing_wakes_everybody_and_lets_nothing_start():
    coordinator = AsyncTrainingCoordinator(1, max_train_ahead=0)
    gate = watch(coordinator)
    work = Gate()
    working = start(lambda: coordinator.run_collect(work))
    work.await_arrival()
    waiting = {name: start(lambda call=call: call(fail), name)
               for name, call in [('collector', coordinator.run_collect), ('learner', coordinator.run_train)]}
    for name in waiting:
        gate.await_blocked(name)
    coordinator.close()
    coordinator.close()
    for future in waiting.values():
        assert isinstance(future.exception(TIMEOUT), Stopped)
    for call in (coordinator.run_collect, coordinator.run_train, coordinator.run_eval):
        with pytest.raises(Stopped):
            call(fail)
    work.open()
    working.result(TIMEOUT)
    assert coordinator.get_statistics()['collect_count'] == 1


def test_leaving_the_with_block_closes():
    with AsyncTrainingCoordinator() as coordinator:
        coordinator.run_collect(nothing)
    with pytest.raises(Stopped):
        coordinator.run_train(nothing)
