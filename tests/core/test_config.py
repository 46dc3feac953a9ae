import dataclasses
import re
import types

import numpy as np
import pytest

from lzero_async.core.config import AsyncConfig, nearest
from lzero_async.core.errors import ConfigError
from lzero_async.core.staleness import StalenessRules

DEFAULTS = dict(
    off_policy_degree=0,
    enable_async_training=True,
    enable_async_eval=False,
    enable_async_debug_log=False,
    data_queue_size=10,
    max_queue_size=10,
    resume=False,
    checkpoint_interval_rounds=100,
    checkpoint_interval_s=300.0,
    keep_checkpoints=2,
    max_bad_updates=10,
    stall_timeout=600.0,
    stall_ends_run=True,
    min_off_policy_degree=1,
    max_off_policy_degree=None,
    staleness_threshold=3,
    max_staleness_allowed=5,
    max_sample_age_s=None,
    max_consecutive_drops=20,
    min_batch_count=1,
    batch_timeout=30.0,
    generation_timeout=30.0,
    batch_generation_interval=0.1,
    max_sync_retries=3,
    sync_timeout=30.0,
    sync_retry_delay=1.0,
    sync_monitor_interval=60.0,
    sync_batch_size=None,
    max_train_ahead=0,
    background_reanalyze=False,
    engine='thread',
    collector_engine=None,
    evaluator_engine=None,
    num_collectors=1,
    max_worker_restarts=3,
    worker_restart_window_s=600.0,
    worker_start_timeout=300.0,
    cpu_affinity=None,
    ray_address=None,
    collector_num_cpus=1.0,
    collector_num_gpus=0.0,
    evaluator_num_cpus=1.0,
    evaluator_num_gpus=0.0,
    collector_resources=None,
    evaluator_resources=None,
    ray_placement='SPREAD',
    collector_device='cpu',
    evaluator_device='cpu',
    learner_threads=None,
    collector_threads=None,
    evaluator_threads=None,
    accelerate=True,
    sample_ahead=True,
    switch_interval_s=0.0005,
    summary_interval_s=5.0,
    show_progress=True,
)

REFUSED = dict(
    off_policy_degree=-2,
    enable_async_training=1,
    enable_async_eval='yes',
    enable_async_debug_log=None,
    data_queue_size=0,
    max_queue_size=0,
    resume='yes',
    checkpoint_interval_rounds=0,
    checkpoint_interval_s=0.0,
    keep_checkpoints=-1,
    max_bad_updates=0,
    stall_timeout=0,
    stall_ends_run=1,
    min_off_policy_degree=0,
    max_off_policy_degree=0,
    staleness_threshold=-1,
    max_staleness_allowed=-1,
    max_sample_age_s=0,
    max_consecutive_drops=0,
    min_batch_count=0,
    batch_timeout=0.0,
    generation_timeout=0,
    batch_generation_interval=-0.1,
    max_sync_retries=-1,
    sync_timeout=0.0,
    sync_retry_delay=-1.0,
    sync_monitor_interval=0.0,
    sync_batch_size=0,
    max_train_ahead=-1,
    background_reanalyze=1,
    engine='fibre',
    collector_engine='Process',
    evaluator_engine=1,
    num_collectors=0,
    max_worker_restarts=-1,
    worker_restart_window_s=0,
    worker_start_timeout=0,
    cpu_affinity='always',
    ray_address='',
    collector_num_cpus=-1,
    collector_num_gpus=-0.5,
    evaluator_num_cpus='one',
    evaluator_num_gpus=float('nan'),
    collector_resources='TPU',
    evaluator_resources=5,
    ray_placement='anywhere',
    collector_device='gpu',
    evaluator_device=0,
    learner_threads=0,
    collector_threads=1.5,
    evaluator_threads=True,
    accelerate='no',
    sample_ahead='yes',
    switch_interval_s=0.0,
    summary_interval_s=float('inf'),
    show_progress=0,
)

