"""Stock LightZero against lzero-async on the same CartPole work, interleaved, in one go. `make bench`.

Every run makes the same environment steps, segments and updates (see steady_cartpole.py); the time is that of the
whole entry call, set-up of environments and policies included, imports excluded. A ratio is stock's time over ours,
taken within a repeat, so that a slow spell of the machine hits both.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile

import torch

DEFAULT_VARIANTS = ('stock', '0', '2', '8')


def main() -> None:
    parser = argparse.ArgumentParser(description='Compare wall times on equal work.')
    parser.add_argument('--repeats', type=int, default=3)
    parser.add_argument('--env-steps', type=int, default=2000)
    parser.add_argument('--variants', nargs='+', default=DEFAULT_VARIANTS, help='stock, or an off_policy_degree')
    options = parser.parse_args()
    cores = f'{os.cpu_count()} cores, {platform.machine()}'
    print(f'{cores}, Python {platform.python_version()}, torch {torch.__version__}')
    runs = [measure_all(options.variants, options.env_steps, repeat) for repeat in range(options.repeats)]
    print(table(runs, options.variants))


def measure_all(variants, env_steps, repeat):
    """One run of each variant, in an order that turns from repeat to repeat."""
    turned = [*variants[repeat % len(variants):], *variants[:repeat % len(variants)]]
    found = {}
    for variant in turned:
        found[variant] = measure(variant, env_steps)
        one = found[variant]
        print(f'repeat {repeat + 1}, {name(variant):10} {one["seconds"]:7.1f} s, {one["updates"]} updates', flush=True)
    work = {(one['updates'], one['segments']) for one in found.values()}
    assert len(work) == 1, f'the variants did different amounts of work: {found}'
    return found


def measure(variant, env_steps):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, '-m', 'benchmarks.one_run', variant, str(env_steps), folder]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f'{" ".join(command)} failed:\n{done.stderr[-4000:]}')
    return json.loads(done.stdout.splitlines()[-1])


def table(runs, variants):
    spreads = 'median (min to max)'
    lines = ['', f'| variant | seconds, {spreads} | times as fast as stock, {spreads} |', '|---|---|---|']
    for variant in variants:
        seconds = [run[variant]['seconds'] for run in runs]
        ratios = [run['stock']['seconds'] / run[variant]['seconds'] for run in runs] if 'stock' in variants else []
        lines.append(f'| {name(variant)} | {spread(seconds, ".1f")} | {spread(ratios, ".2f") if ratios else "-"} |')
    one = runs[0][variants[0]]
    work = f'Each run: {one["segments"]} segments, {one["updates"]} updates.'
    return '\n'.join([*lines, '', work])


def name(variant):
    return 'LightZero' if variant == 'stock' else f'degree {variant}'


def spread(values, form):
    return f'{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})'


if __name__ == '__main__':
    main()
