"""The two pieces that `accelerate` replaces, before and after: milliseconds per search and per sampled batch.

    python -m benchmarks.pieces
"""
import contextlib
import copy
import io
import statistics
import time

import numpy as np
import torch
from ding.config import compile_config
from ding.policy import create_policy
from lzero.mcts import UniZeroGameBuffer
from lzero.mcts.buffer.game_segment import GameSegment

from lzero_async.lightzero.policies import RolePolicy
from lzero_async.lightzero.vector_targets import VectorTargetsBuffer

from .works import zoo_config

REPEATS = 60


def milliseconds(*pieces):
    """Medians of the pieces, taken in turns."""
    times = [[] for _ in pieces]
    for _ in range(REPEATS):
        for piece, found in zip(pieces, times):
            begin = time.perf_counter()
            piece()
            found.append((time.perf_counter() - begin) * 1e3)
    return [statistics.median(found) for found in times]


def search(policy, environments):
    observations = torch.randn(environments, 4)
    masks = [np.ones(2, 'int8')] * environments
    timesteps = [np.array(3)] * environments

    def step():
        policy._forward_collect(
            observations, masks, 1.0, [-1] * environments, 0.0, ready_env_id=np.arange(environments), timestep=timesteps
        )

    return step


def segment(config, length):
    one = GameSegment(None, game_segment_length=config.game_segment_length, config=config)
    one.reset([np.random.randn(4).astype(np.float32)])
    for step in range(length):
        one.store_search_stats([12, 13], 1.0)
        one.append(step % 2, np.random.randn(4).astype(np.float32), 1.0, np.ones(2, 'int8'), -1, step)
    one.game_segment_to_array()
    return one


def filled(kind, config, segments):
    buffer = kind(config)
    meta = {'priorities': None, 'done': True, 'unroll_plus_td_steps': 10}
    buffer.push_game_segments(([*copy.deepcopy(segments)], [meta] * len(segments)))
    return buffer


def main():
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        main_config, create_config = zoo_config('cartpole_unizero_segment_async_config')
        main_config.policy.device = 'cpu'
        cfg = compile_config(
            main_config, seed=0, env=None, auto=True, create_cfg=create_config, save_cfg=False
        )
        policy = create_policy(cfg.policy, enable_field=['learn', 'collect', 'eval'])
        roles = [RolePolicy.beside(policy, 'collect', 'cpu', accelerate).policy for accelerate in (False, True)]
        segments = [segment(cfg.policy, cfg.policy.game_segment_length) for _ in range(200)]
        buffers = [filled(kind, cfg.policy, segments) for kind in (UniZeroGameBuffer, VectorTargetsBuffer)]
        environments = cfg.policy.collector_env_num
        plain_search, scripted_search = milliseconds(*(search(role, environments) for role in roles))
        stock_sample, vector_sample = milliseconds(
            *(lambda one=buffer: one.sample(cfg.policy.batch_size, policy) for buffer in buffers)
        )
    print('| piece, one thread | LightZero | accelerated | ratio |\n|---|---|---|---|')
    print(f'| search, 8 environments, 25 simulations | {plain_search:.0f} ms | {scripted_search:.0f} ms '
          f'| {plain_search / scripted_search:.1f} |')
    print(f'| sampling a batch of 256 | {stock_sample:.0f} ms | {vector_sample:.0f} ms '
          f'| {stock_sample / vector_sample:.1f} |')


if __name__ == '__main__':
    main()