# The least value that each number may have.
LEAST_INT = dict(
    off_policy_degree=-1,
    data_queue_size=1,
    max_queue_size=1,
    checkpoint_interval_rounds=1,
    keep_checkpoints=0,
    max_bad_updates=1,
    min_off_policy_degree=1,
    max_off_policy_degree=1,
    staleness_threshold=0,
    max_staleness_allowed=0,
    max_consecutive_drops=1,
    min_batch_count=1,
    max_sync_retries=0,
    sync_batch_size=1,
    max_train_ahead=0,
    num_collectors=1,
    max_worker_restarts=0,
    learner_threads=1,
    collector_threads=1,
    evaluator_threads=1,
)
LEAST_FLOAT = dict(
    batch_generation_interval=0.0, sync_retry_delay=0.0, collector_num_cpus=0.0, collector_num_gpus=0.0,
    evaluator_num_cpus=0.0, evaluator_num_gpus=0.0,
)
ABOVE_ZERO = [
    'max_sample_age_s', 'batch_timeout', 'generation_timeout', 'sync_timeout', 'sync_monitor_interval',
    'switch_interval_s', 'summary_interval_s', 'worker_restart_window_s', 'worker_start_timeout',
    'checkpoint_interval_s', 'stall_timeout',
]
FLOATS = [*LEAST_FLOAT, *ABOVE_ZERO]
MAY_BE_NONE = [
    'data_queue_size', 'max_queue_size', 'max_off_policy_degree', 'max_staleness_allowed', 'max_sample_age_s',
    'sync_batch_size', 'learner_threads', 'collector_threads', 'evaluator_threads', 'switch_interval_s',
    'collector_engine', 'evaluator_engine', 'cpu_affinity', 'ray_address', 'collector_resources',
    'evaluator_resources', 'checkpoint_interval_rounds', 'checkpoint_interval_s', 'stall_timeout',
]

LIGHTZERO_POLICY = dict(
    replay_ratio=0.25, update_per_collect=None, num_segments=8, num_simulations=50, eval_freq=5000,
    replay_buffer_size=1000000, collector_env_num=8, evaluator_env_num=3, cuda=True, learning_rate=0.0001,
    model=dict(model_type='mlp'), train_start_after_envsteps=0, optim_type='AdamW', game_segment_length=20,
)


@pytest.mark.parametrize('name, value', DEFAULTS.items())
def test_defaults(name, value):
    assert getattr(AsyncConfig(), name) == value


@pytest.mark.parametrize('name', DEFAULTS)
def test_each_setting_says_what_it_does(name):
    setting = {field.name: field for field in dataclasses.fields(AsyncConfig)}[name]
    assert setting.metadata['doc'].strip()


def test_every_setting_has_a_default_and_a_refusal_in_the_tables():
    assert list(DEFAULTS) == list(REFUSED) == AsyncConfig.names()


def refused(message, **settings):
    with pytest.raises(ConfigError, match=f'^{re.escape(message)}$'):
        AsyncConfig(**settings)


@pytest.mark.parametrize('name, value', REFUSED.items())
def test_refusals_name_the_field_and_the_value(name, value):
    with pytest.raises(ConfigError, match=rf'^{name} must be .*, got {value!r}$'):
        AsyncConfig(**{name: value})


# -------------------------------------------------------------------- bounds


def test_every_number_is_in_the_tables_of_bounds():
    kinds = {setting.name: str(setting.type) for setting in dataclasses.fields(AsyncConfig)}
    assert set(LEAST_INT) == {name for name, kind in kinds.items() if 'int' in kind}
    assert set(FLOATS) == {name for name, kind in kinds.items() if 'float' in kind and 'Mapping' not in kind}
    assert set(MAY_BE_NONE) == {name for name, kind in kinds.items() if 'Optional' in kind}


@pytest.mark.parametrize('name, least', [*LEAST_INT.items(), *LEAST_FLOAT.items()])
def test_the_least_value_is_taken(name, least):
    assert getattr(AsyncConfig(**{name: least}), name) == least


@pytest.mark.parametrize('name, least', LEAST_INT.items())
def test_a_lower_int_is_refused(name, least):
    refused(f'{name} must be >= {least}, got {least - 1}', **{name: least - 1})


@pytest.mark.parametrize('value', [True, 1.5, 2.0, '2', [2]])
@pytest.mark.parametrize('name, least', LEAST_INT.items())
def test_what_is_no_int_is_refused(name, least, value):
    refused(f'{name} must be an int >= {least}, got {value!r}', **{name: value})


