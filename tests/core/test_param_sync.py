"""ParameterSynchronizer: its members, its workers, its numbers, and its end."""
import contextlib
import logging
import math
import re
import threading

import pytest
from easydict import EasyDict
from fakes import (
    TIMEOUT,
    Broken,
    Copying,
    Dying,
    FakeClock,
    Module,
    WatchedLock,
    await_event,
    failing,
    hanging,
    join_attempts,
    logged,
    nothing,
    start,
    timed,
)

from lzero_async.core.config import AsyncConfig
from lzero_async.core.errors import ConfigError, LzeroAsyncError
from lzero_async.core.param_sync import (
    AsyncParameterSynchronizer,
    ParameterSynchronizer,
    UnifiedParameterSynchronizer,
)
from lzero_async.core.placement import Place
from lzero_async.core.weight_ops import PlainWeights, WeightInfo
from lzero_async.core.weights import WeightSnapshot

NAN, INF = math.nan, math.inf

ONE_TRY = {'max_sync_retries': 0, 'sync_timeout': TIMEOUT, 'sync_retry_delay': 0}


class Trainer:
    """Gives the weights that it has at the time. Counts how often it is asked."""

    def __init__(self, weights=None):
        self.weights = {'w': [1.0, 2.0]} if weights is None else weights
        self.reads = 0

    def get_weights(self):
        self.reads += 1
        return self.weights


class Rollouter:
    """Takes weights as `work(call)` lets it: loads count from 1."""

    def __init__(self, work=nothing):
        self.work = work
        self.calls = 0
        self.loaded = []

    def load_weights(self, weights, policy_version):
        self.calls += 1
        self.work(self.calls)
        self.loaded.append((policy_version, weights))

    @property
    def versions(self):
        return [version for version, _ in self.loaded]


def snapshot(version, weights='finite', rounds=0):
    return WeightSnapshot(version, 0, {'v': version} if weights == 'finite' else weights, rounds)


def with_actors(sync):
    sync.register_workers(Trainer(), Rollouter())
    return sync


def numbers(sync, *names):
    return tuple(sync.get_statistics()[name] for name in names)


# -------------------------------------------------------------------- names and settings


def test_it_has_three_names():
    assert UnifiedParameterSynchronizer is AsyncParameterSynchronizer is ParameterSynchronizer


@pytest.mark.parametrize('config', [
    AsyncConfig(max_sync_retries=2, sync_retry_delay=0),
    {'max_sync_retries': 2, 'sync_retry_delay': 0},
    EasyDict(max_sync_retries=2, sync_retry_delay=0),
    {'async_training': {'max_sync_retries': 2, 'sync_retry_delay': 0}},
    EasyDict(async_training=dict(max_sync_retries=2, sync_retry_delay=0)),
    {'max_sync_retries': 2, 'async_training': {'sync_retry_delay': 0}},
    {'model': {}, 'max_sync_retries': 2, 'sync_retry_delay': 0, 'async_training': None},  # with keys of others
], ids=['AsyncConfig', 'flat', 'flat EasyDict', 'group', 'group EasyDict', 'both', 'among others'])
def test_the_settings_are_followed_however_they_are_given(config):
    rollouter = Rollouter(failing(99))
    assert ParameterSynchronizer(config, Trainer(), rollouter).sync_to_rollouter(1) is False
    assert rollouter.calls == 3


def test_the_settings_may_stand_in_a_policy_of_lightzero():
    ParameterSynchronizer({'batch_size': 256, 'update_per_collect': None, 'max_sync_retries': 2})


class Cleaner(logging.Handler):
    """Cleans up at the first warning, and keeps it."""

    def __init__(self, sync):
        super().__init__(logging.WARNING)
        self.sync = sync
        self.heard = []

    def emit(self, record):
        self.heard.append(record.getMessage())
        self.sync.cleanup()


@pytest.mark.parametrize('config', [None, {}, AsyncConfig()])
def test_without_settings_it_tries_four_times(config):
    sync = ParameterSynchronizer(config, Trainer(), Rollouter(failing(99)))
    logger, cleaner = logging.getLogger('lzero_async.core.delivery'), Cleaner(sync)
    logger.addHandler(cleaner)
    try:
        assert sync.sync_to_rollouter(1) is False  # woken from its delay
    finally:
        logger.removeHandler(cleaner)
    assert 'attempt 1 of 4' in cleaner.heard[0]


@pytest.mark.parametrize('config, message', [
    ({'max_sync_retrys': 2}, 'max_sync_retrys must be a setting of lzero-async.*did you mean max_sync_retries'),
    (EasyDict(sync_timeuot=2), 'did you mean sync_timeout'),
    ({'async_training': {'max_sync_retrys': 2}}, 'async_training.max_sync_retrys must be a setting'),
    ({'async_training': {'anything': 2}}, 'async_training.anything must be a setting'),
    ({'async_trainin': {'max_sync_retries': 2}}, 'did you mean async_training'),
    ({'async_training': 3}, 'async_training must be a mapping'),
    ({'sync_timeout': 1, 'async_training': {'sync_timeout': 2}}, 'async_training.sync_timeout must equal'),
    ({'max_sync_retries': -1}, 'max_sync_retries must be >= 0, got -1'),
    ({'max_sync_retries': 1.5}, 'max_sync_retries must be an int >= 0, got 1.5'),
    ({'sync_timeout': 0}, 'sync_timeout must be > 0, got 0'),
    ({'sync_timeout': INF}, 'sync_timeout must be a finite number'),
    ({'sync_retry_delay': -1}, 'sync_retry_delay must be >= 0, got -1'),
])
def test_settings_that_are_wrong_or_misspelt_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        ParameterSynchronizer(config)


