"""AsyncConfig: every setting of lzero-async, checked before anything starts."""
from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields
from typing import Any, Dict, Iterable, List, Mapping, Optional

from .checks import Check, boolean, device, integer, number, optional
from .control_law import AUTO_DEGREE
from .errors import ConfigError


def _setting(default: Any, check: Check, doc: str) -> Any:
    return field(default=default, metadata={'check': check, 'doc': doc})


@dataclass(frozen=True)
class AsyncConfig:
    """The settings, as they stand in a LightZero config's `policy`. `from_mapping` also refuses unknown keys."""

    off_policy_degree: int = _setting(
        0,
        integer(AUTO_DEGREE),
        'Rounds that collecting may be ahead of training. 0: serial, exactly as LightZero. N: at most N. '
        '-1: max(1, replay_buffer_size // batch_size // 10).',
    )
    enable_async_training: bool = _setting(True, boolean, 'False hands the whole run to LightZero\'s own entry.')
    enable_async_eval: bool = _setting(
        False, boolean, 'Evaluate in the background, on a snapshot, instead of pausing training for it.'
    )
    enable_async_debug_log: bool = _setting(False, boolean, 'One line per round in the run\'s log.')
    data_queue_size: int = _setting(
        10, integer(1), 'Batches that may wait for the learner. A collector that finds the queue full waits.'
    )
    max_train_ahead: int = _setting(
        0, integer(0), 'Rounds that an idle learner may train ahead of collecting, on data it already has.'
    )
    collector_device: str = _setting('cpu', device, 'Where the collector\'s policy lives (off_policy_degree != 0).')
    evaluator_device: str = _setting(
        'cpu', device, 'Where the evaluator\'s policy lives (off_policy_degree != 0 or enable_async_eval).'
    )
    learner_threads: Optional[int] = _setting(
        None, optional(integer(1)), 'torch threads of the learner. None: the cores shared evenly by collect and train.'
    )
    collector_threads: Optional[int] = _setting(None, optional(integer(1)), 'torch threads of the collector.')
    evaluator_threads: Optional[int] = _setting(None, optional(integer(1)), 'torch threads of the evaluator.')
    accelerate: bool = _setting(
        True,
        boolean,
        'Where roles overlap, search with scripted functions and compute targets with numpy: the same results in '
        'fewer steps. False: LightZero\'s own code.',
    )
    switch_interval_s: Optional[float] = _setting(
        0.0005,
        optional(number(0.0, exclusive=True)),
        'sys.setswitchinterval while roles share the GIL. None leaves it alone.',
    )
    summary_interval_s: float = _setting(
        5.0, number(0.0, exclusive=True), 'Seconds between two writes of async_summary.json.'
    )
    show_progress: bool = _setting(True, boolean, 'Show the run in the terminal.')

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = setting.metadata['check'](setting.name, getattr(self, setting.name))
            object.__setattr__(self, setting.name, value)
        if self.off_policy_degree == 0 and self.max_train_ahead > 0:
            raise ConfigError(
                f'max_train_ahead must be 0 when off_policy_degree is 0 (serial), got {self.max_train_ahead}'
            )

    @classmethod
    def names(cls) -> List[str]:
        return [setting.name for setting in fields(cls)]

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> 'AsyncConfig':
        """Build from a mapping that holds settings of lzero-async and nothing else."""
        for key in settings:
            if key not in cls.names():
                raise ConfigError(_unknown(str(key), nearest(str(key), cls.names(), cutoff=0.5)))
        return cls(**settings)

    @classmethod
    def from_policy(cls, policy: Mapping[str, Any], host_keys: Iterable[str] = ()) -> 'AsyncConfig':
        """Pick the settings out of a LightZero `policy` config, whose other keys belong to LightZero.

        A key that neither knows and that looks like a misspelt setting is refused; `host_keys` are never suspected.
        """
        own: Dict[str, Any] = {key: policy[key] for key in cls.names() if key in policy}
        for key in set(policy) - set(own) - set(host_keys):
            meant = nearest(str(key), cls.names(), cutoff=0.8)
            if meant is not None:
                raise ConfigError(_unknown(f'policy.{key}', meant))
        return cls(**own)


def nearest(key: str, names: Iterable[str], cutoff: float) -> Optional[str]:
    """The name that `key` most likely stands for, if any is that close."""
    matches = difflib.get_close_matches(key, list(names), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def _unknown(key: str, meant: Optional[str]) -> str:
    hint = f'; did you mean {meant}?' if meant else f'; the settings are {", ".join(AsyncConfig.names())}'
    return f'{key} must be a setting of lzero-async, got an unknown key{hint}'