@pytest.mark.parametrize('name', ABOVE_ZERO)
def test_above_zero_is_taken_and_zero_is_refused(name):
    assert getattr(AsyncConfig(**{name: 1e-9}), name) == 1e-9
    for value in (0.0, 0, -1.0):
        refused(f'{name} must be > 0, got {value!r}', **{name: value})


@pytest.mark.parametrize('name', LEAST_FLOAT)
def test_less_than_zero_is_refused(name):
    refused(f'{name} must be >= 0, got -1e-09', **{name: -1e-9})


@pytest.mark.parametrize('value', [True, '2', float('nan'), float('inf'), [2.0]])
@pytest.mark.parametrize('name', FLOATS)
def test_what_is_no_finite_number_is_refused(name, value):
    rule = '>= 0' if name in LEAST_FLOAT else '> 0'
    refused(f'{name} must be a finite number {rule}, got {value!r}', **{name: value})


@pytest.mark.parametrize('name', FLOATS)
def test_whole_seconds_become_floats(name):
    assert type(getattr(AsyncConfig(**{name: 2}), name)) is float


@pytest.mark.parametrize('name', MAY_BE_NONE)
def test_none_stands_for_a_value_that_is_not_set(name):
    stands_for = dict(data_queue_size=10, max_queue_size=10, max_staleness_allowed=5)
    assert getattr(AsyncConfig(**{name: None}), name) == stands_for.get(name)


@pytest.mark.parametrize('name', [name for name in DEFAULTS if name not in MAY_BE_NONE])
def test_none_is_refused_where_it_means_nothing(name):
    with pytest.raises(ConfigError, match=rf'^{name} must be .*, got None$'):
        AsyncConfig(**{name: None})


# -------------------------------------------------------------------- settings that depend on each other


@pytest.mark.parametrize('degree, allowed', [(0, 5), (1, 5), (5, 5), (6, 6), (60, 60), (-1, None)])
def test_max_staleness_allowed_is_5_or_the_degree_unless_set(degree, allowed):
    assert AsyncConfig(off_policy_degree=degree).max_staleness_allowed == allowed


@pytest.mark.parametrize('degree, collectors, allowed', [(2, 4, 5), (2, 5, 6), (8, 1, 8), (8, 100, 107)])
def test_max_staleness_allowed_leaves_room_for_a_turn_of_all_collectors(degree, collectors, allowed):
    assert AsyncConfig(off_policy_degree=degree, num_collectors=collectors).max_staleness_allowed == allowed
    tuned = AsyncConfig(off_policy_degree=-1, num_collectors=collectors)
    assert tuned.staleness_rules(degree).max_staleness_allowed == allowed
    assert tuned.staleness_rules(degree).late_rounds == collectors - 1


@pytest.mark.parametrize('degree', [-1, 0, 2, 60])
@pytest.mark.parametrize('allowed', [0, 3, 100])
def test_max_staleness_allowed_stays_as_it_is_set(degree, allowed):
    config = AsyncConfig(off_policy_degree=degree, max_staleness_allowed=allowed)
    assert config.max_staleness_allowed == allowed
    assert config.staleness_rules(7).max_staleness_allowed == allowed


@pytest.mark.parametrize('degree, allowed', [(1, 5), (5, 5), (6, 6), (60, 60)])
def test_the_rules_of_an_automatic_degree_follow_the_most_it_can_be(degree, allowed):
    assert AsyncConfig(off_policy_degree=-1).staleness_rules(degree).max_staleness_allowed == allowed


def test_the_rules_of_staleness():
    config = AsyncConfig(
        off_policy_degree=4, staleness_threshold=2, max_staleness_allowed=8, max_sample_age_s=90,
        max_consecutive_drops=6,
    )
    assert config.staleness_rules(4) == StalenessRules(
        staleness_threshold=2, max_staleness_allowed=8, max_sample_age_s=90.0, max_consecutive_drops=6
    )
    assert AsyncConfig().staleness_rules(0) == StalenessRules()