@pytest.mark.parametrize('config', [5, 'max_sync_retries', ['max_sync_retries'], object()])
def test_settings_that_are_no_mapping_are_refused(config):
    with pytest.raises(ConfigError, match=r'^config must be an AsyncConfig or a mapping of settings, got '):
        ParameterSynchronizer(config)


# -------------------------------------------------------------------- statistics


STATISTICS = {
    'sync_count': 0, 'sync_failures': 0, 'last_sync_time': 0.0, 'sync_group_initialized': False,
    'current_param_version': 0, 'current_version': 0, 'param_sync_count': 0, 'param_sync_requests': 0,
    'non_finite_weights': 0,
}


def test_at_first_there_is_nothing_to_count():
    sync = ParameterSynchronizer()
    assert sync.get_statistics() == STATISTICS
    assert sync.get_current_version() == 0


def test_as_a_ray_actor_it_says_whether_it_is_ready():
    sync = ParameterSynchronizer(as_ray_actor=True)
    assert sync.get_statistics() == {**STATISTICS, 'is_ready': False}
    sync.register_workers(Trainer(), Rollouter())
    assert numbers(sync, 'is_ready', 'sync_group_initialized') == (True, True)
    sync.cleanup()
    assert numbers(sync, 'is_ready', 'sync_group_initialized') == (False, False)


def test_statistics_are_a_read_only_copy():
    sync = ParameterSynchronizer(ONE_TRY, Trainer(), Rollouter())
    before = sync.get_statistics()
    with pytest.raises(TypeError, match='read-only'):
        before['sync_count'] = 5
    sync.sync_to_rollouter(1)
    assert before == STATISTICS
    assert numbers(sync, 'sync_count') == (1,)


def test_the_time_of_the_last_sync_is_that_of_one_that_succeeded():
    clock, rollouter = FakeClock(100.0), Rollouter()
    sync = ParameterSynchronizer(ONE_TRY, Trainer(), rollouter, clock=clock)
    sync.sync_to_rollouter(1)
    clock.advance(5)
    rollouter.work = failing(99)
    sync.sync_to_rollouter(2)
    assert numbers(sync, 'last_sync_time') == (100.0,)
    rollouter.work = nothing
    sync.sync_to_rollouter(2)
    assert numbers(sync, 'last_sync_time') == (105.0,)


# -------------------------------------------------------------------- sync_to_rollouter


def test_the_weights_go_to_the_rollouter_under_their_version():
    rollouter = Rollouter()
    sync = ParameterSynchronizer(ONE_TRY, Trainer({'w': [3.0]}), rollouter)
    assert sync.sync_to_rollouter(5) is True
    assert rollouter.loaded == [(5, {'w': [3.0]})]
    assert sync.get_current_version() == 5
    assert numbers(sync, 'sync_count', 'sync_failures', 'current_version', 'current_param_version',
                   'param_sync_count') == (1, 0, 5, 5, 1)


def test_neither_side_touches_what_the_other_has():
    trainer, rollouter = Trainer(), Rollouter()
    sync = ParameterSynchronizer(ONE_TRY, trainer, rollouter)
    sync.sync_to_rollouter(1)
    trainer.weights['w'][0] = 8.0
    rollouter.loaded[0][1]['w'][1] = 9.0
    assert sync.latest().weights == {'w': [1.0, 2.0]}
    assert rollouter.loaded == [(1, {'w': [1.0, 9.0]})]


def test_a_version_that_the_rollouter_has_costs_nothing():
    trainer, rollouter = Trainer(), Rollouter()
    sync = ParameterSynchronizer(ONE_TRY, trainer, rollouter)
    sync.sync_to_rollouter(3)
    counted = sync.get_statistics()
    assert sync.sync_to_rollouter(3) is True
    assert (trainer.reads, rollouter.calls) == (1, 1)
    assert sync.get_statistics() == counted


@pytest.mark.parametrize('refused_by_rollouter', [False, True])
def test_a_version_does_not_go_back(refused_by_rollouter):
    rollouter = Rollouter(failing(99) if refused_by_rollouter else nothing)
    sync = ParameterSynchronizer(ONE_TRY, Trainer(), rollouter)
    sync.sync_to_rollouter(3)
    counted = sync.get_statistics()
    with pytest.raises(ConfigError, match='new_version must be >= 3, the newest version so far, got 2'):
        sync.sync_to_rollouter(2)
    assert sync.get_statistics() == counted


@pytest.mark.parametrize('version', [-1, True, 1.0, '1', None])
def test_a_version_must_be_a_count(version):
    trainer = Trainer()
    with pytest.raises(ConfigError, match=r'new_version must be .*>= 0'):
        ParameterSynchronizer(ONE_TRY, trainer, Rollouter()).sync_to_rollouter(version)
    assert trainer.reads == 0


def test_the_first_version_may_be_zero():
    sync = ParameterSynchronizer(ONE_TRY, Trainer(), Rollouter())
    assert sync.sync_to_rollouter(0) is True
    assert numbers(sync, 'sync_count', 'current_version') == (1, 0)


@pytest.mark.parametrize('actors, missing', [
    ((None, None), 'trainer_actor'), ((Trainer(), None), 'rollouter_actor'), ((None, Rollouter()), 'trainer_actor'),
    ((Trainer(), []), 'rollouter_actor'), (([], None), 'trainer_actor'),
])
def test_two_actors_are_needed(actors, missing):
    sync = ParameterSynchronizer(ONE_TRY, *actors)
    with pytest.raises(ConfigError, match=f'^{missing} must be given to sync to the rollouter, got None$'):
        sync.sync_to_rollouter(1)
    assert sync.get_statistics() == STATISTICS


