"""The settings of the environment of text games, checked before a game is opened."""
from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Dict, Mapping, Optional

from ..core.checks import integer, optional, text
from ..core.config import check_settings, setting
from ..core.errors import ConfigError
from .games import LIGHTHOUSE

HOST_KEYS = frozenset((
    'cfg_type', 'collector_env_num', 'evaluator_env_num', 'import_names', 'is_collect', 'manager',
    'n_evaluator_episode', 'reward_normalize', 'stop_value', 'type',
))
"""What DI-engine and LightZero keep in an environment's config."""


@dataclass(frozen=True)
class EnvironmentConfig:
    """As it stands in `env` of a LightZero config."""

    env_id: str = setting(LIGHTHOUSE.rom, text, 'The name of a story file.')
    game_path: Optional[str] = setting(None, optional(text), 'The folder it is in. None: the games of this package.')
    tokenizer_path: str = setting(None, text, 'The tokenizer of the text encoder: a folder, or a name on its hub.')
    max_steps: int = setting(100, integer(1), 'Steps after which an episode ends, wherever the game stands.')
    max_action_num: int = setting(20, integer(1), 'Actions that the agent can choose from. Further ones are cut.')
    max_seq_len: int = setting(256, integer(8), 'Tokens of an observation.')
    history_turns: int = setting(3, integer(0), 'Moves that a state tells of, in words.')

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def defaults(cls) -> Dict[str, Any]:
        return {one.name: one.default for one in fields(cls)}

    @classmethod
    def from_mapping(cls, cfg: Mapping[str, Any]) -> EnvironmentConfig:
        names = cls.defaults()
        unknown = sorted(set(cfg) - set(names) - HOST_KEYS)
        if unknown:
            raise ConfigError(f'env must have no settings but {", ".join(sorted(names))}, got {unknown[0]!r}')
        if (cfg.get('manager') or {}).get('shared_memory'):
            raise ConfigError('manager.shared_memory must be False, since it does not take texts, got True')
        return cls(**{name: cfg[name] for name in names if name in cfg})