@pytest.mark.parametrize('sizes', [
    dict(data_queue_size=4),
    dict(max_queue_size=4),
    dict(data_queue_size=4, max_queue_size=4),
    dict(data_queue_size=4, max_queue_size=None),
    dict(data_queue_size=None, max_queue_size=4),
])
def test_the_size_of_the_queue_goes_by_two_names(sizes):
    config = AsyncConfig(**sizes)
    assert config.data_queue_size == config.max_queue_size == config.queue_bound == 4


def test_the_size_of_the_queue_is_10_unless_set():
    config = AsyncConfig(data_queue_size=None, max_queue_size=None)
    assert config.data_queue_size == config.max_queue_size == config.queue_bound == 10


@pytest.mark.parametrize('data, most', [(4, 5), (5, 4), (4, 10), (10, 4)])
def test_two_sizes_of_the_queue_are_refused(data, most):
    refused(
        f'max_queue_size must equal data_queue_size ({data}), of which it is another name, got {most}',
        data_queue_size=data, max_queue_size=most,
    )


@pytest.mark.parametrize('degree, queue, least, most', [
    (0, 10, 1, 1),  # serial: one batch at a time
    (1, 10, 1, 1),
    (4, 10, 1, 4),
    (4, 3, 1, 3),
    (60, 10, 1, 10),
    (60, 60, 1, 60),
    (-1, 10, 1, 1),  # adapts down to min_off_policy_degree
    (-1, 10, 6, 6),
    (-1, 4, 6, 4),
])
def test_min_batch_count_is_bounded_by_the_degree_and_the_queue(degree, queue, least, most):
    settings = dict(off_policy_degree=degree, data_queue_size=queue, min_off_policy_degree=least)
    assert AsyncConfig(min_batch_count=most, **settings).min_batch_count == most
    refused(
        f'min_batch_count must be <= {most}, since no more batches can wait with '
        + (f'off_policy_degree {degree}' if degree != -1 else f'min_off_policy_degree {least}')
        + f' and data_queue_size {queue}, got {most + 1}',
        min_batch_count=most + 1, **settings,
    )


def test_min_batch_count_is_bounded_by_the_queue_by_its_other_name():
    with pytest.raises(ConfigError, match=r'^min_batch_count must be <= 2, .*, got 3$'):
        AsyncConfig(off_policy_degree=8, max_queue_size=2, min_batch_count=3)


@pytest.mark.parametrize('degree', [-1, 0, 3])
def test_the_highest_degree_is_not_below_the_lowest(degree):
    same = AsyncConfig(off_policy_degree=degree, min_off_policy_degree=4, max_off_policy_degree=4)
    assert (same.min_off_policy_degree, same.max_off_policy_degree) == (4, 4)
    refused(
        'max_off_policy_degree must be >= min_off_policy_degree (4), got 3',
        off_policy_degree=degree, min_off_policy_degree=4, max_off_policy_degree=3,
    )


@pytest.mark.parametrize('degree', [-1, 1, 5])
def test_on_policy_rounds_are_serial(degree):
    refused(
        'sync_batch_size must be None unless off_policy_degree is 0 (serial), got 1024 with off_policy_degree '
        f'{degree}',
        off_policy_degree=degree, sync_batch_size=1024,
    )
    assert AsyncConfig(off_policy_degree=0, sync_batch_size=1024).sync_batch_size == 1024


def test_serial_cannot_train_ahead():
    with pytest.raises(ConfigError, match=r'^max_train_ahead must be 0 when off_policy_degree is 0 .*, got 3$'):
        AsyncConfig(off_policy_degree=0, max_train_ahead=3)


@pytest.mark.parametrize('degree', [-1, 1, 5])
def test_asynchronous_may_train_ahead(degree):
    assert AsyncConfig(off_policy_degree=degree, max_train_ahead=3).max_train_ahead == 3


def test_serial_cannot_reanalyze_in_the_background():
    refused(
        'background_reanalyze must be False when off_policy_degree is 0 (serial): its learner never waits for a batch, '
        'got True',
        background_reanalyze=True,
    )


@pytest.mark.parametrize('degree', [-1, 1, 5])
def test_asynchronous_may_reanalyze_in_the_background(degree):
    assert AsyncConfig(off_policy_degree=degree, background_reanalyze=True).background_reanalyze


def test_a_config_cannot_be_changed():
    config = AsyncConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.off_policy_degree = 3