@pytest.mark.parametrize('trainer, rollouter, loaded_by', [
    (None, None, 'registered'), (Trainer({'w': 'given'}), None, 'registered'), (None, Rollouter(), 'given'),
    (Trainer({'w': 'given'}), Rollouter(), 'given'), ([], [], 'registered'),
])
def test_an_actor_that_was_not_given_is_the_registered_worker(trainer, rollouter, loaded_by):
    sync, registered = ParameterSynchronizer(ONE_TRY, trainer, rollouter), Rollouter()
    sync.register_workers(Trainer({'w': 'registered'}), registered)
    assert sync.sync_to_rollouter(3) is True
    receivers = {'registered': registered, 'given': rollouter}
    assert receivers[loaded_by].loaded == [(3, {'w': 'given' if trainer else 'registered'})]
    assert registered.calls == (loaded_by == 'registered')


# -------------------------------------------------------------------- registered workers


WAYS = {
    'register_workers': lambda sync, actors, rollouts: sync.register_workers(actors, rollouts),
    'initialize_sync_group': lambda sync, actors, rollouts: sync.initialize_sync_group(actors, rollouts),
    'sync_weights': lambda sync, actors, rollouts: sync.sync_weights(actors, rollouts),
}
TAKES_NONE = r'must have load_weights\(.*\) or load_state_dict\(.*\), got \w+ without$'
GIVES_NONE = r'must have get_weights\(\) or state_dict\(\), got \w+ without$'
every_way = pytest.mark.parametrize('way', list(WAYS.values()), ids=list(WAYS))


@every_way
@pytest.mark.parametrize('wrap', [lambda worker: worker, lambda worker: [worker], lambda worker: (worker,)],
                         ids=['one', 'list', 'tuple'])
def test_workers_are_one_or_several(way, wrap):
    sync, rollouter = ParameterSynchronizer(ONE_TRY), Rollouter()
    assert way(sync, wrap(Trainer()), wrap(rollouter)) is True
    assert numbers(sync, 'sync_group_initialized') == (True,)
    assert sync.sync_parameters() is True
    assert rollouter.versions[-1] == sync.get_current_version() > 0


@every_way
@pytest.mark.parametrize('actors, rollouts, missing', [
    ([], Rollouter(), 'actor_workers'), (Trainer(), [], 'rollout_workers'), ([], [], 'actor_workers'),
    (None, [Rollouter()] * 2, 'actor_workers'), (Trainer(), None, 'rollout_workers'), ((), (), 'actor_workers'),
])
def test_no_workers_are_refused(way, actors, rollouts, missing):
    sync = ParameterSynchronizer(ONE_TRY)
    with pytest.raises(ConfigError, match=f'^{missing} must hold at least one worker, got none$'):
        way(sync, actors, rollouts)
    assert sync.get_statistics() == STATISTICS


@every_way
@pytest.mark.parametrize('rollouts, name', [
    (object(), 'rollout_workers'), ([object()], 'rollout_workers'), ([Rollouter(), object()], 'rollout_workers[1]'),
])
def test_workers_that_take_no_weights_are_refused(way, rollouts, name):
    sync = ParameterSynchronizer(ONE_TRY)
    with pytest.raises(ConfigError, match=f'^{re.escape(name)} {TAKES_NONE}'):
        way(sync, Trainer(), rollouts)
    assert sync.get_statistics() == STATISTICS


@every_way
@pytest.mark.parametrize('actors, name', [
    (object(), 'actor_workers'), ([object()], 'actor_workers'), ([Trainer(), Rollouter()], 'actor_workers[1]'),
])
def test_workers_that_give_no_weights_are_refused(way, actors, name):
    sync, rollouter = ParameterSynchronizer(ONE_TRY), Rollouter()
    with pytest.raises(ConfigError, match=f'^{re.escape(name)} {GIVES_NONE}'):
        way(sync, actors, rollouter)
    assert sync.get_statistics() == STATISTICS
    assert rollouter.calls == 0


@pytest.mark.parametrize('build, name', [
    (lambda: ParameterSynchronizer(ONE_TRY, Trainer(), object()), 'rollouter_actor'),
    (lambda: ParameterSynchronizer(ONE_TRY, Trainer(), [Rollouter(), object()]), 'rollouter_actor[1]'),
    (lambda: ParameterSynchronizer(ONE_TRY).attach('role', object()), 'role'),
    (lambda: ParameterSynchronizer(ONE_TRY).reading(object()), 'object-0'),
], ids=['actor', 'actors', 'attach', 'reading'])
def test_targets_that_take_no_weights_are_refused(build, name):
    with pytest.raises(ConfigError, match=f'^{re.escape(name)} {TAKES_NONE}'):
        build()


@pytest.mark.parametrize('actors, name', [
    ((object(), Rollouter()), 'trainer_actor'),
    ((object(),), 'trainer_actor'),
    (([Trainer(), object()], Rollouter()), 'trainer_actor[1]'),
])
def test_sources_that_give_no_weights_are_refused(actors, name):
    with pytest.raises(ConfigError, match=f'^{re.escape(name)} {GIVES_NONE}'):
        ParameterSynchronizer(ONE_TRY, *actors)


@pytest.mark.parametrize('actors', [(), (Trainer(), Rollouter())], ids=['none', 'actors'])
def test_sync_parameters_needs_registered_workers(actors):
    told = '^actor_workers and rollout_workers must be registered before a sync, got none$'
    with pytest.raises(ConfigError, match=told):
        ParameterSynchronizer(ONE_TRY, *actors).sync_parameters()


