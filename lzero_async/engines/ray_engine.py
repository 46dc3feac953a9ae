"""The engine `ray`: each role's work in a Ray actor, on this machine or on another node of a cluster."""
from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from typing import Any, Dict, Optional

import ray
from ray.exceptions import RayError

from ..core.config import AsyncConfig
from ..core.cores import available_cores
from ..core.errors import ConfigError, WorkerLost
from . import wire
from .object_store import ObjectStore, StoredWeights
from .ray_actor import RoleActor
from .worker import Call, MakeRole, Raised, Reply

logger = logging.getLogger(__name__)

ASK_INTERVAL_S = 1.0


class RayEngine:
    """Starts actors: in the Ray that this process has joined already, in that at `ray_address`, or in its own."""

    name = 'ray'
    on_this_machine = False

    def __init__(self, settings: AsyncConfig) -> None:
        self._settings = settings
        self._ours = not ray.is_initialized()
        demand = resources_asked_for(settings)
        if self._ours:
            _join(settings, demand)
        _compare(demand, ray.cluster_resources())
        self.place = ObjectStore()

    def launch(self, name: str, make_role: MakeRole) -> 'RayWorker':
        kind, settings = name.split('-')[0], self._settings
        options: Dict[str, Any] = {
            'num_cpus': getattr(settings, f'{kind}_num_cpus'),
            'num_gpus': getattr(settings, f'{kind}_num_gpus'),
            'resources': dict(getattr(settings, f'{kind}_resources') or {}),
            'scheduling_strategy': settings.ray_placement,
            'max_restarts': 0,  # we start the next one ourselves, and know of it
        }
        return RayWorker(name, make_role, options)

    def close(self) -> None:
        if self._ours:
            ray.shutdown()


class RayWorker:
    """`engines.worker.Worker`: the driver's side of one actor."""

    def __init__(self, name: str, make_role: MakeRole, options: Dict[str, Any]) -> None:
        self.name = name
        self._actor = RoleActor.options(**options).remote([os.path.abspath(path) for path in sys.path])
        self._pending: Optional[Any] = self._actor.make.remote(make_role)
        self._beats = 0
        self._asked_at = 0.0
        self._beat: Optional[Any] = None

    def send(self, call: Call) -> None:
        weights, arguments = None, call.args
        if arguments and isinstance(arguments[0], StoredWeights):
            # The reference goes by itself, so that Ray brings what it refers to.
            weights, arguments = arguments[0].reference, (arguments[0].packing, *arguments[1:])
        self._pending = self._actor.answer.remote(Call(call.method, arguments), weights)

    def poll(self, timeout: float) -> Optional[Reply]:
        assert self._pending is not None
        try:
            ready, _ = ray.wait([self._pending], timeout=timeout)
            if not ready:
                return None
            encoded = ray.get(self._pending)
        except RayError as error:
            raise WorkerLost(f'{self.name} (Ray actor) is lost: {type(error).__name__}: {error}') from error
        self._pending = None
        try:
            reply: Reply = wire.decode(encoded)
        except Exception as error:  # what came cannot be read here
            reply = Reply(raised=Raised.by(error))
        return reply

    def beats(self) -> int:
        """The last that is known; asks for the next now and then, and does not wait for it."""
        with contextlib.suppress(RayError):  # `poll` says it
            if self._beat is None and time.monotonic() - self._asked_at > ASK_INTERVAL_S:
                self._asked_at = time.monotonic()
                self._beat = self._actor.beats.remote()
            elif self._beat is not None and ray.wait([self._beat], timeout=0)[0]:
                self._beats, self._beat = ray.get(self._beat), None
        return self._beats

    def ask_to_leave(self) -> None:
        self._actor.leave.remote()

    def kill(self) -> None:
        ray.kill(self._actor)

    def close(self, grace: float) -> None:
        with contextlib.suppress(RayError, WorkerLost):
            self.ask_to_leave()
            if grace:
                ray.get(self._actor.answer.remote(Call('close'), None), timeout=grace)
        self.kill()


def resources_asked_for(settings: AsyncConfig) -> Dict[str, float]:
    """What all actors of a run need together, by the names that Ray has for it."""
    demand: Dict[str, float] = {}
    for kind, count in (('collector', settings.num_collectors), ('evaluator', 1)):
        if settings.engine_of(kind) != 'ray':
            continue
        each = {
            'CPU': getattr(settings, f'{kind}_num_cpus'),
            'GPU': getattr(settings, f'{kind}_num_gpus'),
            **(getattr(settings, f'{kind}_resources') or {}),
        }
        for name, amount in each.items():
            demand[name] = demand.get(name, 0.0) + count * amount
    return demand


def _join(settings: AsyncConfig, demand: Dict[str, float]) -> None:
    quietly: Dict[str, Any] = {'log_to_driver': False, 'logging_level': logging.WARNING}
    if settings.ray_address is None:
        own = {name: amount for name, amount in demand.items() if name not in ('CPU', 'GPU')}
        ray.init(
            address='local', num_cpus=max(available_cores(), int(demand['CPU'] + 0.999)), resources=own,
            include_dashboard=False, **quietly,
        )
        return
    try:
        ray.init(address=settings.ray_address, **quietly)
    except (ConnectionError, RayError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f'ray_address must be that of a running Ray cluster, got {settings.ray_address!r}: {error}'
        ) from error


def _compare(demand: Dict[str, float], offer: Dict[str, float]) -> None:
    for name, amount in demand.items():
        if amount > offer.get(name, 0.0):
            # A cluster may grow: only the time tells.
            logger.warning(
                'the actors of this run need %g %s, and Ray has %g: some wait until it has more', amount, name,
                offer.get(name, 0.0),
            )
