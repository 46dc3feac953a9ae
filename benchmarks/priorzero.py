"""PriorZero on its own game: no prior, a prior that stays as it is, and one that is trained. Score by env steps.

    python -m benchmarks.priorzero --steps 600 --minutes 15

Each variant is one run with one seed, which ends after so many steps or minutes, whichever comes first.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import os
import threading

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lzero_async.entry.run import run_training
from lzero_async.priorzero.config import FULL, priorzero_config
from lzero_async.priorzero.models import resolve_encoder, resolve_llm

SIZE = dataclasses.replace(
    FULL, collector_env_num=4, evaluator_env_num=2, max_steps=40, max_seq_len=128, num_simulations=16, batch_size=32,
    embed_dim=64, game_segment_length=20, eval_freq=30, prior_samples=16,
)
VARIANTS = {
    'no prior': {'root_prior': {'mode': 'wm_logits', 'weight': 0.5}, 'train': 'none'},
    'frozen': {'root_prior': {'mode': 'mixed', 'weight': 0.5}, 'train': 'none'},
    'trained': {'root_prior': {'mode': 'mixed', 'weight': 0.5}, 'train': 'lora'},
}


def run(name: str, options: argparse.Namespace) -> dict:
    variant = VARIANTS[name]
    main_config, create_config = priorzero_config(
        llm=options.llm, encoder=options.encoder, off_policy_degree=2, enable_async_eval=True, train=variant['train'],
        exp_name=os.path.join(options.folder, name.replace(' ', '_')), size=SIZE,
    )
    main_config.policy.root_prior.update(variant['root_prior'])
    main_config.policy.update(engine=options.engine, show_progress=False, keep_checkpoints=0)

    def end_in_time(trainer) -> None:
        timer = threading.Timer(60 * options.minutes, trainer.request_stop)
        timer.daemon = True
        timer.start()

    result = run_training(
        [main_config, create_config], seed=options.seed, max_env_step=options.steps, on_start=end_in_time
    )
    curves = EventAccumulator(os.path.join(result.exp_name, 'log', 'serial'), size_guidance={'scalars': 0})
    curves.Reload()
    with open(os.path.join(result.exp_name, 'async_summary.json')) as file:
        summary = json.load(file)
    return {
        'ended_by': result.ended_by,
        'env_steps': summary['env_steps'],
        'updates': summary['updates'],
        'prior_version': result.policy.prior.version,
        'wall_time': summary['wall_time'],
        'overlap_ratio': summary['overlap_ratio'],
        'episodes': points(curves, 'collector_step/reward'),
        'evaluations': points(curves, 'evaluator_step/reward_mean'),
    }


def points(curves: EventAccumulator, tag: str) -> list:
    return [(event.step, event.value) for event in curves.Scalars(tag)] if tag in curves.Tags()['scalars'] else []


def mean(values: list) -> str:
    return f'{sum(values) / len(values):.2f} of {len(values)}' if values else 'none'


def show(found: dict) -> None:
    for name, one in found.items():
        half = one['env_steps'] / 2
        first = [score for step, score in one['episodes'] if step <= half]
        second = [score for step, score in one['episodes'] if step > half]
        evaluations = ', '.join(f'{score:g} at {step}' for step, score in one['evaluations'])
        print(
            f'{name}: {one["env_steps"]} steps and {one["updates"]} updates in {one["wall_time"]:.0f} s, overlap '
            f'{one["overlap_ratio"]:.0%}, prior version {one["prior_version"]}\n'
            f'    mean score of episodes: first half {mean(first)}, second half {mean(second)}\n'
            f'    evaluations: {evaluations}', flush=True,
        )


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--variants', nargs='+', choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument('--steps', type=int, default=600)
    parser.add_argument('--minutes', type=float, default=15)
    parser.add_argument('--llm')
    parser.add_argument('--encoder')
    parser.add_argument('--engine', default='thread')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--folder', default='bench_results/priorzero')
    chosen = parser.parse_args()
    print(resolve_llm(chosen.llm).describe)
    print(resolve_encoder(chosen.encoder).describe, flush=True)
    results = {}
    for variant_name in chosen.variants:
        results[variant_name] = run(variant_name, chosen)
        show({variant_name: results[variant_name]})
    show(results)
    os.makedirs(chosen.folder, exist_ok=True)
    with open(os.path.join(chosen.folder, 'results.json'), 'w') as results_file:
        json.dump(results, results_file, indent=1)