def test_every_sync_of_workers_is_a_version_of_its_own():
    sync, trainer, rollouter = ParameterSynchronizer(ONE_TRY), Trainer({'w': 1}), Rollouter()
    sync.sync_weights(trainer, rollouter)
    trainer.weights = {'w': 2}
    sync.sync_parameters()
    sync.sync_to_rollouter(7)
    trainer.weights = {'w': 3}
    sync.sync_parameters()
    assert rollouter.loaded == [(1, {'w': 1}), (2, {'w': 2}), (7, {'w': 2}), (8, {'w': 3})]
    assert numbers(sync, 'sync_count', 'param_sync_count', 'current_version') == (4, 4, 8)


def test_of_several_actor_workers_the_first_is_read():
    sync, rollouter, others = ParameterSynchronizer(ONE_TRY), Rollouter(), [Trainer({'w': 2}), Trainer({'w': 3})]
    sync.sync_weights([Trainer({'w': 1}), *others], rollouter)
    assert rollouter.loaded == [(1, {'w': 1})]
    assert [other.reads for other in others] == [0, 0]


def test_modules_are_workers_too():
    sync, module = ParameterSynchronizer(ONE_TRY), Module()
    assert sync.sync_weights(Module({'w': 1}), module) is True
    assert module.weights == {'w': 1}


def test_workers_that_join_later_get_the_version_that_is_there():
    trainer, first, late = Trainer({'w': 1}), Rollouter(), Rollouter()
    sync = ParameterSynchronizer(ONE_TRY)
    sync.register_workers(trainer, first)
    sync.sync_to_rollouter(4)
    trainer.weights = {'w': 2}
    sync.register_workers(trainer, [first, late])
    assert sync.sync_to_rollouter(4) is True
    assert first.loaded == late.loaded == [(4, {'w': 1})]
    assert numbers(sync, 'sync_count', 'param_sync_count') == (2, 1)


@every_way
def test_registered_workers_leave_the_two_actors_alone(way):
    rollouter, other = Rollouter(), Rollouter()
    sync = ParameterSynchronizer(ONE_TRY, Trainer({'w': 1}), rollouter)
    way(sync, Trainer({'w': 2}), other)
    sync.sync_to_rollouter(2)
    assert rollouter.loaded == [(2, {'w': 1})]
    assert 2 not in other.versions


def test_workers_given_on_the_spot_are_registered():
    sync, trainer, rollouter = ParameterSynchronizer(ONE_TRY), Trainer({'w': 1}), Rollouter()
    sync.register_workers(Trainer({'w': 'first'}), Rollouter())
    sync.sync_weights(trainer, rollouter)
    trainer.weights = {'w': 2}
    sync.sync_parameters()
    assert rollouter.loaded == [(1, {'w': 1}), (2, {'w': 2})]


def test_workers_given_on_the_spot_are_those_that_are_synced(gate):
    sync, mine = ParameterSynchronizer(ONE_TRY, Trainer(), Rollouter(hanging(gate))), Rollouter()
    sync._syncing = WatchedLock()
    first = start(lambda: sync.sync_to_rollouter(1))
    gate.await_arrival()
    second = start(lambda: sync.sync_weights(Trainer({'w': 'mine'}), mine))
    await_event(sync._syncing.awaited)
    sync.register_workers(Trainer({'w': 'other'}), Rollouter())
    gate.open()
    assert first.result(TIMEOUT) is second.result(TIMEOUT) is True
    assert mine.loaded == [(2, {'w': 'mine'})]


# -------------------------------------------------------------------- failures of a target


@pytest.mark.parametrize('retries, failures, arrives', [(0, 0, True), (0, 1, False), (2, 2, True), (2, 3, False)])
def test_a_target_that_fails_has_so_many_chances(retries, failures, arrives):
    rollouter = Rollouter(failing(failures))
    sync = ParameterSynchronizer({**ONE_TRY, 'max_sync_retries': retries}, Trainer(), rollouter)
    assert sync.sync_to_rollouter(3) is arrives
    assert rollouter.calls == min(failures, retries) + 1
    assert numbers(sync, 'sync_count', 'sync_failures', 'current_version') == (arrives, not arrives, 3 * arrives)


@pytest.mark.parametrize('error', [Broken, SystemExit, KeyboardInterrupt, Dying])
def test_a_target_that_dies_keeps_its_last_version(error):
    rollouter = Rollouter()
    sync = ParameterSynchronizer(ONE_TRY, Trainer(), rollouter)
    sync.sync_to_rollouter(1)
    rollouter.work = failing(99, error)
    assert sync.sync_to_rollouter(2) is False
    assert rollouter.versions == [1]
    assert sync.get_current_version() == 1
    with sync.reading(rollouter) as held:
        assert held.policy_version == 1


@pytest.mark.parametrize('broken', [0, 1, 2])
def test_one_of_three_fails_and_the_others_get_the_version(broken):
    rollouts = [Rollouter(failing(1) if index == broken else nothing) for index in range(3)]
    sync = ParameterSynchronizer(ONE_TRY, Trainer(), rollouts)
    assert sync.sync_to_rollouter(1) is False
    assert [rollout.versions for rollout in rollouts] == [[] if index == broken else [1] for index in range(3)]
    assert sync.get_current_version() == 0
    assert numbers(sync, 'sync_count', 'sync_failures', 'param_sync_count') == (0, 1, 0)


def test_offered_again_a_version_is_loaded_only_where_it_is_missing_and_is_the_same():
    trainer = Trainer({'w': 'first'})
    rollouts = [Rollouter(), Rollouter(failing(2)), Rollouter()]
    sync = ParameterSynchronizer(ONE_TRY, trainer, rollouts)
    sync.sync_to_rollouter(1)
    trainer.weights = {'w': 'moved on'}
    assert sync.sync_to_rollouter(1) is False
    assert sync.get_current_version() == 0
    assert sync.sync_to_rollouter(1) is True
    assert sync.get_current_version() == 1
    assert [rollout.calls for rollout in rollouts] == [1, 3, 1]
    assert all(rollout.loaded == [(1, {'w': 'first'})] for rollout in rollouts)
    assert trainer.reads == 1
    assert numbers(sync, 'sync_count', 'sync_failures', 'param_sync_count') == (1, 2, 1)


