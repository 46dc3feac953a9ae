"""Trains CartPole once, with LightZero's entry or with ours, and writes down the outcome. Run by test_serial_is_stock.

    python serial_run.py stock|ours OUTCOME_FILE
"""
import itertools
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import gymnasium.utils.seeding
import numpy as np
import torch
from lzero.worker import MuZeroEvaluator
from small_configs import cartpole

which, outcome_file = sys.argv[1:3]

# LightZero's CartPole never passes a seed on; an environment without one would ask the operating system.
counter = itertools.count()
with_seed = gymnasium.utils.seeding.np_random
gymnasium.utils.seeding.np_random = lambda seed=None: with_seed(next(counter) if seed is None else seed)

evaluations = []
evaluate = MuZeroEvaluator.eval


def noted_evaluate(self, save, train_iter, envstep):
    stop, episodes = evaluate(self, save, train_iter, envstep)
    evaluations.append((train_iter, envstep, [float(x) for x in episodes['eval_episode_return']]))
    return stop, episodes


MuZeroEvaluator.eval = noted_evaluate

main, create = cartpole(f'run_{which}', eval_freq=20, off_policy_degree=0, enable_async_eval=False)
if which == 'stock':
    from lzero.entry import train_unizero_segment as train
else:
    from lzero_async import train_unizero_segment_async as train
policy = train([main, create], seed=7, max_env_step=600)
state = policy.learn_mode.state_dict()
torch.save(
    {
        'state': state,
        'evaluations': evaluations,
        'numpy': np.random.get_state()[1].tolist(),
        'torch': torch.get_rng_state(),
        'best': torch.load(f'run_{which}/ckpt/ckpt_best.pth.tar'),
        'checkpoints': sorted(path.name for path in pathlib.Path(f'run_{which}/ckpt').iterdir()),
    },
    outcome_file,
)
