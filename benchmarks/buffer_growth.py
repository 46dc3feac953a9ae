"""What one round costs the learner's buffer as it fills, and what a transition costs in memory: LightZero's and ours.

    python -m benchmarks.buffer_growth [--transitions 10000 100000 1000000] [--rounds 5]

A round pushes 8 segments, removes as many, logs the memory held, takes a page of the journal and samples 40 batches of
256, ages counted; the draws of 40 more are shown by themselves. Buffers of all sizes take turns. One torch thread.
"""
import argparse
import contextlib
import copy
import gc
import io
import statistics
import time
import tracemalloc

import numpy as np
import torch
from ding.config import compile_config
from ding.policy import create_policy
from lzero.mcts.buffer.game_segment import GameSegment

from lzero_async.core.segments import Stamp
from lzero_async.lightzero.families import family_of
from lzero_async.lightzero.replay.buffer_journal import BufferJournal
from lzero_async.lightzero.replay.buffer_memory import BufferMemory
from lzero_async.lightzero.replay.replay_ages import ReplayAges, stamp_segment

from .works import zoo_config

PUSHED, SAMPLED, BATCH, STEPS, PADDED = 8, 40, 256, 20, 10
PARTS = ('push', 'remove', 'memory log', 'journal page', 'sample x 40', 'of these, draw x 40')
META = {'priorities': None, 'done': True, 'unroll_plus_td_steps': 10}
COUNTED_AT = 50_000
"""Memory is counted for so many transitions: counting is slow, and the share of each is the same."""


class NoCurves:
    def add_scalar(self, *_):
        pass


def segment(config):
    """As one of CartPole comes out of the segment collector: 20 steps, and 10 of the next segment behind them."""
    one, long = GameSegment(None, config.game_segment_length, config), STEPS + PADDED
    one.obs_segment = np.random.randn(long + 1, 4).astype(np.float32)
    one.action_segment = np.random.randint(0, 2, long)
    one.reward_segment = np.ones(long - 1)
    one.child_visit_segment = np.random.rand(long, 2)
    one.root_value_segment = np.random.rand(long)
    one.action_mask_segment = np.ones((STEPS, 2), np.int8)
    one.to_play_segment = np.full(STEPS, -1)
    one.timestep_segment = np.arange(STEPS) + np.random.randint(0, 180)
    one.improved_policy_probs = np.array([])
    return one


def batch_of(config, segments):
    made = [segment(config) for _ in range(segments)]
    for number, one in enumerate(made):
        if number % PUSHED == 0:
            stamp = Stamp(number, 0, 0.0)  # all that came together have one
        stamp_segment(one, stamp)
    return made, [META] * segments


def fill(buffer, batch, by_pushing):
    if by_pushing:
        buffer.push_game_segments(batch)
        return
    # LightZero's own copies all priorities for each segment that is pushed: a million transitions take minutes.
    buffer.game_segment_buffer = batch[0]
    buffer.game_pos_priorities = np.ones(len(batch[0]) * STEPS)
    buffer.game_segment_game_pos_look_up = [
        (buffer.base_idx + number, position) for number in range(len(batch[0])) for position in range(STEPS)
    ]


class Held:
    """A buffer with `transitions` in it, and all that listens to it."""

    def __init__(self, config, policy, accelerate, transitions):
        config = copy.deepcopy(config)
        config.replay_buffer_size = transitions
        self._config, self._policy = config, policy
        self.buffer = family_of('unizero').make_buffer(config, serial=False, accelerate=accelerate)
        self._ages = ReplayAges(self.buffer)
        self._journal = BufferJournal(self.buffer, lambda: GameSegment(None, config.game_segment_length, config))
        self._memory = BufferMemory(self.buffer, NoCurves())
        fill(self.buffer, batch_of(config, transitions // STEPS), by_pushing=accelerate)
        self._memory.update()
        self._journal.written(self._journal.page())

    def round(self):
        """Milliseconds of each part."""
        batch = batch_of(self._config, PUSHED)
        self._ages.begin_round(0)
        return [
            timed(lambda: self.buffer.push_game_segments(batch)),
            timed(self.buffer.remove_oldest_data_to_fit),
            timed(lambda: self._memory.log(0)),
            timed(lambda: self._journal.written(self._journal.page())),
            timed(lambda: [self.buffer.sample(BATCH, self._policy) for _ in range(SAMPLED)]),
            timed(lambda: [self.buffer._sample_orig_data(BATCH) for _ in range(SAMPLED)]),
        ]


def timed(piece):
    """Of this thread's own time, since the machine is shared: all is done in it."""
    begin = time.thread_time()
    piece()
    return (time.thread_time() - begin) * 1e3


def bytes_per_transition(config, policy, accelerate):
    tracemalloc.start()
    held = Held(config, policy, accelerate, COUNTED_AT)
    held.buffer._sample_orig_data(BATCH)
    gc.collect()
    traced = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return traced / held.buffer.get_num_of_transitions()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument('--transitions', type=int, nargs='+', default=[10_000, 100_000, 1_000_000])
    arguments.add_argument('--rounds', type=int, default=5)
    asked = arguments.parse_args()
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        main_config, create_config = zoo_config('cartpole_unizero_segment_async_config')
        main_config.policy.device = 'cpu'
        cfg = compile_config(main_config, seed=0, env=None, auto=True, create_cfg=create_config, save_cfg=False)
        policy = create_policy(cfg.policy, enable_field=['learn', 'collect', 'eval'])
    print('| ms per round | transitions |', ' | '.join(PARTS), '| all |')
    print('|---' * (len(PARTS) + 3) + '|')
    kinds = [(name, size) for size in asked.transitions for name in ('LightZero', 'ours')]
    held = [Held(cfg.policy, policy, name == 'ours', size) for name, size in kinds]
    rounds = [[one.round() for one in held] for _ in range(asked.rounds + 1)][1:]  # in turns: the machine is shared
    for place, (name, size) in enumerate(kinds):
        parts = [statistics.median(times[place][part] for times in rounds) for part in range(len(PARTS))]
        print(f'| {name} | {size} |', ' | '.join(f'{part:.2f}' for part in parts), f'| {sum(parts[:-1]):.1f} |')
    del held
    gc.collect()
    for name in ('LightZero', 'ours'):
        first, last = (kinds.index((name, asked.transitions[place])) for place in (0, -1))
        ratio = statistics.median(sum(times[last][:-1]) / sum(times[first][:-1]) for times in rounds)
        print(f'{name}: a round with {asked.transitions[-1]} transitions takes {ratio:.2f} times as long as with '
              f'{asked.transitions[0]} (median of the ratios within a turn)')
    stock, ours = (bytes_per_transition(cfg.policy, policy, accelerate) for accelerate in (False, True))
    print(f'bytes per transition: LightZero {stock:.0f}, ours {ours:.0f} ({ours / stock:.2f})')


if __name__ == '__main__':
    main()
