"""AsyncConfig: every setting of lzero-async, checked before anything starts."""
from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields
from typing import Any, Dict, Iterable, List, Mapping, Optional

from .checks import Check, amounts, boolean, choice, device, integer, number, optional, seconds, text
from .control_law import AUTO_DEGREE
from .engine_choice import AUTO, ENGINES, THREAD, check_engines
from .errors import ConfigError
from .staleness import StalenessRules

GROUP = 'async_training'
DEFAULT_QUEUE_SIZE = 10
DEFAULT_MAX_STALENESS = 5


def setting(default: Any, check: Check, doc: str) -> Any:
    """A field of a config, for `check_settings`."""
    return field(default=default, metadata={'check': check, 'doc': doc})


def check_settings(config: Any) -> None:
    """Put every field of a frozen config through its check."""
    for one in fields(config):
        object.__setattr__(config, one.name, one.metadata['check'](one.name, getattr(config, one.name)))


class _FilledIn(int):
    """A value that was not given. `dataclasses.replace` hands it back, and then it is filled in anew."""

    __repr__ = int.__repr__


@dataclass(frozen=True)
class AsyncConfig:
    """The settings, as they stand in a LightZero config's `policy`. `from_mapping` also refuses unknown keys."""

    off_policy_degree: int = setting(
        0,
        integer(AUTO_DEGREE),
        'Rounds that collecting may be ahead of training. 0: serial, exactly as LightZero. N: at most N. '
        '-1: begins at max(1, replay_buffer_size // batch_size // 10) and adapts.',
    )
    enable_async_training: bool = setting(True, boolean, 'False hands the whole run to LightZero\'s own entry.')
    enable_async_eval: bool = setting(
        False, boolean, 'Evaluate in the background, on a snapshot, instead of pausing training for it.'
    )
    enable_async_debug_log: bool = setting(False, boolean, 'One line per round in the run\'s log.')
    data_queue_size: Optional[int] = setting(
        None, optional(integer(1)),
        'Batches that may wait for the learner, 10 if not set. A collector that finds the queue full waits.',
    )
    max_queue_size: Optional[int] = setting(
        None, optional(integer(1)), 'The same bound as data_queue_size, by its other name. Two values are refused.'
    )
    resume: bool = setting(
        False, boolean, 'Go on with the run in the folder exp_name, if one was saved there; else begin it there.'
    )
    checkpoint_interval_rounds: Optional[int] = setting(
        100, optional(integer(1)), 'Rounds after which the state of the run is written, to resume from. None: never.'
    )
    checkpoint_interval_s: Optional[float] = setting(
        300.0, optional(number(0.0, exclusive=True)),
        'Seconds after which it is written, whichever comes first. None: never.',
    )
    keep_checkpoints: int = setting(
        2, integer(0), 'How many of the last states are kept. 0: none is written, and nothing can be resumed.'
    )
    max_bad_updates: int = setting(
        10, integer(1), 'Updates in a row whose loss or gradients are not finite, until the last state is taken back.'
    )
    stall_timeout: Optional[float] = setting(
        600.0, optional(number(0.0, exclusive=True)),
        'Seconds without any progress of any role until that is reported, with all stacks. None: never.',
    )
    stall_ends_run: bool = setting(True, boolean, 'End the run in order after such a report, or go on waiting.')
    min_off_policy_degree: int = setting(1, integer(1), 'The least that off_policy_degree=-1 adapts to.')
    max_off_policy_degree: Optional[int] = setting(
        None, optional(integer(1)), 'The most that off_policy_degree=-1 adapts to. None: what it begins at.'
    )
    staleness_threshold: int = setting(
        3, integer(0), 'Samples more rounds stale than this are counted as stale, and trained on.'
    )
    max_staleness_allowed: Optional[int] = setting(
        None, optional(integer(0)),
        'Samples more rounds stale than this are dropped, and counted. If not set 5, or the degree + num_collectors - '
        '1 where that is more.',
    )
    max_sample_age_s: Optional[float] = setting(
        None, optional(number(0.0, exclusive=True)), 'Samples older than this many seconds are dropped, and counted.'
    )
    max_consecutive_drops: int = setting(
        20, integer(1), 'Whole batches dropped one after the other until the run ends with an error.'
    )
    min_batch_count: int = setting(
        1, integer(1), 'Batches that must wait in the queue before the learner begins to train them.'
    )
    batch_timeout: float = setting(
        30.0, seconds(exclusive=True),
        'Seconds after which the learner trains fewer than min_batch_count, or, with none, says whom it waits for.',
    )
    generation_timeout: float = setting(
        30.0, seconds(exclusive=True),
        'Seconds after which a collect, or a collector\'s wait for the learner, is reported as overdue; a worker of '
        'the engines process and ray that makes no environment step for so long has hung, and is replaced.',
    )
    batch_generation_interval: float = setting(
        0.1, seconds(), 'Least seconds between the starts of two collects of one collector (off_policy_degree != 0).'
    )
    max_sync_retries: int = setting(3, integer(0), 'Attempts to bring weights to a role after the first has failed.')
    sync_timeout: float = setting(30.0, seconds(exclusive=True), 'Seconds for one such attempt.')
    sync_retry_delay: float = setting(1.0, seconds(), 'Seconds between two such attempts.')
    sync_monitor_interval: float = setting(
        60.0, seconds(exclusive=True),
        'Seconds between two lines of Component Statistics, and two calls of the monitor callbacks.',
    )
    sync_batch_size: Optional[int] = setting(
        None, optional(integer(1)),
        'Strictly on-policy rounds of at least so many samples, all of one version (off_policy_degree 0 only).',
    )
    max_train_ahead: int = setting(
        0, integer(0), 'Rounds that an idle learner may train ahead of collecting, on data it already has.'
    )
    background_reanalyze: bool = setting(
        False, boolean,
        'While the learner waits for a batch, reanalyze the older segments of its buffer, each at most once with one '
        'version of the weights (off_policy_degree != 0).',
    )
    engine: str = setting(
        THREAD, choice(*ENGINES),
        'Where collector and evaluator work: in a thread, in a child process each, or as a Ray actor each. auto: '
        'picked from the cores and the measured contention for the GIL.',
    )
    collector_engine: Optional[str] = setting(
        None, optional(choice(*ENGINES)), 'The engine of the collectors, if it differs from engine.'
    )
    evaluator_engine: Optional[str] = setting(
        None, optional(choice(*ENGINES)), 'The engine of the evaluator, if it differs from engine.'
    )
    num_collectors: int = setting(
        1, integer(1),
        'Collectors, each with its own collector_env_num environments, policy and seed (1 if off_policy_degree is 0).',
    )
    max_worker_restarts: int = setting(
        3, integer(0), 'Workers of one role replaced within worker_restart_window_s; the next loss ends the run.'
    )
    worker_restart_window_s: float = setting(600.0, seconds(exclusive=True), 'The window of max_worker_restarts.')
    worker_start_timeout: float = setting(
        300.0, seconds(exclusive=True), 'Seconds that a worker may take to start, imports and environments included.'
    )
    cpu_affinity: Optional[str] = setting(
        None, optional(choice(AUTO)), 'auto pins each role to cores of its own. None leaves that to the system.'
    )
    ray_address: Optional[str] = setting(
        None, optional(text),
        'The Ray cluster to join (engine ray): host:port, ray://host:port or auto. None: a Ray of our own.',
    )
    collector_num_cpus: float = setting(1.0, number(0.0), 'CPUs that Ray reserves for each collector.')
    collector_num_gpus: float = setting(0.0, number(0.0), 'GPUs that Ray reserves for each collector.')
    evaluator_num_cpus: float = setting(1.0, number(0.0), 'CPUs that Ray reserves for the evaluator.')
    evaluator_num_gpus: float = setting(0.0, number(0.0), 'GPUs that Ray reserves for the evaluator.')
    collector_resources: Optional[Mapping[str, float]] = setting(
        None, optional(amounts), 'Further Ray resources of each collector, by name.'
    )
    evaluator_resources: Optional[Mapping[str, float]] = setting(
        None, optional(amounts), 'Further Ray resources of the evaluator, by name.'
    )
    ray_placement: str = setting(
        'SPREAD', choice('DEFAULT', 'SPREAD'), 'How Ray places collectors: DEFAULT packs them, SPREAD uses all nodes.'
    )
    collector_device: str = setting('cpu', device, 'Where the collector\'s policy lives (off_policy_degree != 0).')
    evaluator_device: str = setting(
        'cpu', device, 'Where the evaluator\'s policy lives (off_policy_degree != 0 or enable_async_eval).'
    )
    learner_threads: Optional[int] = setting(
        None,
        optional(integer(1)),
        'torch threads of the learner. None: half of the cores, or all where it sees pictures (accelerate).',
    )
    collector_threads: Optional[int] = setting(None, optional(integer(1)), 'torch threads of the collector.')
    evaluator_threads: Optional[int] = setting(None, optional(integer(1)), 'torch threads of the evaluator.')
    accelerate: bool = setting(
        True,
        boolean,
        'Where roles overlap, search, sample and train in fewer and larger steps, with the same results. False: '
        'LightZero\'s own code.',
    )
    sample_ahead: bool = setting(
        True, boolean,
        'Make the learner\'s next batch while it trains on this one (off_policy_degree != 0, no use_priority).',
    )
    switch_interval_s: Optional[float] = setting(
        0.0005,
        optional(number(0.0, exclusive=True)),
        'sys.setswitchinterval while roles share the GIL. None leaves it alone.',
    )
    summary_interval_s: float = setting(
        5.0, seconds(exclusive=True), 'Seconds between two writes of async_summary.json.'
    )
    show_progress: bool = setting(True, boolean, 'Show the run in the terminal.')

    def __post_init__(self) -> None:
        for one in fields(self):
            if isinstance(getattr(self, one.name), _FilledIn):
                object.__setattr__(self, one.name, None)
        check_settings(self)
        self._resolve()
        self._check_together()

    def _resolve(self) -> None:
        """Fill in what was not given."""
        sizes = [size for size in (self.data_queue_size, self.max_queue_size) if size is not None]
        if len(set(sizes)) > 1:
            raise ConfigError(
                f'max_queue_size must equal data_queue_size ({self.data_queue_size}), of which it is another name, '
                f'got {self.max_queue_size}'
            )
        size = sizes[0] if sizes else DEFAULT_QUEUE_SIZE
        for name in ('data_queue_size', 'max_queue_size'):
            if getattr(self, name) is None:
                object.__setattr__(self, name, _FilledIn(size))
        if self.max_staleness_allowed is None and self.off_policy_degree != AUTO_DEGREE:
            most = _FilledIn(self._default_max_staleness(self.off_policy_degree))
            object.__setattr__(self, 'max_staleness_allowed', most)

    def _check_together(self) -> None:
        if self.off_policy_degree == 0:
            if self.max_train_ahead > 0:
                raise ConfigError(
                    f'max_train_ahead must be 0 when off_policy_degree is 0 (serial), got {self.max_train_ahead}'
                )
            if self.background_reanalyze:
                raise ConfigError(
                    'background_reanalyze must be False when off_policy_degree is 0 (serial): its learner never waits '
                    'for a batch, got True'
                )
        elif self.sync_batch_size is not None:
            raise ConfigError(
                f'sync_batch_size must be None unless off_policy_degree is 0 (serial), got {self.sync_batch_size} with '
                f'off_policy_degree {self.off_policy_degree}'
            )
        check_engines(self)
        name, most = 'off_policy_degree', max(1, self.off_policy_degree)
        if self.off_policy_degree == AUTO_DEGREE:
            name, most = 'min_off_policy_degree', self.min_off_policy_degree
        if self.min_batch_count > min(most, self.queue_bound):
            raise ConfigError(
                f'min_batch_count must be <= {min(most, self.queue_bound)}, since no more batches can wait with '
                f'{name} {getattr(self, name)} and data_queue_size {self.queue_bound}, got {self.min_batch_count}'
            )
        if self.max_off_policy_degree is not None and self.max_off_policy_degree < self.min_off_policy_degree:
            raise ConfigError(
                f'max_off_policy_degree must be >= min_off_policy_degree ({self.min_off_policy_degree}), got '
                f'{self.max_off_policy_degree}'
            )

    def engine_of(self, role: str) -> str:
        """The engine asked for, for `collector` or `evaluator`."""
        own: Optional[str] = getattr(self, f'{role}_engine')
        return self.engine if own is None else own

    @property
    def queue_bound(self) -> int:
        assert self.data_queue_size is not None
        return self.data_queue_size

    def staleness_rules(self, degree: int) -> StalenessRules:
        """For a run whose degree never passes `degree`."""
        most = self.max_staleness_allowed
        return StalenessRules(
            self.staleness_threshold,
            self._default_max_staleness(degree) if most is None else most,
            self.max_sample_age_s,
            self.max_consecutive_drops,
            late_rounds=self.num_collectors - 1,
        )

    def _default_max_staleness(self, degree: int) -> int:
        return max(DEFAULT_MAX_STALENESS, degree + self.num_collectors - 1)

    @classmethod
    def names(cls) -> List[str]:
        return [setting.name for setting in fields(cls)]

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> 'AsyncConfig':
        """Build from a mapping that holds settings of lzero-async and nothing else."""
        for key in settings:
            if key == GROUP:
                raise ConfigError(f'{GROUP} must stand in the policy of a LightZero config, got it among settings')
            if key not in cls.names():
                raise ConfigError(_unknown(str(key), nearest(str(key), cls.names(), cutoff=0.5)))
        return cls(**settings)

    @classmethod
    def from_policy(cls, policy: Mapping[str, Any], host_keys: Iterable[str] = ()) -> 'AsyncConfig':
        """Pick the settings out of a LightZero `policy` config, whose other keys belong to LightZero.

        A key that neither knows and that looks like a misspelt setting is refused; `host_keys` are never suspected, nor
        is LightZero's batch_size, though it is as near to sync_batch_size as some misspellings are.
        """
        own: Dict[str, Any] = {key: policy[key] for key in cls.names() if key in policy}
        for key in set(policy) - set(own) - set(host_keys) - {GROUP}:
            meant = nearest(str(key), [*cls.names(), GROUP], cutoff=0.81)
            if meant is not None:
                raise ConfigError(_unknown(f'policy.{key}', meant))
        return cls(**own, **cls._from_group(policy.get(GROUP), own))

    @classmethod
    def _from_group(cls, group: Any, own: Mapping[str, Any]) -> Dict[str, Any]:
        """The settings of `policy.async_training`, as far as they do not stand in `policy` as well."""
        if group is None:
            return {}
        if not isinstance(group, Mapping):
            raise ConfigError(f'{GROUP} must be a mapping of settings, got {group!r}')
        for key, value in group.items():
            if key not in cls.names():
                raise ConfigError(_unknown(f'{GROUP}.{key}', nearest(str(key), cls.names(), cutoff=0.5)))
            value = next(one.metadata['check'] for one in fields(cls) if one.name == key)(f'{GROUP}.{key}', value)
            if key in own and own[key] != value:
                raise ConfigError(f'{GROUP}.{key} must equal policy.{key} ({own[key]!r}), got {value!r}')
        return {key: value for key, value in group.items() if key not in own}


def nearest(key: str, names: Iterable[str], cutoff: float) -> Optional[str]:
    """The name that `key` most likely stands for, if any is that close."""
    matches = difflib.get_close_matches(key, list(names), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def _unknown(key: str, meant: Optional[str]) -> str:
    hint = f'; did you mean {meant}?' if meant else f'; the settings are {", ".join(AsyncConfig.names())}'
    return f'{key} must be a setting of lzero-async, got an unknown key{hint}'
