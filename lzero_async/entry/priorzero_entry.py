"""The command `priorzero_entry`: a language model's prior and UniZero's search play a text game, and both learn."""
from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Iterator, List, Optional, Sequence

from ..core.checks import integer
from ..core.engine_choice import ENGINES
from .cli import exit_code
from .evaluate import evaluate_checkpoint
from .run import run_training

QUICK_STEPS = 64
MAX_ITER = int(1e5)


def main(argv: Optional[Sequence[str]] = None) -> int:
    options = _parser().parse_args(argv)
    return exit_code(lambda: _quick_test(options) if options.quick_test else _train(options).ended_by)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='priorzero_entry', description=__doc__)

    def add(name: str, **kwargs: Any) -> None:
        parser.add_argument(f'--{name}', f'--{name.replace("_", "-")}', **kwargs)

    add('quick_test', action='store_true', help=f'{QUICK_STEPS} steps, serial and then asynchronous')
    add('env_id', help='a story file; default: the game of this package')
    add('game_path', help='the folder it is in')
    add('llm', help='smollm2, tiny, or the folder of a causal language model; default: the best one installed')
    add('encoder', help='minilm, tiny, or the folder of a text encoder; default: the best one installed')
    add('train_llm', choices=('lora', 'last_layers', 'all', 'none'), default='lora', help='what of it is trained')
    add('root_prior', choices=('mixed', 'llm_logits', 'wm_logits'), default='mixed', help='who speaks at the root')
    add('prior_weight', type=float, default=0.5, help='of the world model, where both speak')
    add('off_policy_degree', type=int, default=4, help='0 serial, N bounded lag, -1 tunes itself')
    add('enable_async_eval', action='store_true', help='evaluate in the background')
    add('engine', choices=ENGINES, help='where collector and evaluator work; default: auto, thread in the quick test')
    add('seed', type=int, default=0)
    add('max_iter', type=int, help=f'updates of the world model; default {MAX_ITER}')
    add('max_env_step', type=int)
    add('eval_freq', type=int, help='updates between two evaluations')
    add('exp_name', default='data_priorzero/run', help='the folder to write to')
    add('no_save', action='store_true', help='keep nothing of the run')
    add('debug', action='store_true', help='prompts, candidates, priors and visit counts of every step, in debug/')
    return parser


@dataclass(frozen=True)
class _Ended:
    ended_by: str
    cores: float
    """Busy on average, from the call to the end."""
    exp_name: str
    transcript: str
    summary: Any


def _train(options: argparse.Namespace) -> _Ended:
    """One run, with its statistics and a transcript printed at the end."""
    with _folder(options) as folder:
        configs = _configs(options, folder, quick=False, degree=options.off_policy_degree)
        _announce(options)
        max_iter = MAX_ITER if options.max_iter is None else options.max_iter
        ended = _run(options, configs, max_iter, options.max_env_step)
        _print_end(ended, kept=not options.no_save)
        return ended


def _quick_test(options: argparse.Namespace) -> str:
    """The same work twice: one thing after the other, then at the same time. Each of the two is a whole run."""
    with _folder(options) as folder:
        compared: List[_Ended] = []
        degrees = [0] if options.off_policy_degree == 0 else [0, options.off_policy_degree]
        runs = [_configs(options, os.path.join(folder, f'degree_{degree}'), True, degree) for degree in degrees]
        _announce(options)
        for degree, configs in zip(degrees, runs):
            steps = QUICK_STEPS if options.max_env_step is None else options.max_env_step
            print(f'--- off_policy_degree {degree}: {steps} environment steps', flush=True)
            compared.append(_run(options, configs, options.max_iter, steps))
            if compared[-1].ended_by == 'interrupt':
                return 'interrupt'
        _print_end(compared[-1], kept=not options.no_save)
        _print_saved(compared)
        print('This shows that all parts work together. So few rounds show no learning.')
        return compared[-1].ended_by


def _announce(options: argparse.Namespace) -> None:
    from ..priorzero.models import resolve_encoder, resolve_llm

    print(resolve_llm(options.llm).describe)
    print(resolve_encoder(options.encoder).describe, flush=True)