def test_a_newer_version_takes_the_place_of_one_that_never_arrived_everywhere():
    trainer, rollouts = Trainer({'w': 1}), [Rollouter(), Rollouter(failing(1))]
    sync = ParameterSynchronizer(ONE_TRY)
    sync.register_workers(trainer, rollouts)
    assert sync.sync_parameters() is False
    trainer.weights = {'w': 2}
    assert sync.sync_parameters() is True
    assert [rollout.loaded for rollout in rollouts] == [[(1, {'w': 1}), (2, {'w': 2})], [(2, {'w': 2})]]
    assert sync.get_current_version() == 2


@pytest.mark.parametrize('retries', [0, 2])
def test_one_of_three_hangs_and_the_others_get_the_version(gate, retries):
    rollouts = [Rollouter(), Rollouter(), Rollouter()]
    sync = ParameterSynchronizer({**ONE_TRY, 'max_sync_retries': retries}, Trainer(), rollouts)
    rollouts[1].work = hanging(gate, told=timed(sync.attach('hanging', rollouts[1])).expire)
    assert sync.sync_to_rollouter(1) is False
    assert [rollout.versions for rollout in rollouts] == [[1], [], [1]]
    assert sync.get_current_version() == 0


def test_what_arrives_late_counts_once_it_is_offered_again(gate):
    rollouter = Rollouter()
    sync = ParameterSynchronizer(ONE_TRY, Trainer(), rollouter)
    rollouter.work = hanging(gate, told=timed(sync.attach('hanging', rollouter)).expire)
    assert sync.sync_to_rollouter(1) is False
    assert sync.sync_to_rollouter(1) is False  # busy
    gate.open()
    join_attempts()
    assert sync.get_current_version() == 0  # nobody has offered it since
    assert sync.sync_to_rollouter(1) is True
    assert rollouter.calls == 1
    assert numbers(sync, 'sync_count', 'sync_failures', 'current_version') == (1, 2, 1)


# -------------------------------------------------------------------- failures of the source


def test_weights_that_cannot_be_read_are_a_failed_sync(caplog):
    trainer, rollouter = Trainer(), Rollouter()
    sync = ParameterSynchronizer(ONE_TRY, trainer, rollouter)

    def broken():
        raise Broken('no connection')

    trainer.get_weights = broken
    assert sync.sync_to_rollouter(1) is False
    assert rollouter.calls == 0
    assert numbers(sync, 'sync_count', 'sync_failures', 'current_version') == (0, 1, 0)
    assert 'the weights of version 1 could not be read' in logged(caplog)[0]
    del trainer.get_weights
    assert sync.sync_to_rollouter(1) is True


BAD_WEIGHTS = [({'w': NAN}, 'w'), ({'w': INF}, 'w'), ({'a': {'b': [0.0, -INF]}}, 'a.b[1]')]


@pytest.mark.parametrize('weights, name', BAD_WEIGHTS)
def test_weights_that_are_not_finite_go_to_nobody(caplog, weights, name):
    trainer, rollouter = Trainer(), Rollouter()
    sync = ParameterSynchronizer(ONE_TRY, trainer, rollouter)
    sync.sync_to_rollouter(1)
    trainer.weights = weights
    assert sync.sync_to_rollouter(2) is False
    assert rollouter.versions == [1]
    assert numbers(sync, 'current_version', 'non_finite_weights', 'sync_failures') == (1, 1, 1)
    assert f'version 2 is not published, {name} is not finite' in logged(caplog)[0]
    trainer.weights = {'w': 5.0}
    assert sync.sync_to_rollouter(2) is True
    assert rollouter.loaded[-1] == (2, {'w': 5.0})


# -------------------------------------------------------------------- publish and pull


def publishing(*versions, **options):
    sync = ParameterSynchronizer(ONE_TRY, **options)
    for version in versions:
        sync.publish(snapshot(version))
    return sync


def test_who_pulls_gets_the_newest_version():
    sync, rollouter = publishing(1), Rollouter()
    target = sync.attach('role', rollouter)
    assert sync.pull(target) is sync.latest()
    newest = snapshot(4)
    assert sync.publish(newest) is True
    assert sync.pull(target) is target.held is newest
    assert rollouter.loaded == [(1, {'v': 1}), (4, {'v': 4})]


def test_pulling_what_is_there_costs_nothing_but_the_asking():
    sync, rollouter = publishing(1), Rollouter()
    target = sync.attach('role', rollouter)
    for _ in range(3):
        sync.pull(target)
    assert rollouter.calls == 1
    assert numbers(sync, 'sync_count', 'param_sync_requests', 'param_sync_count') == (1, 3, 1)


def test_a_later_round_of_the_same_version_is_not_loaded_again():
    sync, rollouter = publishing(1), Rollouter()
    target = sync.attach('role', rollouter)
    sync.pull(target)
    later = snapshot(1, rounds=2)
    sync.publish(later)
    assert sync.pull(target) is later
    assert rollouter.calls == 1


def test_who_cannot_be_brought_further_keeps_what_it_has():
    sync, rollouter = publishing(1), Rollouter()
    target = sync.attach('role', rollouter)
    first = sync.pull(target)
    rollouter.work = failing(2)
    sync.publish(snapshot(2))
    assert sync.pull(target) is first
    assert numbers(sync, 'sync_count', 'sync_failures', 'current_version') == (1, 1, 2)


