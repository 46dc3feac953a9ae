"""What the native kernels replace, with them and without: milliseconds of one thread, at the sizes of CartPole's model.

    python -m benchmarks.kernels
"""
import contextlib
import io
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from ding.config import compile_config
from ding.policy import create_policy

from lzero_async.lightzero.native import VARIABLE, kernels
from lzero_async.lightzero.replay.exact_linear import exact_linear
from lzero_async.lightzero.replay.vector_targets import VectorTargetsBuffer
from lzero_async.lightzero.updates import lean_loss, lean_update
from lzero_async.lightzero.updates.lean_policy import use_lean_updates

from .pieces import filled, segment
from .works import WORKS

REPEATS = 60


def milliseconds(piece):
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        piece()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def timed(owner, name, times):
    """`owner.name` with its times added to a list."""
    original = getattr(owner, name)

    def measured(*args, **kwargs):
        begin = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            times.append((time.perf_counter() - begin) * 1e3)

    setattr(owner, name, measured)


def measure():
    """One line for each part, in the order of `parts`."""
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        config, create = WORKS['cartpole']()
        config.policy.device = 'cpu'
        cfg = compile_config(config, seed=0, env=None, auto=True, create_cfg=create, save_cfg=False).policy
        policy = create_policy(cfg, enable_field=['learn', 'collect', 'eval'])
        use_lean_updates(policy)
        buffer = filled(VectorTargetsBuffer, cfg, [segment(cfg) for _ in range(200)])
        batch = buffer.sample(cfg.batch_size, policy)
    inside = {name: [] for name in ('transform', '_cross_entropy', 'backward', '_clip', 'step', 'follow')}
    timed(lean_loss, 'transform', inside['transform'])
    timed(lean_loss, '_cross_entropy', inside['_cross_entropy'])
    timed(torch.Tensor, 'backward', inside['backward'])
    timed(lean_update, '_clip', inside['_clip'])
    timed(type(policy._optimizer_world_model), 'step', inside['step'])
    timed(type(policy._target_model.update), 'follow', inside['follow'])
    update = milliseconds(lambda: policy._forward_learn([*batch, 1]))
    linear = torch.nn.Linear(64, 256)
    x = torch.randn(2560, 64)
    with torch.no_grad():
        product = milliseconds(
            (lambda: exact_linear(x, linear.weight, linear.bias)) if kernels() is not None
            else (lambda: F.linear(x, linear.weight, linear.bias))
        )
    return {
        'a linear layer, 64 to 256, of 2 560 rows': product,
        'the transformer, forward': statistics.median(inside['transform']),
        'a head and its loss, forward': statistics.median(inside['_cross_entropy']),
        'all gradients': statistics.median(inside['backward']),
        'clipping them': statistics.median(inside['_clip']),
        'the optimizer\'s step': statistics.median(inside['step']),
        'the target network': statistics.median(inside['follow']),
        'a whole update': update,
    }


def main():
    if len(sys.argv) > 1:
        for name, value in measure().items():
            print(f'part\t{name}\t{value}')
        return
    columns = [run('0'), run('1')]
    print('| part of an update | torch, ms | native, ms | ratio |\n|---|---|---|---|')
    for name, by_torch in columns[0].items():
        native = columns[1][name]
        print(f'| {name} | {by_torch:.2f} | {native:.2f} | {by_torch / native:.1f} |')


def run(native):
    """With or without the kernels, in a process of its own: which of them is decided once."""
    done = subprocess.run(
        [sys.executable, '-m', 'benchmarks.kernels', 'measure'], env={**os.environ, VARIABLE: native},
        capture_output=True, text=True, check=True,
    )
    lines = [line.split('\t') for line in done.stdout.splitlines() if line.startswith('part\t')]
    return {name: float(value) for _, name, value in lines}


if __name__ == '__main__':
    main()
