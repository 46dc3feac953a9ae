"""What the tests of engines share: opening an engine, weights, and waiting for processes."""
import os
import pathlib
import time

import psutil
import pytest
from acting_roles import PATIENCE
from fakes import our_threads

from lzero_async.core.config import AsyncConfig
from lzero_async.core.weights import WeightSnapshot

HERE = str(pathlib.Path(__file__).parent)
TESTS = str(pathlib.Path(__file__).parent.parent)
BOTH = ['process', pytest.param('ray', marks=pytest.mark.ray)]

SEARCH_PATH = os.pathsep.join(path for path in (HERE, TESTS, os.environ.get('PYTHONPATH')) if path)
ENVIRONMENT = {'PYTHONPATH': SEARCH_PATH, 'RAY_AUTH_MODE': 'disabled', 'RAY_USAGE_STATS_ENABLED': '0'}
"""With which Ray's workers can import what lies here."""


class Every:
    """Evaluations fall due at every so many iterations."""

    def __init__(self, iterations):
        self._iterations = iterations
        self.last = 0

    def restore(self, last):
        self.last = last

    def due(self, train_iter):
        return train_iter % self._iterations == 0


def open_engine(name, log_folder, **settings):
    if name == 'process':
        from lzero_async.engines.process import ProcessEngine

        return ProcessEngine(str(log_folder))
    from lzero_async.engines.ray_engine import RayEngine

    return RayEngine(ray_settings(**settings))


def ray_settings(**settings):
    return AsyncConfig(**{
        'engine': 'ray', 'off_policy_degree': 2, 'num_collectors': 3, 'collector_num_cpus': 0.1,
        'evaluator_num_cpus': 0.1, **settings,
    })


def yes():
    return True


def until(moment, what):
    """Wait until `moment()`, which `what` describes."""
    give_up_at = time.monotonic() + PATIENCE
    while not moment():
        assert time.monotonic() < give_up_at, f'never: {what}'
        time.sleep(0.01)


def snapshot(version=0, weights=None, **more):
    return WeightSnapshot(version, 0, weights, **more)


def torch_snapshot(version, size=4):
    import torch

    return WeightSnapshot(version, 0, {'w': torch.full((size,), float(version))})


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def assert_gone(pids):
    for pid in pids:
        until(lambda pid=pid: is_gone(pid), f'process {pid} ends')


def await_no_thread():
    """All threads of workers end with them; the spawner belongs to the engine."""
    until(lambda: not [name for name in our_threads() if 'spawner' not in name], 'no thread is left')