def test_a_config_can_be_built_again_from_its_values():
    config = AsyncConfig(off_policy_degree=20, max_queue_size=4, min_batch_count=2, max_sample_age_s=9)
    assert AsyncConfig.from_mapping(dataclasses.asdict(config)) == config


@pytest.mark.parametrize('change', [dict(data_queue_size=4), dict(max_queue_size=4), dict(off_policy_degree=60)])
def test_a_changed_copy_is_as_if_built_with_the_change(change):
    assert dataclasses.replace(AsyncConfig(), **change) == AsyncConfig(**change)


def test_numpy_integers_become_ints():
    config = AsyncConfig(off_policy_degree=np.int64(4), learner_threads=np.int32(2))
    assert (config.off_policy_degree, config.learner_threads) == (4, 2)
    assert type(config.off_policy_degree) is type(config.learner_threads) is int


# -------------------------------------------------------------------- from_mapping


def test_from_mapping():
    config = AsyncConfig.from_mapping({'off_policy_degree': 3, 'collector_device': 'cuda:1'})
    assert config == AsyncConfig(off_policy_degree=3, collector_device='cuda:1')


def test_from_mapping_takes_every_setting():
    settings = dict(DEFAULTS, off_policy_degree=2, min_batch_count=2, max_sample_age_s=1.5, max_off_policy_degree=9)
    config = AsyncConfig.from_mapping(types.MappingProxyType(settings))
    assert dataclasses.asdict(config) == settings


def test_from_mapping_of_nothing_is_the_defaults():
    assert dataclasses.asdict(AsyncConfig.from_mapping({})) == DEFAULTS


@pytest.mark.parametrize('name, value', REFUSED.items())
def test_from_mapping_checks_the_values(name, value):
    with pytest.raises(ConfigError, match=rf'^{name} must be .*, got {value!r}$'):
        AsyncConfig.from_mapping({name: value})


def test_from_mapping_names_the_nearest_setting():
    with pytest.raises(ConfigError, match=r'^off_policy_degre must be .* did you mean off_policy_degree\?$'):
        AsyncConfig.from_mapping({'off_policy_degre': 3})


def test_from_mapping_lists_the_settings_when_none_is_near():
    with pytest.raises(ConfigError, match=r'^zzz must be .*; the settings are off_policy_degree, .*, show_progress$'):
        AsyncConfig.from_mapping({'zzz': 3})


def test_from_mapping_refuses_a_key_that_is_no_string():
    with pytest.raises(ConfigError, match=r'^7 must be a setting of lzero-async'):
        AsyncConfig.from_mapping({7: 3})


# -------------------------------------------------------------------- from_policy


def test_from_policy_picks_its_own_keys():
    policy = dict(LIGHTZERO_POLICY, off_policy_degree=4, enable_async_eval=True)
    assert AsyncConfig.from_policy(policy) == AsyncConfig(off_policy_degree=4, enable_async_eval=True)


def test_from_policy_checks_what_it_picks():
    with pytest.raises(ConfigError, match=r'^data_queue_size must be >= 1, got 0$'):
        AsyncConfig.from_policy(dict(LIGHTZERO_POLICY, data_queue_size=0))


@pytest.mark.parametrize('misspelt, meant', [
    ('off_policy_degre', 'off_policy_degree'),
    ('enable_async_evall', 'enable_async_eval'),
    ('data_queuesize', 'data_queue_size'),
    ('max_queuesize', 'max_queue_size'),
    ('learner_thread', 'learner_threads'),
    ('stalness_threshold', 'staleness_threshold'),
    ('max_stalenes_allowed', 'max_staleness_allowed'),
    ('max_sample_age', 'max_sample_age_s'),
    ('sync_batchsize', 'sync_batch_size'),
    ('max_sync_retry', 'max_sync_retries'),
    ('async_trainings', 'async_training'),
    ('async_train', 'async_training'),
    ('AsyncTraining', 'async_training'),
])
def test_from_policy_refuses_a_misspelt_setting(misspelt, meant):
    with pytest.raises(ConfigError, match=rf'^policy\.{misspelt} must be .* did you mean {meant}\?$'):
        AsyncConfig.from_policy({**LIGHTZERO_POLICY, misspelt: 3})


