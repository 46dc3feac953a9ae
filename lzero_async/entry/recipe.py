"""What a run was called with, written down so that `lzero-async resume` can call for it again."""
from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Iterator, List, Optional, Tuple

from ..checkpoints.durable import write_file
from ..checkpoints.errors import StateDamaged
from ..core.errors import ConfigError

NAME = 'run.json'
STATE_FOLDER = 'state'
"""Within the experiment folder."""

UNUSABLE = (
    'main.policy.model', 'main.policy.game_segment_length', 'main.policy.num_unroll_steps', 'main.policy.td_steps',
    'main.policy.discount_factor', 'main.policy.optim_type', 'main.policy.sample_type', 'main.env.env_id',
    'main.env.observation_shape', 'create.policy.type', 'create.env.type', 'main.policy.prior.llm',
    'main.policy.prior.train', 'main.policy.prior.lora_rank', 'main.policy.prior.last_layers',
)
"""With another value here, weights, optimizer or segments of a state mean something else, or do not fit."""
HARMLESS = tuple(f'main.policy.model.world_model_cfg.{key}' for key in ('device', 'env_num', 'num_simulations'))
IGNORED = ('main.exp_name', 'main.policy.resume', 'main.policy.device')
_MISSING = object()


@dataclass(frozen=True)
class Recipe:
    main: Any
    create: Any
    seed: int
    max_env_step: Optional[int]
    max_train_iter: Optional[int]

    def write(self, exp_name: str) -> None:
        folder = os.path.join(exp_name, STATE_FOLDER)
        os.makedirs(folder, exist_ok=True)
        write_file(folder, NAME, json.dumps({
            'main': _plain(self.main, 'main_config'), 'create': _plain(self.create, 'create_config'),
            'seed': self.seed, 'max_env_step': self.max_env_step, 'max_train_iter': self.max_train_iter,
        }, indent=1).encode())

    @classmethod
    def read(cls, exp_name: str) -> 'Recipe':
        """Raises ConfigError if there is none, StateDamaged if it is not as it was written."""
        from easydict import EasyDict

        path = os.path.join(exp_name, STATE_FOLDER, NAME)
        try:
            with open(path, 'rb') as file:
                body = json.loads(file.read())
            return cls(
                EasyDict(_unplain(body['main'])), EasyDict(_unplain(body['create'])), int(body['seed']),
                body['max_env_step'], body['max_train_iter'],
            )
        except FileNotFoundError as error:
            raise ConfigError(
                f'EXP_DIR must be the folder of a run that lzero-async has saved, got {exp_name!r} without '
                f'{STATE_FOLDER}/{NAME}'
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise StateDamaged(f'{path} is not as it was written: {error}') from error

    def changes_to(self, other: 'Recipe') -> List[str]:
        """One line for each key that another run has set otherwise. Raises ConfigError if the state is of no use to it.
        """
        lines, unusable = [], []
        before, now = dict(self._flat()), dict(other._flat())
        for key in sorted({*before, *now}):
            old, new = before.get(key, _MISSING), now.get(key, _MISSING)
            if old == new or key.startswith(IGNORED):
                continue
            lines.append(f'{key}: {_shown(old)} -> {_shown(new)}')
            if key.startswith(UNUSABLE) and not key.startswith(HARMLESS):
                unusable.append(lines[-1])
        if unusable:
            raise ConfigError(f'resume needs these keys as they were when the state was saved: {"; ".join(unusable)}')
        return lines

    def _flat(self) -> Iterator[Tuple[str, Any]]:
        yield from _flat('main', _plain(self.main, 'main_config'))
        yield from _flat('create', _plain(self.create, 'create_config'))
        yield 'seed', self.seed


def _shown(value: Any) -> str:
    return 'not set' if value is _MISSING else repr(value)


def _flat(path: str, value: Any) -> Iterator[Tuple[str, Any]]:
    if isinstance(value, dict) and 'tuple' not in value:
        for key, inner in value.items():
            yield from _flat(f'{path}.{key}', inner)
    else:
        yield path, value


def _plain(value: Any, path: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(inner, f'{path}.{key}') for key, inner in value.items()}
    if isinstance(value, tuple):
        return {'tuple': [_plain(inner, path) for inner in value]}
    if isinstance(value, list):
        return [_plain(inner, path) for inner in value]
    return {'unknown': repr(type(value)), 'path': path}


def _unplain(value: Any) -> Any:
    if isinstance(value, list):
        return [_unplain(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if 'unknown' in value:
        raise ConfigError(
            f'{value["path"]} must be plain to be resumed from the command line, was of {value["unknown"]}: run the '
            'script that started it, with resume=True'
        )
    if list(value) == ['tuple']:
        return tuple(_unplain(inner) for inner in value['tuple'])
    return {key: _unplain(inner) for key, inner in value.items()}
