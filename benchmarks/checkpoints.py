"""What it costs to write down where a run stands, with replay buffers of several sizes.

    python -m benchmarks.checkpoints

CartPole's network and segments. Each state holds 2 000 new transitions. The learner waits for `copy`; `write` is
another thread's work.
"""
import argparse
import contextlib
import io
import os
import statistics
import tempfile
import time

import numpy as np
from ding.config import compile_config
from ding.policy import create_policy
from lzero.mcts import UniZeroGameBuffer
from lzero.mcts.buffer.game_segment import GameSegment

from lzero_async.checkpoints.store import StateStore
from lzero_async.lightzero.learner_state import capture_policy, capture_random
from lzero_async.lightzero.replay.buffer_journal import BufferJournal

from .pieces import segment
from .works import zoo_config

NEW_TRANSITIONS = 2000


def filled(config, transitions):
    """A buffer that holds so many, all of them written already."""
    buffer = UniZeroGameBuffer(config)
    length = config.game_segment_length
    count = transitions // length
    buffer.game_segment_buffer = [segment(config, length) for _ in range(count)]
    buffer.game_segment_game_pos_look_up = [(place, step) for place in range(count) for step in range(length)]
    buffer.game_pos_priorities = np.ones(count * length)
    journal = BufferJournal(buffer, lambda: GameSegment(None, length, config))
    journal.written(journal.page())
    return buffer, journal


def push(buffer, config):
    length = config.game_segment_length
    segments = [segment(config, length) for _ in range(NEW_TRANSITIONS // length)]
    facts = [{'priorities': None, 'done': False, 'unroll_plus_td_steps': 0}] * len(segments)
    buffer.push_game_segments((segments, facts))


def measured(config, policy, transitions, states, folder):
    buffer, journal = filled(config, transitions)
    store = StateStore(folder, 2)
    copies, writes, sizes = [], [], []
    for _ in range(states):
        push(buffer, config)
        begin = time.perf_counter()
        learner = {'policy': capture_policy(policy), 'random': capture_random(None), 'buffer': journal.state()}
        page = journal.page()
        copies.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        manifest = store.write(learner, page.tree(), page.end, buffer.base_idx, {}, 0.0)
        writes.append(time.perf_counter() - begin)
        journal.written(page)
        sizes.append(manifest.learner.size + manifest.pages[-1].size)
    cells = (f'{transitions:,}'.replace(',', ' '), *(
        f'{scale * statistics.median(values):.1f} {unit}'
        for values, scale, unit in ((copies, 1e3, 'ms'), (writes, 1e3, 'ms'), (sizes, 1e-6, 'MB'))
    ))
    print(f'| {" | ".join(cells)} |', flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description='Measure what a saved state costs.')
    parser.add_argument('--states', type=int, default=10)
    parser.add_argument('--transitions', type=int, nargs='+', default=[10_000, 100_000, 1_000_000])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        config, create = zoo_config('cartpole_unizero_segment_async_config')
        config.policy.device = 'cpu'
        with contextlib.redirect_stdout(io.StringIO()):
            cfg = compile_config(config, seed=0, env=None, auto=True, create_cfg=create, save_cfg=False)
            policy = create_policy(cfg.policy, enable_field=['learn', 'collect', 'eval'])
        print('| transitions in the buffer | copy | write | size |\n|---|---|---|---|')
        for transitions in options.transitions:
            measured(cfg.policy, policy, transitions, options.states, os.path.join(folder, f'state-{transitions}'))


if __name__ == '__main__':
    main()