def test_from_policy_leaves_unrelated_keys_alone():
    assert AsyncConfig.from_policy({**LIGHTZERO_POLICY, 'my_own_key': 3, 7: 'seven'}) == AsyncConfig()


def test_from_policy_never_suspects_a_key_of_the_host():
    policy = {**LIGHTZERO_POLICY, 'learner_thread': 3}
    assert AsyncConfig.from_policy(policy, host_keys=['learner_thread']) == AsyncConfig()


def test_from_policy_does_not_suspect_the_batch_size_of_the_host():
    assert AsyncConfig.from_policy({**LIGHTZERO_POLICY, 'batch_size': 256}) == AsyncConfig()


# -------------------------------------------------------------------- the group async_training inside policy


def from_group(group, **policy):
    return AsyncConfig.from_policy({**LIGHTZERO_POLICY, **policy, 'async_training': group})


def group_refused(message, group, **policy):
    with pytest.raises(ConfigError, match=f'^{re.escape(message)}$'):
        from_group(group, **policy)


GROUP = dict(off_policy_degree=4, staleness_threshold=2, batch_timeout=5, sync_retry_delay=0.5, enable_async_eval=True)


@pytest.mark.parametrize('kind', [dict, types.MappingProxyType])
def test_settings_may_stand_in_a_group(kind):
    assert from_group(kind(GROUP)) == AsyncConfig(**GROUP)


def test_the_group_of_an_easydict():
    easydict = pytest.importorskip('easydict')
    policy = easydict.EasyDict(dict(LIGHTZERO_POLICY, async_training=GROUP, data_queue_size=3))
    assert AsyncConfig.from_policy(policy) == AsyncConfig(**GROUP, data_queue_size=3)


def test_the_group_from_yaml():
    yaml = pytest.importorskip('yaml')
    policy = yaml.safe_load('''
        num_simulations: 50
        off_policy_degree: 4
        async_training:
            enable_async_training: true
            enable_async_eval: false
            max_queue_size: 6
            staleness_threshold: 2
            max_staleness_allowed: 8
            min_batch_count: 2
            batch_timeout: 10
            generation_timeout: 20.5
            batch_generation_interval: 0
            max_sync_retries: 0
            sync_batch_size: null
            max_sample_age_s: ~
            collector_device: cuda:0
    ''')
    assert AsyncConfig.from_policy(policy) == AsyncConfig(
        off_policy_degree=4, max_queue_size=6, staleness_threshold=2, max_staleness_allowed=8, min_batch_count=2,
        batch_timeout=10.0, generation_timeout=20.5, batch_generation_interval=0.0, max_sync_retries=0,
        collector_device='cuda:0',
    )


@pytest.mark.parametrize('text, message', [
    ('sync_timeout: 1e1', "sync_timeout must be a finite number > 0, got '1e1'"),  # to yaml this is no number
    ('sync_timeout: .inf', 'sync_timeout must be a finite number > 0, got inf'),
    ('off_policy_degree: 2.0', 'off_policy_degree must be an int >= -1, got 2.0'),
    ('enable_async_eval: "yes"', "enable_async_eval must be True or False, got 'yes'"),
    ('min_batch_count: null', 'min_batch_count must be an int >= 1, got None'),
])
def test_bad_values_from_yaml_are_refused(text, message):
    yaml = pytest.importorskip('yaml')
    group_refused(f'async_training.{message}', yaml.safe_load(text))


@pytest.mark.parametrize('group', [None, {}])
def test_an_empty_group_changes_nothing(group):
    assert from_group(group, off_policy_degree=3) == AsyncConfig(off_policy_degree=3)


@pytest.mark.parametrize('group', [True, 3, 'off_policy_degree', ['off_policy_degree'], [('off_policy_degree', 3)], ''])
def test_a_group_that_is_no_mapping_is_refused(group):
    group_refused(f'async_training must be a mapping of settings, got {group!r}', group)


def test_the_group_and_policy_together():
    config = from_group(dict(off_policy_degree=4), data_queue_size=3)
    assert config == AsyncConfig(off_policy_degree=4, data_queue_size=3)