def test_who_never_got_any_weights_cannot_go_on():
    sync = publishing(1)
    with pytest.raises(LzeroAsyncError, match='the first weights never reached role'):
        sync.pull(sync.attach('role', Rollouter(failing(99))))


def test_before_the_first_publication_there_is_nothing_to_pull():
    sync = publishing()
    with pytest.raises(LzeroAsyncError, match='no weights are published yet'):
        sync.pull(sync.attach('role', Rollouter()))
    assert numbers(sync, 'sync_count', 'sync_failures') == (0, 0)


def test_published_versions_do_not_go_back():
    sync = publishing(3)
    with pytest.raises(LzeroAsyncError, match='policy_version must not go back: 2 after 3'):
        sync.publish(snapshot(2))
    with pytest.raises(ConfigError, match='new_version must be >= 3'):
        with_actors(sync).sync_to_rollouter(2)
    assert sync.get_current_version() == 3


@pytest.mark.parametrize('weights, name', BAD_WEIGHTS)
def test_what_is_not_finite_is_not_published(caplog, weights, name):
    sync, rollouter = publishing(1), Rollouter()
    target = sync.attach('role', rollouter)
    assert sync.publish(snapshot(2, weights, rounds=9)) is False
    assert sync.pull(target).policy_version == sync.get_current_version() == 1
    assert numbers(sync, 'non_finite_weights', 'param_sync_count') == (1, 1)
    assert f'version 2 of round 9 is not published, {name} is not finite; version 1 stays' in logged(caplog)[0]


def test_a_receiver_has_one_target():
    sync, rollouter = publishing(), Rollouter()
    target = sync.attach('role', rollouter)
    assert sync.attach('other name', rollouter) is target
    assert sync.attach('role', Rollouter()) is not target


def test_an_equal_receiver_is_another_one():
    class Equal(Rollouter):
        def __eq__(self, other):
            return True

        __hash__ = None

    sync = publishing()
    assert sync.attach('role', Equal()) is not sync.attach('role', Equal())


def test_numbers_add_up():
    sync = publishing(1)
    targets = [sync.attach(f'role-{index}', Rollouter(failing(index))) for index in range(4)]
    for _ in range(3):
        for target in targets:
            with contextlib.suppress(LzeroAsyncError):
                sync.pull(target)
    counted = sync.get_statistics()
    assert counted['param_sync_requests'] == 12
    assert counted['sync_failures'] == 0 + 1 + 2 + 3
    assert counted['sync_count'] == 3  # the last one was never lucky
    assert counted['param_sync_count'] == 1


def test_who_finds_the_version_delivered_meanwhile_does_not_count_it_again(gate):
    sync, rollouter = publishing(1), Rollouter(hanging(gate))
    target = sync.attach('role', rollouter)
    target._delivering = WatchedLock()
    pulls = [start(lambda: sync.pull(target))]
    gate.await_arrival()
    pulls.append(start(lambda: sync.pull(target)))
    await_event(target._delivering.awaited)
    gate.open()
    assert {pull.result(TIMEOUT).policy_version for pull in pulls} == {1}
    assert rollouter.calls == 1
    assert numbers(sync, 'sync_count') == (1,)


# -------------------------------------------------------------------- copies


class Devices(PlainWeights):
    """Receivers live on devices. Counts the copies, and lets them be gates."""

    def __init__(self, copying=nothing, finding=nothing):
        self.copies = []
        self.copying = copying
        self.finding = finding

    def device_of(self, target):
        self.finding(target)
        return target.device

    def copy_to(self, weights, device):
        self.copying(device)
        self.copies.append((device, weights['v']))
        return dict(weights, device=device)


class Placed(Rollouter):
    def __init__(self, device):
        super().__init__()
        self.device = device


def test_there_is_one_copy_for_each_device_and_version():
    ops = Devices()
    sync = publishing(1, weight_ops=ops)
    receivers = [Placed(device) for device in ('cuda:0', 'cuda:1', 'cuda:0', 'cuda:1', 'cuda:0')]
    targets = [sync.attach('role', receiver) for receiver in receivers]
    for version in (1, 2):
        sync.publish(snapshot(version))
        for target in targets * 2:
            sync.pull(target)
    assert sorted(ops.copies) == [('cuda:0', 1), ('cuda:0', 2), ('cuda:1', 1), ('cuda:1', 2)]
    for receiver in receivers:
        assert receiver.loaded == [(version, {'v': version, 'device': receiver.device}) for version in (1, 2)]


def test_who_comes_while_a_copy_is_made_waits_for_it(gate):
    ops = Devices(copying=gate)
    sync = publishing(1, weight_ops=ops)
    receivers = [Placed('cuda:0') for _ in range(4)]
    place = sync._places['cuda:0'] = Place()
    place._lock = WatchedLock()
    pulls = [start(lambda receiver=receiver: sync.pull(sync.attach('role', receiver))) for receiver in receivers]
    gate.await_arrival()
    await_event(place._lock.awaited)
    gate.open()
    assert {pull.result(TIMEOUT).policy_version for pull in pulls} == {1}
    assert ops.copies == [('cuda:0', 1)]
    assert [receiver.versions for receiver in receivers] == [[1]] * 4


def test_a_copy_that_fails_is_made_again():
    failures = [Broken('out of memory')]

    def fail_once(device):
        if failures:
            raise failures.pop()

    ops = Devices(copying=fail_once)
    sync = ParameterSynchronizer({**ONE_TRY, 'max_sync_retries': 1}, weight_ops=ops)
    sync.publish(snapshot(1))
    receiver = Placed('cuda:0')
    assert sync.pull(sync.attach('role', receiver)).policy_version == 1
    assert receiver.loaded == [(1, {'v': 1, 'device': 'cuda:0'})]


