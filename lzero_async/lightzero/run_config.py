"""A LightZero config on its way to a run: checked before anything starts, then compiled by the host."""
from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from typing import Any, Sequence

from ..core.config import AsyncConfig
from ..core.errors import ConfigError
from .families import Family, family_of


@dataclass(frozen=True)
class RunConfig:
    """What the user gave, checked. `main` and `create` are copies: the user's own dicts stay as they are."""

    main: Any
    create: Any
    settings: AsyncConfig
    family: Family
    seed: int


def read_config(input_cfg: Sequence[Any], seed: int) -> RunConfig:
    """Refuse what cannot work. Touches no disk and starts nothing."""
    if not isinstance(input_cfg, (list, tuple)) or len(input_cfg) != 2:
        raise ConfigError(f'input_cfg must be [main_config, create_config], got {type(input_cfg).__name__}')
    main, create = copy.deepcopy(input_cfg[0]), copy.deepcopy(input_cfg[1])
    family = family_of(create.policy.type)
    settings = AsyncConfig.from_policy(main.policy, host_keys=_host_keys(create))
    _check_host(main)
    family.check(main, create)
    if settings.background_reanalyze:
        _check_background_reanalyze(main.policy, family)
    return RunConfig(main, create, settings, family, seed)


def check_folder(exp_name: str) -> None:
    """Refuse an experiment folder that cannot be written to."""
    folder = os.path.abspath(exp_name)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f'exp_name must be a folder that can be written, got {exp_name!r}: {folder} cannot')


def compile_run(run: RunConfig) -> Any:
    """Let the host compile the config. Makes the experiment folder, under a new name if it exists already.

    A run that resumes keeps the name.
    """
    import torch
    from ding.config import compile_config

    main = run.main
    main.policy.device = main.policy.model.world_model_cfg.device if torch.cuda.is_available() else 'cpu'
    if 'exp_name' in main:
        # The host writes under './<exp_name>': an absolute name would end up in two places.
        main.exp_name = os.path.relpath(main.exp_name)
    return compile_config(
        main, seed=run.seed, env=None, auto=True, create_cfg=run.create, save_cfg=True,
        renew_dir=not run.settings.resume,
    )


def _host_keys(create: Any) -> Any:
    from ding.policy import get_policy_cls

    return get_policy_cls(create.policy).default_config().keys()


def _check_host(main: Any) -> None:
    policy = main.policy
    if policy.get('multi_gpu', False):
        raise ConfigError('policy.multi_gpu must be False: one learner trains here, got True')
    frequency = policy.get('buffer_reanalyze_freq', 0)
    if frequency < 0:
        raise ConfigError(f'policy.buffer_reanalyze_freq must be >= 0, got {frequency!r}')
    if frequency > 0:
        for key in ('reanalyze_batch_size', 'reanalyze_partition'):
            if key not in policy:
                raise ConfigError(
                    f'policy.{key} must be set when buffer_reanalyze_freq is above 0, got buffer_reanalyze_freq='
                    f'{frequency!r} and no {key}'
                )
    environments, segments = policy.get('collector_env_num'), policy.get('num_segments')
    if environments is not None and segments is not None and environments != segments:
        raise ConfigError(f'policy.num_segments must equal collector_env_num ({environments}), got {segments}')


def _check_background_reanalyze(policy: Any, family: Family) -> None:
    if family.cannot_reanalyze:
        raise ConfigError(
            f'background_reanalyze must be False for {family.policy_type}: {family.cannot_reanalyze}, got True'
        )
    if 'reanalyze_partition' not in policy:
        raise ConfigError('policy.reanalyze_partition must be set when background_reanalyze is True, got none')
    if not 0 < policy.reanalyze_partition <= 1:
        raise ConfigError(
            'policy.reanalyze_partition must be above 0 and at most 1 when background_reanalyze is True, got '
            f'{policy.reanalyze_partition!r}'
        )
    if policy.get('sample_type', 'transition') != 'transition':
        raise ConfigError(
            f"policy.sample_type must be 'transition' when background_reanalyze is True, got {policy.sample_type!r}"
        )