@pytest.mark.parametrize('name, value', [('off_policy_degree', 4), ('enable_async_eval', True), ('sync_timeout', 3.5)])
def test_the_group_and_policy_may_say_the_same(name, value):
    assert getattr(from_group({name: value}, **{name: value}), name) == value


@pytest.mark.parametrize('name, flat, grouped', [
    ('off_policy_degree', 0, 4),  # also where one of them is the default
    ('off_policy_degree', 4, 0),
    ('enable_async_eval', True, False),
    ('sync_timeout', 3.5, 3.0),
    ('max_sample_age_s', None, 3.0),
    ('collector_device', 'cpu', 'cuda'),
])
def test_the_group_and_policy_may_not_differ(name, flat, grouped):
    group_refused(
        f'async_training.{name} must equal policy.{name} ({flat!r}), got {grouped!r}', {name: grouped}, **{name: flat}
    )


@pytest.mark.parametrize('flat, grouped', [
    ('data_queue_size', 'max_queue_size'),
    ('max_queue_size', 'data_queue_size'),
])
def test_the_two_names_of_the_queue_size_across_group_and_policy(flat, grouped):
    assert from_group({grouped: 4}, **{flat: 4}).queue_bound == 4
    sizes = {flat: 4, grouped: 5}
    group_refused(
        f'max_queue_size must equal data_queue_size ({sizes["data_queue_size"]}), of which it is another name, got '
        f'{sizes["max_queue_size"]}',
        {grouped: 5}, **{flat: 4},
    )


def test_the_two_names_of_the_queue_size_inside_the_group():
    assert from_group(dict(data_queue_size=4, max_queue_size=4)).queue_bound == 4
    group_refused(
        'max_queue_size must equal data_queue_size (4), of which it is another name, got 5',
        dict(data_queue_size=4, max_queue_size=5),
    )


@pytest.mark.parametrize('name, value', REFUSED.items())
def test_the_values_of_the_group_are_checked(name, value):
    with pytest.raises(ConfigError, match=rf'^async_training.{name} must be .*, got {value!r}$'):
        from_group({name: value})


def test_settings_of_the_group_and_policy_are_checked_together():
    group_refused(
        'sync_batch_size must be None unless off_policy_degree is 0 (serial), got 1024 with off_policy_degree 2',
        dict(sync_batch_size=1024), off_policy_degree=2,
    )


@pytest.mark.parametrize('misspelt, meant', [
    ('off_policy_degre', 'off_policy_degree'),
    ('max_staleness', 'max_staleness_allowed'),
    ('staleness', 'staleness_threshold'),
    ('min_batch', 'min_batch_count'),
    ('sync_retries', 'max_sync_retries'),
    ('batch_size', 'sync_batch_size'),
])
def test_an_unknown_key_in_the_group_is_refused_with_a_suggestion(misspelt, meant):
    group_refused(
        f'async_training.{misspelt} must be a setting of lzero-async, got an unknown key; did you mean {meant}?',
        {misspelt: 3},
    )


@pytest.mark.parametrize('key', ['zzz', 7, True])
def test_an_unknown_key_in_the_group_that_is_like_no_other_is_refused_with_all_settings(key):
    group_refused(
        f'async_training.{key} must be a setting of lzero-async, got an unknown key; the settings are '
        f'{", ".join(AsyncConfig.names())}',
        {key: 3},
    )


def test_keys_of_the_host_are_not_expected_in_the_group():
    with pytest.raises(ConfigError, match=r'^async_training\.num_simulations must be a setting of lzero-async'):
        AsyncConfig.from_policy({'async_training': {'num_simulations': 50}}, host_keys=['num_simulations'])


def test_the_policy_is_left_as_it_was():
    policy = dict(LIGHTZERO_POLICY, data_queue_size=3, async_training=dict(GROUP))
    AsyncConfig.from_policy(policy)
    assert policy == dict(LIGHTZERO_POLICY, data_queue_size=3, async_training=GROUP)


@pytest.mark.parametrize('key, cutoff, name', [
    ('alpa', 0.8, 'alpha'),  # difflib: 2 * 4 / 9 = 0.89
    ('alpa', 0.9, None),
    ('omega', 0.5, None),
])
def test_nearest(key, cutoff, name):
    assert nearest(key, ['alpha', 'beta'], cutoff) == name
