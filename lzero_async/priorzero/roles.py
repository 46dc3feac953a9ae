"""The roles of PriorZero."""
from __future__ import annotations

from typing import Any

from ..core.checks import integer
from ..core.errors import ConfigError
from ..lightzero.families import RoleClasses
from .collect import PriorZeroCollector
from .engine import story_path
from .environment_config import EnvironmentConfig
from .evaluate import PriorZeroEvaluator
from .learn import PriorZeroLearner
from .mixing import RootMixing
from .prior_config import PriorConfig

ROLES = RoleClasses(PriorZeroLearner, PriorZeroCollector, PriorZeroEvaluator)
MANAGERS = ('base', 'subprocess')


def check_config(main: Any, create: Any) -> None:
    env, policy = EnvironmentConfig.from_mapping(main.env), main.policy
    story_path(env.env_id, env.game_path)
    RootMixing.of(policy.get('root_prior', {}))
    PriorConfig.from_mapping(policy.get('prior', {}))
    integer(1)('policy.prior_update_interval', policy.get('prior_update_interval', 1))
    if create.env_manager.type not in MANAGERS:
        raise ConfigError(f'env_manager.type must be one of {", ".join(MANAGERS)}, got {create.env_manager.type!r}')
    for key in ('reanalyze_ratio', 'buffer_reanalyze_freq'):
        if policy.get(key, 0):
            raise ConfigError(f'policy.{key} must be 0: LightZero reanalyzes without the prior, got {policy[key]!r}')
    if policy.model.get('frame_stack_num', 1) != 1:
        raise ConfigError(f'policy.model.frame_stack_num must be 1, got {policy.model.frame_stack_num!r}')
    if policy.td_steps > policy.game_segment_length:
        raise ConfigError(
            f'policy.td_steps must be at most game_segment_length ({policy.game_segment_length}), got {policy.td_steps}'
        )
