"""Stock LightZero against lzero-async on the same work, interleaved, in one go. `make bench`.

    python -m benchmarks.speed cartpole
    python -m benchmarks.speed pong

Every run makes the same environment steps, segments and updates (see works.py), so one ratio holds for environment
steps and updates per second alike: stock's time over ours, taken within a repeat, so that a slow spell of the machine
hits both. It is that from the first collect on. Start-up, from the call to the first collect, is stated apart: it holds
environments, policies, functions that are scripted, and with the engines process and ray the start of the workers and
their imports. `cores busy` is the share of all cores' time in which they had work; leave the machine alone meanwhile.
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
    parser.add_argument('--variants', nargs='+', help='stock or ENGINE:DEGREE[:plain]; plain: accelerate=False')
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
            f'repeat {repeat + 1}, {name(variant):24} start-up {one["startup"]:5.1f} s, '
            f'then {one["seconds"]:6.1f} s, {one["updates"]} updates, cores busy {one["busy"]:.0%}', flush=True,
        )
    done = {(one['updates'], one['segments'], one['env_steps']) for one in found.values()}
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
    columns = (
        'seconds, median (min to max)', 'env steps/s', 'updates/s', 'times as fast as LightZero', 'start-up counted',
        'cores busy', 'start-up, seconds',
    )
    lines = ['', f'| | {" | ".join(columns)} |', '|---' * (len(columns) + 1) + '|']
    for variant in variants:
        ours, stock = [run[variant] for run in runs], [run.get('stock') for run in runs]
        whole = [(one['seconds'] + one['startup']) for one in ours]
        with_startup = ratios([one and one['seconds'] + one['startup'] for one in stock], whole)
        seconds = [one['seconds'] for one in ours]
        cells = (
            name(variant),
            spread(seconds, '.1f'),
            f'{statistics.median(one["env_steps"] / one["seconds"] for one in ours):.1f}',
            f'{statistics.median(one["updates"] / one["seconds"] for one in ours):.1f}',
            ratios([one and one['seconds'] for one in stock], seconds),
            with_startup,
            f'{statistics.median(one["busy"] for one in ours):.0%}',
            spread([one['startup'] for one in ours], '.1f'),
        )
        lines.append(f'| {" | ".join(cells)} |')
    one = runs[0][variants[0]]
    work = f'Each run: {one["segments"]} segments, {one["env_steps"]} environment steps, {one["updates"]} updates.'
    return '\n'.join([*lines, '', work])


def ratios(stock, ours):
    """Of each repeat's times, if stock was measured."""
    return '-' if stock[0] is None else spread([one / other for one, other in zip(stock, ours)], '.2f')


def name(variant):
    if variant == 'stock':
        return 'LightZero'
    engine, degree, *plain = variant.split(':')
    return f'{engine}, degree {degree}{", plain" if plain else ""}'


def spread(values, form):
    return f'{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})'


if __name__ == '__main__':
    main()
