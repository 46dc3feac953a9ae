"""Degree 0 is LightZero's own run, bit for bit: weights, optimizer, evaluations, checkpoints, random states."""
import os
import pathlib
import subprocess
import sys

import pytest
import torch

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope='module')
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp('parity')
    library = folder / 'steady_rand.so'
    subprocess.run(['gcc', '-shared', '-fPIC', '-o', library, HERE / 'steady_rand.c'], check=True)
    env = {**os.environ, 'LD_PRELOAD': str(library)}
    found = {}
    for which in ('stock', 'ours'):
        done = subprocess.run(
            [sys.executable, HERE / 'serial_run.py', which, folder / which],
            cwd=folder, env=env, timeout=600, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        found[which] = torch.load(folder / which)
    return found['stock'], found['ours']


def assert_identical(one, other, where='state'):
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            assert_identical(one[key], other[key], f'{where}.{key}')
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for index, (left, right) in enumerate(zip(one, other)):
            assert_identical(left, right, f'{where}[{index}]')
    else:
        assert one == other, where


def test_trained_at_all(outcomes):
    stock, _ = outcomes
    steps = [entry['step'] for entry in stock['state']['optimizer_world_model']['state'].values()]
    assert min(steps) > 50
    assert len(stock['evaluations']) >= 2


def test_weights_target_and_optimizer(outcomes):
    stock, ours = outcomes
    assert_identical(stock['state'], ours['state'])


def test_evaluations_and_checkpoints(outcomes):
    stock, ours = outcomes
    assert_identical(stock['evaluations'], ours['evaluations'], 'evaluations')
    assert_identical(stock['best'], ours['best'], 'ckpt_best')
    assert stock['checkpoints'] == ours['checkpoints']


def test_random_states(outcomes):
    stock, ours = outcomes
    assert stock['numpy'] == ours['numpy']
    assert torch.equal(stock['torch'], ours['torch'])