def _configs(options: argparse.Namespace, exp_name: str, quick: bool, degree: int) -> Sequence[Any]:
    """Checked: what cannot work is refused before anything starts."""
    from ..lightzero.run_config import read_config
    from ..priorzero.config import FULL, QUICK, priorzero_config

    game = {} if options.env_id is None else {'env_id': options.env_id}
    main_config, create_config = priorzero_config(
        **game,
        game_path=options.game_path,
        llm=options.llm,
        encoder=options.encoder,
        off_policy_degree=degree,
        enable_async_eval=options.enable_async_eval,
        train=options.train_llm,
        exp_name=exp_name,
        size=QUICK if quick else FULL,
    )
    policy = main_config.policy
    policy.root_prior.update(mode=options.root_prior, weight=options.prior_weight)
    # The quick test is too short for workers that have to be started first.
    policy.engine = options.engine or ('thread' if quick else 'auto')
    policy.prior_debug = options.debug
    if options.eval_freq is not None:
        policy.eval_freq = options.eval_freq
    if options.no_save:
        policy.keep_checkpoints = 0
    read_config([main_config, create_config], integer(0)('seed', options.seed))
    return main_config, create_config


def _run(
    options: argparse.Namespace, configs: Sequence[Any], max_iter: Optional[int], max_env_step: Optional[int]
) -> _Ended:
    begun, used = time.monotonic(), _cpu_seconds()
    result = run_training(
        configs, options.seed, max_train_iter=max_iter, max_env_step=max_env_step
    )
    cores = (_cpu_seconds() - used) / (time.monotonic() - begun)
    assert result.exp_name is not None
    with open(os.path.join(result.exp_name, 'async_summary.json'), encoding='utf-8') as file:
        summary = json.load(file)
    transcript = _told(result.exp_name)
    if not transcript and result.ended_by != 'interrupt':
        print('nothing was evaluated in this run: its last checkpoint is evaluated now', flush=True)
        with contextlib.suppress(KeyboardInterrupt):  # the run is over, and has more to tell
            transcript = _evaluated(configs, result.exp_name, options.seed)
    return _Ended(result.ended_by, cores, result.exp_name, transcript, summary)


def _cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _told(exp_name: str) -> str:
    """The transcript of the last evaluation; '' if there was none."""
    from ..monitoring.run_monitor import TRANSCRIPT

    try:
        with open(os.path.join(exp_name, TRANSCRIPT), encoding='utf-8') as file:
            return file.read()
    except FileNotFoundError:
        return ''


def _evaluated(configs: Sequence[Any], exp_name: str, seed: int) -> str:
    """The transcript of an evaluation of the newest checkpoint."""
    folder = os.path.join(exp_name, 'ckpt')
    newest = max((os.path.join(folder, name) for name in os.listdir(folder)), key=os.path.getmtime)
    main_config, create_config = copy.deepcopy(configs)
    main_config.exp_name = os.path.join(exp_name, 'last')
    return evaluate_checkpoint([main_config, create_config], newest, seed).transcript


def _print_end(ended: _Ended, kept: bool) -> None:
    numbers = ended.summary['statistics']
    print('\nAsynchronous statistics')
    for name in (
        'mode', 'off_policy_degree', 'collect_count', 'train_count', 'eval_count', 'max_lag', 'max_staleness',
        'collect_total_time', 'train_total_time', 'eval_total_time', 'processed_samples', 'dropped_samples',
    ):
        value = numbers.get(name)
        print(f'  {name}: {value:.1f} s' if name.endswith('_time') else f'  {name}: {value}')
    print(f'  collect and train at the same time: {ended.summary["overlap_ratio"]:.0%} of the time')
    print(f'\nOne evaluation episode\n{ended.transcript}')
    if kept:
        print(f'\nkept in {ended.exp_name}')


def _print_saved(compared: Sequence[_Ended]) -> None:
    if len(compared) < 2:
        print('\ntime saved against degree 0: not measured, this was degree 0')
        return
    serial, beside = (one.summary['wall_time'] for one in compared)
    work = [
        f'{one.summary["env_steps"]} steps, {one.summary["updates"]} updates, {one.cores:.1f} cores busy'
        for one in compared
    ]
    degree = compared[1].summary['statistics']['off_policy_degree']
    print(
        f'\nmeasured in this test, start-up apart: degree 0 {serial:.1f} s ({work[0]}), degree {degree} {beside:.1f} s '
        f'({work[1]}): {serial / beside:.2f} times as fast, {1 - beside / serial:.0%} of the time saved'
    )


@contextlib.contextmanager
def _folder(options: argparse.Namespace) -> Iterator[str]:
    """Where a run writes to."""
    if not options.no_save:
        yield options.exp_name
        return
    with tempfile.TemporaryDirectory(prefix='lzero-async-') as folder:
        yield os.path.join(folder, 'run')


if __name__ == '__main__':
    sys.exit(main())
