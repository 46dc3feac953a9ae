"""One measured run, in a process of its own. Used by the benchmarks; prints one line of JSON.

    python -m benchmarks.one_run cartpole|pong stock|ENGINE:DEGREE[:plain] ENV_STEPS FOLDER

BENCH_POLICY in the environment, as JSON, changes settings of the policy: '{"switch_interval_s": 0.005}'.
"""
import contextlib
import json
import os
import sys
import time

import lzero.entry
import psutil
from lzero.mcts import UniZeroGameBuffer
from lzero.worker import MuZeroSegmentCollector

from lzero_async import train_unizero_segment_async
from lzero_async.core.collector_loop import CollectorLoop

from .works import WORKS


def first_call(owner, name):
    """The reading of the clocks when `owner.name` is first called, once it is: in a list."""
    readings, original = [], getattr(owner, name)

    def timed(*args, **kwargs):
        readings.append(clocks())
        setattr(owner, name, original)
        return original(*args, **kwargs)

    setattr(owner, name, timed)
    return readings


def clocks():
    """Seconds, and the seconds that all cores of the machine were busy and idle, whoever used them."""
    cores = psutil.cpu_times()
    idle = cores.idle + cores.iowait
    return time.perf_counter(), sum(cores) - idle, idle


def main() -> None:
    work, variant, env_steps, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    config, create = WORKS[work]()
    config.policy.update(eval_freq=10**9, off_policy_degree=0, enable_async_eval=False, show_progress=False)
    if variant == 'stock':
        train = lzero.entry.train_unizero_segment
    else:
        train = train_unizero_segment_async
        engine, degree, *plain = variant.split(':')
        config.policy.update(off_policy_degree=int(degree), engine=engine, accelerate=not plain)
    config.policy.update(json.loads(os.environ.get('BENCH_POLICY', '{}')))
    os.chdir(folder)
    config.exp_name = f'run_{variant.replace(":", "_")}_{os.getpid()}'

    pushed = []
    push = UniZeroGameBuffer.push_game_segments
    UniZeroGameBuffer.push_game_segments = lambda self, batch: (pushed.extend(batch[0]), push(self, batch))[1]
    with open(f'{config.exp_name}.log', 'w') as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        begin = time.perf_counter()
        first_collect = first_call(MuZeroSegmentCollector, 'collect') if variant == 'stock' else first_call(
            CollectorLoop, '_collect'
        )
        policy = train([config, create], seed=0, max_env_step=env_steps)
        end, busy, idle = clocks()
    started, busy_before, idle_before = first_collect[0]
    busy, idle = busy - busy_before, idle - idle_before
    steps = [int(state['step']) for state in policy._optimizer_world_model.state.values()]
    print(json.dumps({
        'variant': variant, 'startup': started - begin, 'seconds': end - started, 'busy': busy / (busy + idle),
        'updates': max(steps), 'segments': len(pushed), 'env_steps': sum(len(segment) for segment in pushed),
    }))


if __name__ == '__main__':
    main()
