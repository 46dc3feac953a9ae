"""What cannot work is refused before anything starts, in words that name the field, the rule and the value."""
import pathlib

import pytest
import torch
from small_configs import cartpole

from lzero_async import ConfigError, run_training, train_unizero_segment_async

REFUSED = [
    ({'off_policy_degree': True}, "off_policy_degree must be an int >= -1, got True"),
    ({'off_policy_degree': 1.5}, "off_policy_degree must be an int >= -1, got 1.5"),
    ({'off_policy_degree': '2'}, "off_policy_degree must be an int >= -1, got '2'"),
    ({'off_policy_degree': -2}, "off_policy_degree must be >= -1, got -2"),
    ({'off_policy_degre': 2}, "policy.off_policy_degre .*did you mean off_policy_degree"),
    ({'enable_async_evl': True}, "policy.enable_async_evl .*did you mean enable_async_eval"),
    ({'data_queue_size': 0}, "data_queue_size must be >= 1, got 0"),
    ({'max_train_ahead': 1}, "max_train_ahead must be 0 when off_policy_degree is 0"),
    ({'collector_device': 'gpu'}, "collector_device must be 'cpu', 'cuda' or 'cuda:N', got 'gpu'"),
    ({'async_training': {'max_queue_size': 3}, 'data_queue_size': 4}, "max_queue_size must equal data_queue_size"),
    ({'async_training': {'stalenes_threshold': 3}}, "async_training.stalenes_threshold .*did you mean staleness_thr"),
    ({'off_policy_degree': 2, 'sync_batch_size': 64}, "sync_batch_size must be None unless off_policy_degree is 0"),
    ({'multi_gpu': True}, "policy.multi_gpu must be False"),
    ({'num_segments': 2}, r"policy.num_segments must equal collector_env_num \(3\), got 2"),
    ({'background_reanalyze': True}, "background_reanalyze must be False when off_policy_degree is 0"),
    ({'background_reanalyze': True, 'off_policy_degree': 2, 'reanalyze_partition': 0},
     "policy.reanalyze_partition must be above 0 and at most 1 when background_reanalyze is True, got 0"),
    ({'background_reanalyze': True, 'off_policy_degree': 2, 'sample_type': 'episode'},
     "policy.sample_type must be 'transition' when background_reanalyze is True, got 'episode'"),
    ({'buffer_reanalyze_freq': -1}, "policy.buffer_reanalyze_freq must be >= 0, got -1"),
]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(pathlib.Path().iterdir()), 'a refused run left something behind'


@pytest.mark.parametrize('policy, message', REFUSED, ids=lambda value: str(value)[:40])
def test_settings(policy, message):
    with pytest.raises(ConfigError, match=message):
        train_unizero_segment_async(cartpole('run', **{'off_policy_degree': 0, **policy}))


@pytest.mark.parametrize('added, message', [
    ({'learner_class': dict}, "learner_class must be a subclass of LightZeroLearner, got <class 'dict'>"),
    ({'collector_class': 5}, 'collector_class must be a subclass of LightZeroCollector, got 5'),
    ({'monitor_callbacks': [print, 5]}, r'monitor_callbacks\[1\] must be callable, got 5'),
    ({'log_level': 'LOUD'}, "log_level must be one of DEBUG, INFO, WARNING, ERROR, got 'LOUD'"),
])
def test_what_a_user_adds(added, message):
    with pytest.raises(ConfigError, match=message):
        run_training(cartpole('run'), **added)


def test_missing_reanalyze_settings():
    main, create = cartpole('run')
    del main.policy['reanalyze_partition']
    with pytest.raises(ConfigError, match=r'policy\.reanalyze_partition must be set'):
        train_unizero_segment_async([main, create])


def test_missing_partition_for_background_reanalyze():
    main, create = cartpole('run', off_policy_degree=2, background_reanalyze=True, buffer_reanalyze_freq=0)
    del main.policy['reanalyze_partition']
    with pytest.raises(ConfigError, match=r'policy\.reanalyze_partition must be set when background_reanalyze is True'):
        train_unizero_segment_async([main, create])


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a CUDA device here')
@pytest.mark.parametrize('field', ['collector_device', 'evaluator_device'])
def test_devices_that_are_not_there(field):
    with pytest.raises(ConfigError, match=f"{field} must be 'cpu' where torch sees no CUDA device, got 'cuda'"):
        train_unizero_segment_async(cartpole('run', off_policy_degree=2, **{field: 'cuda'}))


def test_unsupported_policy_lists_the_supported():
    main, create = cartpole('run')
    create.policy.type = 'muzero'
    with pytest.raises(ConfigError, match="must be one of 'unizero', 'sampled_unizero', 'priorzero', got 'muzero'"):
        train_unizero_segment_async([main, create])


@pytest.mark.parametrize('arguments, message', [
    ({'max_env_step': -1}, 'max_env_step must be >= 0, got -1'),
    ({'max_train_iter': 1.5}, 'max_train_iter must be an int >= 0, got 1.5'),
    ({'model_path': 'nowhere.pth.tar'}, "model_path must be an existing file, got 'nowhere.pth.tar'"),
])
def test_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        train_unizero_segment_async(cartpole('run'), **arguments)


def test_one_config_instead_of_two():
    with pytest.raises(ConfigError, match='input_cfg must be'):
        train_unizero_segment_async(cartpole('run')[0])
