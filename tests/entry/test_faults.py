"""Faults in a real run: what is said, and what is left."""
import glob
import json
import os
import sys
import time

import pytest
import torch
from engine_runs import Notes, noted_run, noting_cartpole
from small_configs import cartpole

from lzero_async import RoleFailed
from lzero_async.entry.run import run_training
from lzero_async.lightzero import run_checkpoints
from lzero_async.lightzero.learn import LightZeroLearner
from lzero_async.lightzero.sound_steps import EnvironmentBroken
from lzero_async.lightzero.updates.guarded_updates import TooManyBadUpdates


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def log():
    with open('run/log/lzero_async.log') as file:
        return file.read()


# ------------------------------------------------------------------ environments


@pytest.mark.parametrize('how, what', [('nan', 'observation'), ('nan reward', 'reward')])
def test_a_value_that_is_no_number_ends_a_run_of_threads_with_its_state_saved(tmp_path, how, what):
    fault = {'role': 'collector', 'how': how, 'after': 60}
    with pytest.raises(RoleFailed, match=f'returned a {what} that is not finite') as failed:
        noted_run(
            tmp_path, noting_cartpole(tmp_path, fault), notes=Notes(tmp_path), max_env_step=10 ** 6,
            off_policy_degree=2, eval_freq=10 ** 6,
        )
    assert isinstance(failed.value.__cause__, EnvironmentBroken)
    assert glob.glob(str(tmp_path / '**' / 'state' / 'state_*.json'), recursive=True)


def test_a_worker_whose_environment_returns_no_number_is_replaced(tmp_path):
    fault = {'role': 'collector', 'how': 'nan', 'after': 25, 'once': str(tmp_path / 'once')}
    run = noted_run(
        tmp_path, noting_cartpole(tmp_path, fault), max_env_step=200, collector_engine='process', off_policy_degree=2,
        eval_freq=10 ** 6,
    )
    assert run.statistics['worker_restarts'] == 1 and run.result.ended_by == 'max_env_step'
    assert 'returned a observation that is not finite' in run.log


@pytest.mark.skipif(sys.platform != 'linux', reason='the limit of memory is that of Linux')
def test_a_worker_that_runs_out_of_memory_is_replaced(tmp_path):
    fault = {'role': 'collector', 'how': 'memory', 'after': 25, 'once': str(tmp_path / 'once')}
    run = noted_run(
        tmp_path, noting_cartpole(tmp_path, fault), max_env_step=200, collector_engine='process', off_policy_degree=2,
        eval_freq=10 ** 6,
    )
    assert run.statistics['worker_restarts'] == 1 and run.result.ended_by == 'max_env_step'
    assert 'Unable to allocate' in run.log


def test_an_environment_that_hangs_in_a_thread_is_reported_and_the_run_ends(tmp_path):
    fault = {'role': 'collector', 'how': 'hang', 'after': 60}
    with pytest.raises(RoleFailed, match='no role has made progress'):
        noted_run(
            tmp_path, noting_cartpole(tmp_path, fault), notes=Notes(tmp_path), max_env_step=10 ** 6,
            off_policy_degree=2, eval_freq=10 ** 6, stall_timeout=20.0,
        )
    (report,) = glob.glob(str(tmp_path / '**' / 'stall_*.txt'), recursive=True)
    with open(report) as file:
        text = file.read()
    assert 'collector-0: collects with version ' in text and 'engine_runs.py' in text and 'learner: waits' in text
    assert glob.glob(str(tmp_path / '**' / 'state' / 'state_*.json'), recursive=True)


# ------------------------------------------------------------------ updates


def spoil(monkeypatch, bad):
    """Updates for which `bad(number)` holds get gradients that are not numbers; numbers count from 1."""
    updates = []
    host_train = LightZeroLearner._host_train

    def train(self, train_data):
        updates.append(0)
        handle = None
        if bad(len(updates)):
            parameter = next(self._policy._learn_model.world_model.parameters())
            handle = parameter.register_hook(lambda gradient: torch.full_like(gradient, float('nan')))
        try:
            return host_train(self, train_data)
        finally:
            if handle is not None:
                handle.remove()

    monkeypatch.setattr(LightZeroLearner, '_host_train', train)
    return updates