def test_a_straggler_does_not_cost_another_copy_of_the_newest_version(gate):
    straggler, quick, last = Placed('cuda:0'), Placed('cuda:0'), Placed('cuda:0')
    ops = Devices(finding=lambda target: gate() if target is straggler else None)
    sync = publishing(1, weight_ops=ops)
    straggling = start(lambda: sync.pull(sync.attach('straggler', straggler)))
    gate.await_arrival()
    sync.publish(snapshot(2))
    sync.pull(sync.attach('quick', quick))
    gate.open()
    straggling.result(TIMEOUT)
    sync.pull(sync.attach('last', last))
    assert ops.copies.count(('cuda:0', 2)) == 1


def test_a_copy_that_hangs_holds_up_its_own_device_only(gate):
    ops = Devices(copying=lambda device: gate() if device == 'cuda:0' else None)
    sync, hung, other = publishing(1, weight_ops=ops), Placed('cuda:0'), Placed('cuda:1')
    pulling = start(lambda: sync.pull(sync.attach('hung', hung)))
    gate.await_arrival()
    assert sync.pull(sync.attach('other', other)).policy_version == 1
    assert (hung.versions, other.versions) == ([], [1])
    gate.open()
    assert pulling.result(TIMEOUT).policy_version == 1


def test_a_copy_that_hangs_is_not_waited_for(gate):
    ops, receiver = Devices(), Placed('cuda:0')
    sync = publishing(1, weight_ops=ops)
    target = sync.attach('role', receiver)
    sync.pull(target)
    time = timed(target)
    ops.copying = lambda device: (time.expire(), gate())
    sync.publish(snapshot(2))
    assert sync.pull(target).policy_version == 1
    gate.open()
    join_attempts()
    assert receiver.versions == [1, 2]


# -------------------------------------------------------------------- copies that are under way


def test_publishing_does_not_wait_for_a_copy_and_pulling_does():
    ops, rollouter = Copying(), Rollouter()
    sync = publishing(1, weight_ops=ops)  # in this thread: it would wait in vain
    assert numbers(sync, 'param_sync_count', 'current_version') == (0, 0)
    pulling = start(lambda: sync.pull(sync.attach('role', rollouter)))
    ops.await_readers(1)
    assert rollouter.calls == 0
    ops.arrive()
    assert pulling.result(TIMEOUT).policy_version == 1
    assert numbers(sync, 'param_sync_count', 'current_version', 'sync_count') == (1, 1, 1)


def test_the_first_who_pulls_finds_out_that_a_copy_is_not_finite_and_the_second_does_not_count_it_again(caplog):
    ops, receivers = Copying(), [Rollouter(), Rollouter()]
    ops.arrive()
    sync = publishing(1, weight_ops=ops)
    ops.depart()
    assert sync.publish(snapshot(2, {'w': NAN}, rounds=4)) is True
    ops.arrive()
    for receiver in receivers:
        assert sync.pull(sync.attach('role', receiver)).policy_version == 1
    assert [receiver.versions for receiver in receivers] == [[1], [1]]
    assert numbers(sync, 'non_finite_weights', 'current_version') == (1, 1)
    (told,) = logged(caplog)
    assert 'version 2 of round 4 is not published' in told


def test_a_sync_of_workers_waits_for_the_copy():
    ops, rollouter = Copying(), Rollouter()
    sync = ParameterSynchronizer(ONE_TRY, Trainer(), rollouter, weight_ops=ops)
    syncing = start(lambda: sync.sync_to_rollouter(1))
    ops.await_readers(1)
    assert rollouter.calls == 0
    ops.arrive()
    assert syncing.result(TIMEOUT) is True
    assert rollouter.versions == [1]


def test_a_sync_of_workers_goes_on_from_a_version_that_is_under_way():
    ops, rollouter = Copying(), Rollouter()
    sync = publishing(5, weight_ops=ops)
    ops.settle = nothing  # the copy of the trainer's weights is there at once
    assert sync.sync_weights(Trainer(), rollouter) is True
    assert rollouter.versions == [6]


# -------------------------------------------------------------------- reading


def test_a_worker_is_read_under_the_version_that_it_holds():
    sync, rollouter = ParameterSynchronizer(ONE_TRY), Rollouter()
    with sync.reading(rollouter) as held:
        assert held is None
    sync.sync_weights(Trainer(), rollouter)
    with sync.reading(rollouter) as held:
        assert held.policy_version == 1
        assert held.weights == rollouter.loaded[0][1]


def test_while_a_worker_is_read_no_sync_changes_it():
    sync, rollouter = ParameterSynchronizer(ONE_TRY), Rollouter()
    time = timed(sync.attach('role', rollouter))
    with sync.reading(rollouter):
        syncing = start(lambda: sync.sync_weights(Trainer(), rollouter))
        time.await_blocked('lzero-async-sync-role')
        assert rollouter.calls == 0
    assert syncing.result(TIMEOUT) is True
    assert rollouter.versions == [1]


def test_a_sync_that_was_given_up_while_a_worker_is_read_does_not_change_it_later():
    sync, rollouter = ParameterSynchronizer(ONE_TRY), Rollouter()
    time = timed(sync.attach('role', rollouter))
    with sync.reading(rollouter):
        syncing = start(lambda: sync.sync_weights(Trainer(), rollouter))
        time.await_blocked('lzero-async-sync-role')
        time.expire()
        assert syncing.result(TIMEOUT) is False
    join_attempts()
    assert rollouter.calls == 0
    time.stand_still()
    assert sync.sync_parameters() is True
    assert rollouter.versions == [2]


