"""The command `lzero-async`, and what a zoo config does when it is run as a script."""
from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import traceback
from dataclasses import fields
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Tuple

from ..checkpoints.errors import FolderInUse, StateDamaged
from ..core.config import AsyncConfig
from ..core.engine_choice import ENGINES
from ..core.errors import ConfigError, LzeroAsyncError, RoleFailed
from ..version import __version__
from .evaluate import evaluate_checkpoint
from .recipe import Recipe
from .run import LOG_LEVELS, run_training

EXIT_FAILURE, EXIT_CONFIG, EXIT_INTERRUPT = 1, 2, 130


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog='lzero-async', description='Asynchronous training for LightZero.')
    parser.add_argument('--version', action='version', version=f'lzero-async {__version__}')
    commands = parser.add_subparsers(dest='command', required=True)
    train = commands.add_parser('train', help='train with a config file that has main_config and create_config')
    train.add_argument('config', type=Path)
    _add_run_options(train)
    resume = commands.add_parser('resume', help='go on with a run from the state that it has saved')
    resume.add_argument('exp_dir', help='the folder of the run')
    resume.add_argument('--max-env-step', type=int, help='default: as the run was called')
    resume.add_argument('--max-train-iter', type=int, help='default: as the run was called')
    resume.add_argument('--log-level', choices=LOG_LEVELS, default='INFO', help='of the run\'s log file')
    commands.add_parser('settings', help='list the settings that a config may have in its policy')
    options = parser.parse_args(argv)
    if options.command == 'settings':
        return _print_settings()
    if options.command == 'resume':
        return _resume(options)
    try:
        main_config, create_config = _load(options.config)
    except ConfigError as error:
        return _refused(error)
    return _train(main_config, create_config, options)


def run_config(main_config: Any, create_config: Any, max_env_step: int, argv: Optional[Sequence[str]] = None) -> int:
    """Train with a config from its own file, with options from the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description='Train with this config.')
    _add_run_options(parser)
    parser.set_defaults(max_env_step=max_env_step)
    return _train(main_config, create_config, parser.parse_args(argv))


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--off-policy-degree', type=int, help='0 serial, N bounded lag, -1 tunes itself')
    parser.add_argument('--engine', choices=ENGINES, help='where collector and evaluator work')
    parser.add_argument('--num-collectors', type=int, help='collectors, each with its own environments')
    parser.add_argument('--ray-address', help='the Ray cluster to join (engine ray)')
    parser.add_argument('--async-eval', dest='enable_async_eval', action='store_true', default=None)
    parser.add_argument('--no-async-eval', dest='enable_async_eval', action='store_false')
    parser.add_argument('--eval-freq', type=int, help='updates between two evaluations')
    parser.add_argument('--max-env-step', type=int)
    parser.add_argument('--max-train-iter', type=int)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--model-path', help='a checkpoint to begin with')
    parser.add_argument('--eval-only', action='store_true', help='evaluate --model-path and print each return')
    parser.add_argument('--sync-batch-size', type=int, help='samples of a strictly on-policy round (degree 0)')
    parser.add_argument('--log-level', choices=LOG_LEVELS, default='INFO', help='of the run\'s log file')
    parser.add_argument('--exp-name', help='the folder to write to')


def _train(main_config: Any, create_config: Any, options: argparse.Namespace) -> int:
    for name in (
        'off_policy_degree', 'engine', 'num_collectors', 'ray_address', 'enable_async_eval', 'eval_freq',
        'sync_batch_size',
    ):
        if getattr(options, name) is not None:
            main_config.policy[name] = getattr(options, name)
    if options.exp_name is not None:
        main_config.exp_name = options.exp_name
    if options.eval_only:
        return exit_code(lambda: _evaluate(main_config, create_config, options))
    return exit_code(lambda: run_training(
        [main_config, create_config], options.seed, None, options.model_path, options.max_train_iter,
        options.max_env_step, log_level=options.log_level,
    ).ended_by)


def _resume(options: argparse.Namespace) -> int:
    def go_on() -> str:
        recipe = Recipe.read(options.exp_dir)
        recipe.main.exp_name = options.exp_dir
        recipe.main.policy.resume = True
        return run_training(
            [recipe.main, recipe.create], recipe.seed,
            max_train_iter=recipe.max_train_iter if options.max_train_iter is None else options.max_train_iter,
            max_env_step=recipe.max_env_step if options.max_env_step is None else options.max_env_step,
            log_level=options.log_level,
        ).ended_by

    return exit_code(go_on)


def exit_code(work: Callable[[], str]) -> int:
    """Do `work`, which tells how a run ended, and say so as programs do."""
    try:
        ended_by = work()
    except (ConfigError, StateDamaged, FolderInUse) as error:
        return _refused(error)
    except RoleFailed:
        traceback.print_exc()
        return EXIT_FAILURE
    except LzeroAsyncError as error:  # before the roles began to work
        return _refused(error, EXIT_FAILURE)
    return EXIT_INTERRUPT if ended_by == 'interrupt' else 0


def _evaluate(main_config: Any, create_config: Any, options: argparse.Namespace) -> str:
    evaluation = evaluate_checkpoint([main_config, create_config], options.model_path, options.seed)
    deviation = statistics.pstdev(evaluation.returns) if evaluation.returns else 0.0
    print(f'policy_version {evaluation.policy_version}, {len(evaluation.returns)} episodes')
    print(f'mean {evaluation.reward_mean:.3f}, deviation {deviation:.3f}')
    print('returns', ' '.join(f'{one:g}' for one in evaluation.returns))
    return 'evaluated'


def _load(path: Path) -> Tuple[Any, Any]:
    if not path.is_file():
        raise ConfigError(f'config must be an existing Python file, got {str(path)!r}')
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f'config must be a Python file, got {str(path)!r}')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    missing = [name for name in ('main_config', 'create_config') if not hasattr(module, name)]
    if missing:
        raise ConfigError(f'config must define main_config and create_config, got no {" and ".join(missing)} in {path}')
    return module.main_config, module.create_config


def _print_settings() -> int:
    lines: List[str] = []
    for setting in fields(AsyncConfig):
        lines += [f'{setting.name} = {setting.default!r}', f'    {setting.metadata["doc"]}']
    print('\n'.join(lines))
    return 0


def _refused(error: Exception, code: int = EXIT_CONFIG) -> int:
    print(f'lzero-async: {error}', file=sys.stderr)
    return code


if __name__ == '__main__':
    sys.exit(main())