def train(max_env_step, **settings):
    settings = {'off_policy_degree': 2, 'checkpoint_interval_rounds': 1, 'eval_freq': 10 ** 6, **settings}
    return run_training(cartpole('run', **settings), max_env_step=max_env_step)


@pytest.mark.parametrize('degree', [0, 2])
def test_bad_updates_are_left_out_and_training_goes_on(monkeypatch, degree):
    updates = spoil(monkeypatch, lambda number: number % 3 == 0)
    result = train(300, off_policy_degree=degree)
    assert result.ended_by == 'max_env_step'
    assert all(tensor.isfinite().all() for tensor in result.policy._learn_model.state_dict().values())
    left_out = len(updates) // 3
    assert log().count('update left out') == left_out == len(os.listdir('run/quarantine')) > 2


def test_after_too_many_the_last_state_is_taken_back(monkeypatch):
    spoil(monkeypatch, lambda number: 20 < number <= 24)
    result = train(400, max_bad_updates=4)
    assert result.ended_by == 'max_env_step'
    assert log().count('back to the weights of the last saved state') == 1


def test_if_that_does_not_help_the_run_ends(monkeypatch):
    spoil(monkeypatch, lambda number: number > 20)
    with pytest.raises(RoleFailed, match='going back to the last saved state did not help') as failed:
        train(10 ** 6, max_bad_updates=4)
    assert isinstance(failed.value.__cause__, TooManyBadUpdates)


# ------------------------------------------------------------------ the disk


@pytest.mark.parametrize('name', ['buffer', 'learner', 'state'])
def test_a_full_disk_is_told_and_tried_again(monkeypatch, name):
    monkeypatch.setattr(run_checkpoints, 'RETRY_S', 0.0)
    os.makedirs('run/state')
    suffix = 'json' if name == 'state' else 'safetensors'
    os.symlink('/dev/full', f'run/state/{name}_00000001.{suffix}.tmp')  # whoever writes there gets a real ENOSPC
    assert train(300, resume=True).ended_by == 'max_env_step'
    assert log().count('the state of the run could not be written, training goes on') == 1
    assert 'No space left on device' in log()
    assert train(400, resume=True).ended_by == 'max_env_step'
    assert 'resuming run from state ' in log()


def test_a_disk_that_is_full_at_the_end_is_an_error_and_the_state_before_is_left(capsys):
    train(200)
    begun = len(glob.glob('run/state/state_*.json'))
    for number in range(1, 200):
        os.symlink('/dev/full', f'run/state/learner_{number:08d}.safetensors.tmp')
    train(300, resume=True, checkpoint_interval_rounds=10 ** 6)
    assert 'the last state of the run could not be written' in capsys.readouterr().out
    assert 'the one before it is what can be resumed: OSError: [Errno 28] No space left on device' in log()
    assert len(glob.glob('run/state/state_*.json')) == begun
    for path in glob.glob('run/state/*.tmp'):
        os.unlink(path)
    assert train(300, resume=True).ended_by == 'max_env_step'


def test_a_folder_that_cannot_be_written_is_refused_before_anything_starts(monkeypatch):
    from lzero_async import ConfigError
    from lzero_async.lightzero import run_config

    monkeypatch.setattr(run_config.os, 'access', lambda path, mode: False)  # as on a read-only file system
    with pytest.raises(ConfigError, match=r"exp_name must be a folder that can be written, got 'run'"):
        train(100)
    assert os.listdir('.') == []


# ------------------------------------------------------------------ the clock on the wall


def test_a_clock_that_jumps_changes_nothing(monkeypatch):
    right, days = time.time, iter(range(10 ** 9))

    def jumping():  # a day forward and a day back, from call to call
        return right() + 86_400 * (next(days) % 2)

    monkeypatch.setattr(time, 'time', jumping)
    result = train(300, stall_timeout=60.0, enable_async_eval=True, eval_freq=10)
    assert result.ended_by == 'max_env_step' and next(days) > 10
    with open('run/async_summary.json') as file:
        numbers = json.load(file)['statistics']
    for name, number in numbers.items():
        if name.endswith(('_time', '_age')) and name != 'last_sync_time':  # that one is a time of day
            assert 0 <= number < 3600, name
    assert train(400, resume=True).ended_by == 'max_env_step'
