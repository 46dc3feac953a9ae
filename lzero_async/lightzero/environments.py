"""The environments of a role, made and seeded by the host."""
from __future__ import annotations

import copy
from functools import partial
from typing import Any

from ding.envs import create_env_manager, get_vec_env_setting

from ..engines.lifeline import DiesWithMaker
from .random_streams import role_seed


def collector_envs(cfg: Any, seed: int) -> Any:
    env_fn, env_cfgs, _ = get_vec_env_setting(copy.deepcopy(cfg.env))  # it takes keys out
    envs = _managed(cfg, env_fn, env_cfgs)
    envs.seed(seed)
    return envs


def evaluator_envs(cfg: Any, seed: int) -> Any:
    """Each of their episodes begins with the same seed."""
    env_fn, _, env_cfgs = get_vec_env_setting(copy.deepcopy(cfg.env))  # it takes keys out
    envs = _managed(cfg, env_fn, env_cfgs)
    envs.seed(seed, dynamic_seed=False)
    return envs


def env_seed(seed: int, role: str) -> int:
    """A seed for the environments of `role`."""
    # The host adds an index per environment, and numpy takes seeds below 2**32.
    return role_seed(seed, role) >> 1


def _managed(cfg: Any, env_fn: Any, env_cfgs: Any) -> Any:
    # The manager may run each in a process of its own, which must not outlive a run that is killed.
    return create_env_manager(cfg.env.manager, [DiesWithMaker(partial(env_fn, cfg=one)) for one in env_cfgs])
