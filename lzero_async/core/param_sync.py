"""ParameterSynchronizer: the one path by which weights go from learner to collectors and evaluator."""
from __future__ import annotations

import logging
import threading
import time
from typing import Any, Callable, ContextManager, Dict, Hashable, List, Mapping, Optional, Tuple, Union

from .checks import integer
from .config import AsyncConfig
from .delivery import SyncRules, WeightTarget
from .errors import ConfigError, LzeroAsyncError
from .placement import Place
from .publication import Publication
from .statistics import Statistics
from .sync_workers import Workers, check_workers, checked_group, listed, name_of
from .weight_ops import PlainWeights, WeightInfo, WeightOps, check_source, check_target
from .weights import WeightSnapshot

logger = logging.getLogger(__name__)


COUNTS = ('sync_count', 'sync_failures', 'param_sync_requests', 'refused_reads', 'published_before')


class ParameterSynchronizer:
    """Publishes versions of the weights and carries them to targets. Any thread may call any member.

    A publication is one immutable snapshot. A target holds all of one version or all of another. Weights that are not
    finite are never published.

    A run publishes with `publish` and each role pulls with `pull`. Outside of a run there are three ways in:
    `sync_to_rollouter` with the two actors given here, `sync_parameters` with registered workers, and `sync_weights`
    with workers given on the spot. `weight_ops` is what touches the weights; this class knows nothing of tensors.
    """

    default_weight_ops: Callable[[], WeightOps] = PlainWeights

    def __init__(
        self,
        config: Union[AsyncConfig, Mapping[str, Any], None] = None,
        trainer_actor: Any = None,
        rollouter_actor: Any = None,
        as_ray_actor: bool = False,
        *,
        weight_ops: Optional[WeightOps] = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        settings = _settings(config)
        self._rules = SyncRules(settings.max_sync_retries, settings.sync_timeout, settings.sync_retry_delay)
        self._ops = weight_ops or self.default_weight_ops()
        self._publication = Publication(self._ops)
        self._as_ray_actor = as_ray_actor
        self._clock = clock
        self._closing = threading.Event()
        self._syncing = threading.Lock()  # one sync of workers at a time
        # Guards all that follows.
        self._lock = threading.Lock()
        self._actors = listed(trainer_actor)
        self._rollouts = listed(rollouter_actor)
        self._group: Optional[Tuple[List[Any], List[Any]]] = None
        self._places: Dict[Hashable, Place] = {}
        self._staged: Optional[WeightSnapshot] = None
        self._targets: Dict[Hashable, WeightTarget] = {}
        self._counts = dict.fromkeys(COUNTS, 0)
        self._last_sync_time = 0.0
        check_workers('trainer_actor', self._actors, check_source)
        check_workers('rollouter_actor', self._rollouts, check_target)

    # ---------------------------------------------------------------- publish and pull: the path of a run

    def publish(self, snapshot: WeightSnapshot) -> bool:
        """Make `snapshot` the newest version. False if its weights are not finite: the last good version stays.

        Where the copy is still under way (from a GPU) nobody waits here: the first who pulls it waits and judges.
        """
        return self._publication.publish(snapshot)

    def latest(self) -> WeightSnapshot:
        """The newest published version, waiting for its copy where that is still under way."""
        return self._publication.latest()

    def attach(self, name: str, receiver: Any) -> WeightTarget:
        """The target behind `receiver`; always the same one for the same receiver."""
        check_target(name, receiver)
        with self._lock:
            self._refuse_if_closing()
            key = self._ops.key_of(receiver)
            if key not in self._targets:
                self._targets[key] = WeightTarget(name, receiver, self._load, self._rules, self._closing)
            return self._targets[key]

    def pull(self, target: WeightTarget) -> WeightSnapshot:
        """Bring `target` to the newest version. Returns what it holds then, which is older if that failed."""
        with self._lock:
            self._counts['param_sync_requests'] += 1
        self.deliver(target, self.latest())
        held = target.held
        if held is None:
            raise LzeroAsyncError(f'the first weights never reached {target.name}')
        return held

    def deliver(self, target: WeightTarget, snapshot: WeightSnapshot) -> bool:
        """Bring `target` to `snapshot`; costs nothing if it is there already. Loads and failures are counted."""
        arrived = target.offer(snapshot)
        return True if arrived is None else self._counted(arrived)

    # ---------------------------------------------------------------- workers: outside of a run

    def sync_to_rollouter(self, new_version: int) -> bool:
        """Carry the trainer's weights to the rollouter, as `new_version`. True once they are there.

        Trainer and rollouter are those given to the constructor, or else the registered workers.
        A version that the rollouter has costs nothing. After a failure the same version is offered again unchanged.
        """
        integer(0)('new_version', new_version)
        with self._lock:
            self._refuse_if_closing()
            registered = self._group or ([], [])
            actors, rollouts = self._actors or registered[0], self._rollouts or registered[1]
        for name, workers in (('trainer_actor', actors), ('rollouter_actor', rollouts)):
            if not workers:
                raise ConfigError(f'{name} must be given to sync to the rollouter, got None')
        return self._sync(actors, rollouts, new_version)

    def register_workers(self, actor_workers: Workers, rollout_workers: Workers) -> bool:
        """Say between whom `sync_parameters` carries weights."""
        self._register(checked_group(actor_workers, rollout_workers))
        return True

    initialize_sync_group = register_workers

    def sync_parameters(self) -> bool:
        """Carry the registered actor workers' weights to the registered rollout workers, as the next version."""
        with self._lock:
            self._refuse_if_closing()
            group = self._group
        if group is None:
            raise ConfigError('actor_workers and rollout_workers must be registered before a sync, got none')
        return self._sync(*group, None)

    def sync_weights(self, actor_workers: Workers, rollout_workers: Workers) -> bool:
        """Carry weights between these workers, as the next version. Actor workers are replicas: the first is read."""
        group = checked_group(actor_workers, rollout_workers)
        self._register(group)
        return self._sync(*group, None)

    def reading(self, worker: Any) -> ContextManager[Optional[WeightSnapshot]]:
        """While this lasts no sync changes `worker`'s weights; yields the snapshot it holds."""
        return self.attach(name_of(worker), worker).reading()

    # ---------------------------------------------------------------- all

    def get_current_version(self) -> int:
        """The newest published version; 0 before the first."""
        newest = self._publication.newest
        return newest.policy_version if newest is not None else 0

    def get_statistics(self) -> Statistics:
        """A read-only copy. `last_sync_time` is in seconds since the epoch, 0.0 before the first sync."""
        version = self.get_current_version()
        published, non_finite = self._publication.published, self._publication.non_finite
        with self._lock:
            numbers: Dict[str, Any] = {
                'sync_count': self._counts['sync_count'],
                'sync_failures': self._counts['sync_failures'],
                'last_sync_time': self._last_sync_time,
                'sync_group_initialized': self._group is not None,
                'current_param_version': version,
                'current_version': version,
                'param_sync_count': published + self._counts['published_before'],
                'param_sync_requests': self._counts['param_sync_requests'],
                'non_finite_weights': non_finite + self._counts['refused_reads'],
            }
            if self._as_ray_actor:
                numbers['is_ready'] = self._group is not None
        return Statistics(numbers)

    def state(self) -> Dict[str, int]:
        """The counts; plain values."""
        published, non_finite = self._publication.published, self._publication.non_finite
        with self._lock:
            counts = dict(self._counts)
        counts['published_before'] += published
        counts['refused_reads'] += non_finite
        return counts

    def restore(self, state: Mapping[str, int]) -> None:
        """Count on from `state`."""
        with self._lock:
            self._counts.update(state)

    def get_weights_info(self) -> List[WeightInfo]:
        """Name, shape and type of each published weight; those of the trainer's before the first publication."""
        newest = self._publication.newest
        if newest is not None:
            return [] if newest.weights is None else self._ops.describe(newest.weights)
        with self._lock:
            actors = self._actors or (self._group[0] if self._group is not None else [])
        return self._ops.describe(self._ops.read(actors[0])) if actors else []

    def cleanup(self) -> None:
        """Let go of all workers and wake all who wait. No sync starts after it; a second call does nothing."""
        self._closing.set()
        with self._lock:
            targets = list(self._targets.values())
            self._targets.clear()
            self._places.clear()
            self._actors, self._rollouts, self._group, self._staged = [], [], None, None
        for target in targets:
            target.release()

    # ---------------------------------------------------------------- inside

    def _refuse_if_closing(self) -> None:
        if self._closing.is_set():
            raise LzeroAsyncError('the synchronizer is cleaned up: it carries nothing any more')

    def _register(self, group: Tuple[List[Any], List[Any]]) -> None:
        with self._lock:
            self._refuse_if_closing()
            self._group = group

    def _sync(self, actors: List[Any], rollouts: List[Any], version: Optional[int]) -> bool:
        """Carry one version to all rollout workers, and publish it once all have it."""
        with self._syncing:
            targets = [self.attach(name_of(worker, index), worker) for index, worker in enumerate(rollouts)]
            snapshot = self._read(actors[0], version)
            if snapshot is None:
                return self._counted(False)
            if snapshot is self._publication.newest and all(target.held is snapshot for target in targets):
                return True
            # All of them, also after one has failed: each has its own chance.
            arrived = [target.deliver(snapshot) for target in targets]
            if all(arrived) and snapshot is not self._publication.newest:
                self._publication.publish(snapshot)
            return self._counted(all(arrived))

    def _read(self, actor: Any, version: Optional[int]) -> Optional[WeightSnapshot]:
        """The weights of `actor`, as `version` or as the next one. None if they cannot be read or are not finite.

        A version is read once: whoever has it has the same weights, also when others get it only later.
        """
        known = [snapshot for snapshot in (*self._publication.offered(), self._staged) if snapshot is not None]
        for snapshot in known:
            if snapshot.policy_version == version:
                return snapshot
        newest = max((snapshot.policy_version for snapshot in known), default=0)
        if version is None:
            version = newest + 1
        elif version < newest:
            raise ConfigError(f'new_version must be >= {newest}, the newest version so far, got {version}')
        try:
            weights = self._ops.read(actor)
            self._ops.settle(weights)
        except ConfigError:
            raise
        except Exception:
            logger.exception('Parameter sync: the weights of version %d could not be read', version)
            return None
        bad = self._ops.first_non_finite(weights)
        if bad is not None:
            with self._lock:
                self._counts['refused_reads'] += 1
            logger.error('Parameter sync: version %d is not published, %s is not finite', version, bad)
            return None
        self._staged = WeightSnapshot(version, 0, weights)
        return self._staged

    def _load(self, receiver: Any, snapshot: WeightSnapshot) -> None:
        device = self._ops.device_of(receiver)
        with self._lock:
            place = self._places.setdefault(device, Place())
        self._ops.load(receiver, place.put(snapshot, device, self._ops), snapshot.policy_version)

    def _counted(self, arrived: bool) -> bool:
        with self._lock:
            if arrived:
                self._counts['sync_count'] += 1
                self._last_sync_time = self._clock()
            else:
                self._counts['sync_failures'] += 1
        return arrived


UnifiedParameterSynchronizer = AsyncParameterSynchronizer = ParameterSynchronizer


def _settings(config: Any) -> AsyncConfig:
    if config is None:
        return AsyncConfig()
    if isinstance(config, AsyncConfig):
        return config
    if not isinstance(config, Mapping):
        raise ConfigError(f'config must be an AsyncConfig or a mapping of settings, got {config!r}')
    return AsyncConfig.from_policy(config)
