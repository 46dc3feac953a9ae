"""Stock LightZero against lzero-async on the same work, interleaved, in one go. `make bench`.

    python -m benchmarks.speed cartpole
    python -m benchmarks.speed pong

Every run makes the same environment steps, segments and updates (see works.py). Start-up is the time from the
call to the first collect: environments, policies, and with the engines process and ray the start of the workers and
their imports. It is stated apart; a ratio is stock's time over ours from then on, taken within a repeat, so that a slow
spell of the machine hits both.
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

from .works import ENV_STEPS, VARIANTS, WORKS


def main() -> None:
    parser = argparse.ArgumentParser(description='Compare wall times on equal work.')
    parser.add_argument('work', choices=WORKS)
    parser.add_argument('--repeats', type=int, default=3)
    parser.add_argument('--env-steps', type=int, help='default: 2000 for cartpole, 1600 for pong')
    parser.add_argument('--variants', nargs='+', help='stock, DEGREE or ENGINE:DEGREE')
    options = parser.parse_args()
    variants = options.variants or VARIANTS[options.work]
    env_steps = options.env_steps or ENV_STEPS[options.work]
    cores = f'{os.cpu_count()} cores, {platform.machine()}'
    print(f'{cores}, Python {platform.python_version()}, torch {torch.__version__}')
    runs = [measure_all(options.work, variants, env_steps, repeat) for repeat in range(options.repeats)]
    print(table(runs, variants))


def measure_all(work, variants, env_steps, repeat):
    """One run of each variant, in an order that turns from repeat to repeat."""
    turned = [*variants[repeat % len(variants):], *variants[:repeat % len(variants)]]
    found = {}
    for variant in turned:
        found[variant] = measure(work, variant, env_steps)
        one = found[variant]
        print(
            f'repeat {repeat + 1}, {name(variant):18} start-up {one["startup"]:5.1f} s, '
            f'then {work_seconds(one):6.1f} s, {one["updates"]} updates', flush=True,
        )
    done = {(one['updates'], one['segments']) for one in found.values()}
    assert len(done) == 1, f'the variants did different amounts of work: {found}'
    return found


def measure(work, variant, env_steps):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, '-m', 'benchmarks.one_run', work, variant, str(env_steps), folder]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f'{" ".join(command)} failed:\n{done.stderr[-4000:]}')
    return json.loads(done.stdout.splitlines()[-1])


def table(runs, variants):
    spreads = 'median (min to max)'
    lines = ['', f'| | seconds, {spreads} | times as fast as LightZero | start-up, seconds |', '|---|---|---|---|']
    for variant in variants:
        seconds = [work_seconds(run[variant]) for run in runs]
        startup = [run[variant]['startup'] for run in runs]
        ratios = '-'
        if 'stock' in variants:
            ratios = spread([work_seconds(run['stock']) / work_seconds(run[variant]) for run in runs], '.2f')
        cells = (name(variant), spread(seconds, '.1f'), ratios, spread(startup, '.1f'))
        lines.append(f'| {" | ".join(cells)} |')
    one = runs[0][variants[0]]
    work = f'Each run: {one["segments"]} segments, {one["updates"]} updates.'
    return '\n'.join([*lines, '', work])


def work_seconds(one):
    return one['seconds'] - one['startup']


def name(variant):
    if variant == 'stock':
        return 'LightZero'
    engine, _, degree = variant.rpartition(':')
    return f'{engine or "thread"}, degree {degree}'


def spread(values, form):
    return f'{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})'


if __name__ == '__main__':
    main()
