import dataclasses

import numpy as np
import pytest

from lzero_async.core.config import AsyncConfig, nearest
from lzero_async.core.errors import ConfigError

DEFAULTS = dict(
    off_policy_degree=0,
    enable_async_training=True,
    enable_async_eval=False,
    enable_async_debug_log=False,
    data_queue_size=10,
    max_train_ahead=0,
    collector_device='cpu',
    evaluator_device='cpu',
    learner_threads=None,
    collector_threads=None,
    evaluator_threads=None,
    accelerate=True,
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
    max_train_ahead=-1,
    collector_device='gpu',
    evaluator_device=0,
    learner_threads=0,
    collector_threads=1.5,
    evaluator_threads=True,
    accelerate='no',
    switch_interval_s=0.0,
    summary_interval_s=float('inf'),
    show_progress=0,
)

LIGHTZERO_POLICY = dict(
    batch_size=256, replay_ratio=0.25, update_per_collect=None, num_segments=8, num_simulations=50, eval_freq=5000,
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


@pytest.mark.parametrize('name, value', REFUSED.items())
def test_refusals_name_the_field_and_the_value(name, value):
    with pytest.raises(ConfigError, match=rf'^{name} must be .*, got {value!r}$'):
        AsyncConfig(**{name: value})


@pytest.mark.parametrize('value', [True, 1.5, '2'])
def test_the_degree_is_an_int(value):
    with pytest.raises(ConfigError, match=f'^off_policy_degree must be an int >= -1, got {value!r}$'):
        AsyncConfig(off_policy_degree=value)


def test_serial_cannot_train_ahead():
    with pytest.raises(ConfigError, match=r'^max_train_ahead must be 0 when off_policy_degree is 0 .*, got 3$'):
        AsyncConfig(off_policy_degree=0, max_train_ahead=3)


@pytest.mark.parametrize('degree', [-1, 1, 5])
def test_asynchronous_may_train_ahead(degree):
    assert AsyncConfig(off_policy_degree=degree, max_train_ahead=3).max_train_ahead == 3


def test_a_config_cannot_be_changed():
    config = AsyncConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.off_policy_degree = 3


def test_numpy_integers_become_ints():
    config = AsyncConfig(off_policy_degree=np.int64(4), learner_threads=np.int32(2))
    assert (config.off_policy_degree, config.learner_threads) == (4, 2)
    assert type(config.off_policy_degree) is type(config.learner_threads) is int


# -------------------------------------------------------------------- from_mapping


def test_from_mapping():
    config = AsyncConfig.from_mapping({'off_policy_degree': 3, 'collector_device': 'cuda:1'})
    assert config == AsyncConfig(off_policy_degree=3, collector_device='cuda:1')


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
    ('learner_thread', 'learner_threads'),
])
def test_from_policy_refuses_a_misspelt_setting(misspelt, meant):
    with pytest.raises(ConfigError, match=rf'^policy\.{misspelt} must be .* did you mean {meant}\?$'):
        AsyncConfig.from_policy({**LIGHTZERO_POLICY, misspelt: 3})


def test_from_policy_leaves_unrelated_keys_alone():
    assert AsyncConfig.from_policy({**LIGHTZERO_POLICY, 'my_own_key': 3, 7: 'seven'}) == AsyncConfig()


def test_from_policy_never_suspects_a_key_of_the_host():
    policy = {**LIGHTZERO_POLICY, 'learner_thread': 3}
    assert AsyncConfig.from_policy(policy, host_keys=['learner_thread']) == AsyncConfig()


@pytest.mark.parametrize('key, cutoff, name', [
    ('alpa', 0.8, 'alpha'),  # difflib: 2 * 4 / 9 = 0.89
    ('alpa', 0.9, None),
    ('omega', 0.5, None),
])
def test_nearest(key, cutoff, name):
    assert nearest(key, ['alpha', 'beta'], cutoff) == name
