"""What `accelerate` replaces, before and after: milliseconds per search, per sampled batch and per update.

    python -m benchmarks.pieces cartpole
    python -m benchmarks.pieces pong

Medians, taken in turns, with one torch thread each, in one process and with nothing beside it.
"""
import argparse
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
from lzero_async.lightzero.replay.vector_targets import VectorTargetsBuffer
from lzero_async.lightzero.updates.kept_memory import keep_freed_memory
from lzero_async.lightzero.updates.lean_policy import use_lean_updates

from .works import WORKS

REPEATS = {'cartpole': 40, 'pong': 6}
SEGMENTS = {'cartpole': 200, 'pong': 20}


def milliseconds(repeats, *pieces):
    """Medians of the pieces, taken in turns."""
    times = [[] for _ in pieces]
    for _ in range(repeats):
        for piece, found in zip(pieces, times):
            begin = time.perf_counter()
            piece()
            found.append((time.perf_counter() - begin) * 1e3)
    return [statistics.median(found) for found in times]


def observation(config):
    shape = config.model.observation_shape
    return np.random.randn(*((shape,) if isinstance(shape, int) else shape)).astype(np.float32)


def search(policy):
    config = policy._cfg
    environments, actions = config.collector_env_num, config.model.action_space_size
    observations = torch.from_numpy(np.stack([observation(config) for _ in range(environments)]))
    masks = [np.ones(actions, 'int8')] * environments
    timesteps = [np.array(3)] * environments

    def step():
        policy._forward_collect(
            observations.clone(), masks, 1.0, [-1] * environments, 0.0, ready_env_id=np.arange(environments),
            timestep=timesteps,
        )

    return step


def segment(config):
    actions = config.model.action_space_size
    one = GameSegment(None, game_segment_length=config.game_segment_length, config=config)
    one.reset([observation(config)])
    for step in range(config.game_segment_length):
        one.store_search_stats(np.random.randint(1, 10, actions).tolist(), 1.0)
        one.append(step % actions, observation(config), 1.0, np.ones(actions, 'int8'), -1, step)
    one.game_segment_to_array()
    return one


def filled(kind, config, segments):
    buffer = kind(config)
    meta = {'priorities': None, 'done': True, 'unroll_plus_td_steps': config.num_unroll_steps + config.td_steps}
    buffer.push_game_segments(([*copy.deepcopy(segments)], [meta] * len(segments)))
    return buffer


def update(policy, batch):
    return lambda: policy._forward_learn([*copy.deepcopy(batch), 1])


def main():
    parser = argparse.ArgumentParser(description='The pieces that accelerate replaces.')
    parser.add_argument('work', choices=WORKS)
    work = parser.parse_args().work
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        main_config, create_config = WORKS[work]()
        main_config.policy.device = 'cpu'
        cfg = compile_config(
            main_config, seed=0, env=None, auto=True, create_cfg=create_config, save_cfg=False
        ).policy
        learners = [create_policy(cfg, enable_field=['learn', 'collect', 'eval']) for _ in range(2)]
        collectors = [RolePolicy.beside(learners[0], 'collect', 'cpu', faster).policy for faster in (False, True)]
        segments = [segment(cfg) for _ in range(SEGMENTS[work])]
        buffers = [filled(kind, cfg, segments) for kind in (UniZeroGameBuffer, VectorTargetsBuffer)]
        batch = buffers[0].sample(cfg.batch_size, learners[0])
        use_lean_updates(learners[1])
        repeats = REPEATS[work]
        rows = {
            f'search, {cfg.collector_env_num} environments, {cfg.num_simulations} simulations':
                milliseconds(repeats, *map(search, collectors)),
            f'sampling a batch of {cfg.batch_size}':
                milliseconds(repeats, *(lambda one=one: one.sample(cfg.batch_size, learners[0]) for one in buffers)),
        }
        host, = milliseconds(repeats, update(learners[0], batch))
        keep_freed_memory()  # of the whole process, so that LightZero's updates come before it
        rows[f'an update with a batch of {cfg.batch_size}'] = [host, *milliseconds(repeats, update(learners[1], batch))]
    print('| piece, one thread | LightZero, ms | accelerated, ms | ratio |\n|---|---|---|---|')
    for name, (host, ours) in rows.items():
        print(f'| {name} | {host:.1f} | {ours:.1f} | {host / ours:.1f} |')


if __name__ == '__main__':
    main()
