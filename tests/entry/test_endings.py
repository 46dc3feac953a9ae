"""Every way in which a real run ends, and what it leaves behind."""
import contextlib
import json
import pathlib
import sys
import threading

import pytest
import torch
from small_configs import cartpole
from zoo.classic_control.cartpole.envs.cartpole_lightzero_env import CartPoleEnv

from lzero_async import RoleFailed, train_unizero_segment_async
from lzero_async.lightzero.learn import LightZeroLearner


@pytest.fixture
def open_envs(monkeypatch):
    """CartPole environments that are open right now."""
    opened = set()
    reset, close = CartPoleEnv.reset, CartPoleEnv.close
    monkeypatch.setattr(CartPoleEnv, 'reset', lambda self: (opened.add(id(self)), reset(self))[1])
    monkeypatch.setattr(CartPoleEnv, 'close', lambda self: (opened.discard(id(self)), close(self))[1])
    return opened


def assert_in_order(summary, open_envs):
    statistics = summary['statistics']
    assert statistics['collect_count'] == statistics['train_count'], 'owed rounds are trained'
    assert not open_envs
    assert not [thread for thread in threading.enumerate() if 'lzero-async' in thread.name]


@pytest.mark.parametrize('degree', [0, 2])
def test_max_train_iter(train, open_envs, degree):
    result, summary = train(max_train_iter=30, off_policy_degree=degree)
    assert result.ended_by == 'max_train_iter' and summary['updates'] >= 30
    assert_in_order(summary, open_envs)


@pytest.mark.parametrize('degree, background', [(0, False), (2, False), (2, True)])
def test_stop_value(train, open_envs, degree, background):
    main, create = cartpole('run')
    main.env.stop_value = 1  # any policy balances the pole for a step
    result, summary = train(
        config=(main, create), max_env_step=5000, off_policy_degree=degree, enable_async_eval=background
    )
    assert result.ended_by == 'stop_value' and summary['env_steps'] < 5000
    assert summary['last_evaluation']['stop']
    assert_in_order(summary, open_envs)


def test_request_stop_from_another_thread(train, open_envs, monkeypatch):
    trainers, trained = [], threading.Event()
    train_round = LightZeroLearner.train_round
    monkeypatch.setattr(
        LightZeroLearner, 'train_round', lambda self, keep_going: (trained.set(), train_round(self, keep_going))[1]
    )
    stopper = threading.Thread(target=lambda: trained.wait(120) and trainers[0].request_stop('enough'))
    stopper.start()
    result, summary = train(off_policy_degree=4, on_start=trainers.append)
    stopper.join(10)
    assert result.ended_by == 'enough'
    assert_in_order(summary, open_envs)


@pytest.mark.parametrize('degree', [0, 2])
def test_failing_environment(tmp_path, monkeypatch, open_envs, degree):
    monkeypatch.chdir(tmp_path)
    steps = []
    step = CartPoleEnv.step

    def breaking_step(self, action):
        steps.append(action)
        if len(steps) > 250:
            raise OSError('the simulator is gone')
        return step(self, action)

    monkeypatch.setattr(CartPoleEnv, 'step', breaking_step)
    with pytest.raises(RoleFailed, match='collector') as caught:
        train_unizero_segment_async(cartpole('run', off_policy_degree=degree, eval_freq=10 ** 6))
    assert caught.value.role.startswith('collector')
    assert caught.value.__cause__ is not None and caught.value.__cause__.__traceback__ is not None
    assert not [thread for thread in threading.enumerate() if 'lzero-async' in thread.name]
    summary = json.loads(pathlib.Path('run/async_summary.json').read_text())
    assert summary['ended_by'] == 'failure' and 'collector' in summary['error']
    assert summary['updates'] > 0
    assert pathlib.Path(f'run/ckpt/iteration_{summary["updates"]}.pth.tar').is_file(), 'what was trained is saved'


def test_the_process_is_left_as_it_was(train, capfd):
    import logging

    import numpy as np

    before = (
        sys.stdout, sys.stderr, sys.getswitchinterval(), torch.get_num_threads(), np.random.choice,
        list(logging.getLogger().handlers), logging.getLogger().level,
    )
    result, _ = train(max_env_step=60, off_policy_degree=2, enable_async_debug_log=True)
    after = (
        sys.stdout, sys.stderr, sys.getswitchinterval(), torch.get_num_threads(), np.random.choice,
        list(logging.getLogger().handlers), logging.getLogger().level,
    )
    assert after == before
    printed = capfd.readouterr()
    assert printed.out == printed.err == '', 'the host is quiet'
    log = pathlib.Path(result.exp_name, 'log', 'lzero_async.log').read_text()
    assert 'Cleared WorldModel past_kv_cache' in log and 'round 1: train_iter=' in log


def test_second_run_in_one_process_keeps_its_logs_apart(train):
    first, _ = train(max_env_step=60, off_policy_degree=2)
    learner_log = pathlib.Path(first.exp_name, 'log', 'learner', 'learner_logger.txt')
    size = learner_log.stat().st_size
    second, _ = train(max_env_step=60, off_policy_degree=2)
    assert second.exp_name != first.exp_name
    assert learner_log.stat().st_size == size


def test_async_training_off_is_the_stock_entry(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main, create = cartpole('run', enable_async_training=False, off_policy_degree=2)
    with open('noise.txt', 'w') as noise, contextlib.redirect_stdout(noise):
        policy = train_unizero_segment_async([main, create], max_env_step=60)
    assert policy.learn_mode.state_dict()['model']
    assert pathlib.Path('run/ckpt').is_dir()
    assert not pathlib.Path('run/async_summary.json').exists()


def test_absolute_exp_name_is_one_folder(train, tmp_path):
    config = cartpole(tmp_path / 'elsewhere' / 'run')
    train(config=config, max_env_step=60, off_policy_degree=0)
    folder = tmp_path / 'elsewhere' / 'run'
    assert (folder / 'async_summary.json').is_file() and (folder / 'ckpt').is_dir() and (folder / 'log').is_dir()
