"""What a round costs on its way between processes: bytes and seconds, beside the collecting itself.

    python -m benchmarks.transport

A real collector of CartPole in a child process, and a stand-in that hands over segments of 64 x 64 x 3 pictures of the
size that Atari's have (8 segments of 20 steps). `way` is the time from the call to the result, less the work itself.
"""
import argparse
import contextlib
import copy
import io
import os
import tempfile
import time

import numpy as np
import torch
from ding.config import compile_config
from ding.policy import create_policy

from lzero_async.core.segments import Collected
from lzero_async.core.weights import WeightSnapshot
from lzero_async.engines import wire
from lzero_async.engines.process import ProcessEngine
from lzero_async.engines.remote import Patience, RemoteCollector, Told
from lzero_async.lightzero.hosted import HostedRole

from .pieces import segment
from .works import zoo_config


class Pictures:
    """A collector that has its batch at hand. 20 steps and 11 more that the host pads a segment with."""

    def __init__(self, config):
        segments = [segment(config, config.game_segment_length) for _ in range(8)]
        for one in segments:
            one.obs_segment = np.random.rand(31, 3, 64, 64).astype(np.float32)
        self._collected = Collected.of(0, (segments, [{}] * 8), 160, 160)

    def load_weights(self, weights, policy_version):
        pass

    def collect(self, snapshot, keep_going):
        return Told(self._collected, [])

    def close(self):
        pass


class MakePictures:
    def __init__(self, config):
        self._config = config

    def __call__(self):
        return Pictures(self._config)


def measured(name, make_role, weights, rounds, folder):
    engine = ProcessEngine(folder)
    collector = RemoteCollector('collector-0', lambda restart: engine.launch('collector-0', make_role), engine.place,
                                Patience())
    collector.await_ready(lambda: True)
    loads, ways, works, nbytes = [], [], [], 0
    for version in range(rounds + 1):
        begin = time.perf_counter()
        placed = engine.place.put(weights)
        collector.load_weights(placed, version)
        loads.append(time.perf_counter() - begin)
        worked, called = collector.work_seconds, collector.call_seconds
        collected = collector.collect(WeightSnapshot(version, 0, None), lambda: True)
        works.append(collector.work_seconds - worked)
        ways.append(collector.call_seconds - called - works[-1])
        nbytes = wire.encode(collected).nbytes
    collector.close()
    engine.close()
    load, way, work = (sum(times[1:]) / rounds for times in (loads, ways, works))  # the first warms up
    return name, nbytes, placed.nbytes, load * 1e3, way * 1e3, work


def main():
    parser = argparse.ArgumentParser(description='Measure the way between processes.')
    parser.add_argument('--rounds', type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        os.chdir(folder)
        config, create = zoo_config('cartpole_unizero_segment_async_config')
        config.policy.device = 'cpu'
        cfg = compile_config(config, seed=0, env=None, auto=True, create_cfg=create, save_cfg=False)
        weights = create_policy(copy.deepcopy(cfg.policy), enable_field=['collect'])._model.state_dict()
        role = HostedRole(cfg, 'collector-0', 0, 0, 'cpu', True, 1, None, None)
        rows = [
            measured('CartPole', role, weights, options.rounds, folder),
            measured('64 x 64 x 3 pictures', MakePictures(cfg.policy), weights, options.rounds, folder),
        ]
    print('| | segments | weights | loading them | way of the segments | collecting |\n|---|---|---|---|---|---|')
    for name, nbytes, weight_bytes, load, way, work in rows:
        print(f'| {name} | {nbytes / 1e6:.2f} MB | {weight_bytes / 1e6:.2f} MB | {load:.1f} ms | {way:.1f} ms '
              f'| {f"{work:.2f} s" if work > 0.1 else "-"} |')


if __name__ == '__main__':
    main()