# -------------------------------------------------------------------- what the weights are


def test_weights_are_described_before_and_after_the_first_publication():
    trainer = Trainer({'w': [1.0, 2]})
    sync = ParameterSynchronizer(ONE_TRY, trainer, Rollouter())
    expected = [WeightInfo('w[0]', (), 'float'), WeightInfo('w[1]', (), 'int')]
    assert sync.get_weights_info() == expected
    sync.sync_to_rollouter(1)
    trainer.weights = {'other': True}
    assert sync.get_weights_info() == expected  # of what is published


def test_without_weights_there_is_nothing_to_describe():
    assert ParameterSynchronizer().get_weights_info() == []


def test_shared_weights_are_not_described():
    sync = ParameterSynchronizer()
    sync.publish(snapshot(1, None))
    assert sync.get_weights_info() == []


# -------------------------------------------------------------------- the end


SYNCS = {
    'sync_to_rollouter': lambda sync: sync.sync_to_rollouter(2),
    'sync_parameters': lambda sync: sync.sync_parameters(),
    'sync_weights': lambda sync: sync.sync_weights(Trainer(), Rollouter()),
    'register_workers': lambda sync: sync.register_workers(Trainer(), Rollouter()),
    'initialize_sync_group': lambda sync: sync.initialize_sync_group(Trainer(), Rollouter()),
    'attach': lambda sync: sync.attach('role', Rollouter()),
    'reading': lambda sync: sync.reading(Rollouter()),
}


@pytest.mark.parametrize('times', [1, 3])
@pytest.mark.parametrize('call', list(SYNCS.values()), ids=list(SYNCS))
def test_after_the_end_nothing_is_synced(call, times):
    rollouter = Rollouter()
    sync = ParameterSynchronizer(ONE_TRY, Trainer(), rollouter)
    sync.sync_to_rollouter(1)
    for _ in range(times):
        assert sync.cleanup() is None
    with pytest.raises(LzeroAsyncError):
        call(sync)
    assert rollouter.calls == 1
    assert numbers(sync, 'sync_count', 'current_version') == (1, 1)


@pytest.mark.parametrize('call', list(SYNCS.values()), ids=list(SYNCS))
def test_after_the_end_the_reason_is_told(call):
    sync = with_actors(ParameterSynchronizer(ONE_TRY))
    sync.cleanup()
    with pytest.raises(LzeroAsyncError, match='cleaned up'):
        call(sync)


def test_cleanup_wakes_who_waits_between_two_attempts():
    failed = threading.Event()

    def fail(call):
        failed.set()
        raise Broken

    sync = ParameterSynchronizer({'sync_retry_delay': 10 ** 6}, Trainer(), Rollouter(fail))
    syncing = start(lambda: sync.sync_to_rollouter(1))
    await_event(failed)
    sync.cleanup()
    assert syncing.result(TIMEOUT) is False
    assert numbers(sync, 'sync_failures', 'current_version') == (1, 0)


def test_cleanup_wakes_who_waits_for_a_target_that_hangs(gate):
    sync = ParameterSynchronizer({'sync_timeout': 10 ** 6}, Trainer(), Rollouter(hanging(gate)))
    syncing = start(lambda: sync.sync_to_rollouter(1))
    gate.await_arrival()
    sync.cleanup()
    assert syncing.result(TIMEOUT) is False


def test_cleanup_wakes_who_pulls(gate):
    sync = ParameterSynchronizer({'sync_timeout': 10 ** 6})
    rollouter = Rollouter(hanging(gate, at=2))
    target = sync.attach('role', rollouter)
    sync.publish(snapshot(1))
    sync.pull(target)
    sync.publish(snapshot(2))
    pulling = start(lambda: sync.pull(target))
    gate.await_arrival()
    sync.cleanup()
    assert pulling.result(TIMEOUT).policy_version == 1


def test_cleanup_refuses_who_waits_for_its_turn(gate):
    sync = ParameterSynchronizer({'sync_timeout': 10 ** 6}, Trainer(), Rollouter(hanging(gate)))
    sync._syncing = WatchedLock()
    first, mine = start(lambda: sync.sync_to_rollouter(1)), Rollouter()
    gate.await_arrival()
    second = start(lambda: sync.sync_weights(Trainer(), mine))
    await_event(sync._syncing.awaited)
    sync.cleanup()
    assert first.result(TIMEOUT) is False
    assert isinstance(second.exception(TIMEOUT), LzeroAsyncError)
    assert mine.calls == 0


def test_cleanup_ends_a_sync_between_two_workers(gate):
    rollouts = [Rollouter(hanging(gate)), Rollouter()]
    sync = ParameterSynchronizer({'sync_timeout': 10 ** 6}, Trainer(), rollouts)
    syncing = start(lambda: sync.sync_to_rollouter(1))
    gate.await_arrival()
    sync.cleanup()
    assert syncing.result(TIMEOUT) is False
    gate.open()
    join_attempts()
    assert rollouts[1].calls == 0


def test_after_the_end_no_weights_are_loaded():
    rollouter = Rollouter()
    sync = publishing(1)
    target = sync.attach('role', rollouter)
    sync.pull(target)
    sync.publish(snapshot(2))
    sync.cleanup()
    assert sync.pull(target).policy_version == 1
    join_attempts()
    assert rollouter.versions == [1]


def test_after_the_end_the_numbers_are_still_there():
    sync = ParameterSynchronizer(ONE_TRY, Trainer(), Rollouter())
    sync.sync_to_rollouter(6)
    counted = sync.get_statistics()
    sync.cleanup()
    assert sync.get_statistics() == counted
    assert sync.get_current_version() == 6
    assert sync.get_weights_info() != []
