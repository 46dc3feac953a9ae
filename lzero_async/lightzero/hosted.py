"""Roles as a worker serves them: made from a config in another process, with nothing of the learner's at hand."""
from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass
from typing import Any, FrozenSet, Optional, Type

import torch
from ding.utils import set_pkg_seed

from ..core.protocols import KeepGoing
from ..core.segments import Collected
from ..core.weights import WeightSnapshot
from ..engines.remote import Curves, Told
from .collect import LightZeroCollector
from .environments import collector_envs, env_seed, evaluator_envs
from .families import Family, family_of
from .host_log import LINE_FORMAT
from .policies import RolePolicy, on_device
from .random_streams import role_seed


@dataclass(frozen=True)
class HostedRole:
    """`engines.worker.MakeRole` for one of LightZero's roles: all it takes to make it anywhere."""

    cfg: Any
    """Compiled."""
    name: str
    """`collector-N` or `evaluator`."""
    seed: int
    """The run's."""
    restart: int
    """How many workers this role had before. Each plays other episodes."""
    device: str
    accelerate: bool
    threads: int
    cores: Optional[FrozenSet[int]]
    """To run on; None for all."""
    model: Optional[torch.nn.Module]
    """The user's own, if there is one."""
    collector_class: Optional[Type[LightZeroCollector]] = None
    random_state: Any = None
    """Of the collector whose work it goes on with, if any."""
    own_folder: bool = False
    """Whether it works where the run's folder is not at hand. What the host writes there is then thrown away."""

    def __call__(self) -> Any:
        logging.basicConfig(format=LINE_FORMAT, level=logging.INFO)
        torch.set_num_threads(self.threads)
        if self.cores is not None and hasattr(os, 'sched_setaffinity'):
            os.sched_setaffinity(0, self.cores)
        folder = tempfile.mkdtemp(prefix='lzero-async-') if self.own_folder else None
        if folder is not None:
            os.chdir(folder)
            self.cfg.exp_name = self.name  # the run's may lead out of that folder
        set_pkg_seed(role_seed(self.seed, self._stream), use_cuda=self.device != 'cpu')
        with on_device(self.device):
            return HostedCollector(self, folder) if self.is_collector else HostedEvaluator(self, folder)

    @property
    def is_collector(self) -> bool:
        return self.name.startswith('collector')

    @property
    def _stream(self) -> str:
        return f'{self.name}-restart-{self.restart}' if self.restart else self.name

    @property
    def family(self) -> Family:
        return family_of(self.cfg.policy.type)

    def env_seed(self) -> int:
        return env_seed(self.seed, f'{self._stream}-env')

    def seat(self, field: str) -> RolePolicy:
        return RolePolicy(self.cfg.policy, self.model, field, self.device, self.accelerate)


class RecordedCurves:
    """Stands in for a SummaryWriter: keeps what is drawn until it is taken along with a result."""

    def __init__(self) -> None:
        self._points: Curves = []

    def add_scalar(self, curve: str, value: Any, step: int) -> None:
        self._points.append((curve, float(value), int(step)))

    def take(self) -> Curves:
        points, self._points = self._points, []
        return points

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class HostedCollector:
    def __init__(self, spec: HostedRole, folder: Optional[str]) -> None:
        self._folder = folder
        self._curves = RecordedCurves()
        self._collector = (spec.collector_class or spec.family.role_classes().collector)(
            spec.seat('collect'), collector_envs(spec.cfg, spec.env_seed()), self._curves, spec.cfg.exp_name,
            name=host_name(spec.name),
        )
        if spec.random_state is not None:
            self._collector.restore_random(spec.random_state)

    def load_weights(self, weights: Any, policy_version: int) -> None:
        self._collector.load_weights(weights, policy_version)

    def collect(self, snapshot: WeightSnapshot, keep_going: KeepGoing) -> Told:
        return self._told(self._collector.collect(snapshot, keep_going))

    def collect_random(self, policy_version: int, keep_going: KeepGoing) -> Told:
        return self._told(self._collector.collect_random(policy_version, keep_going))

    def close(self) -> None:
        self._collector.close()
        _throw_away(self._folder)

    def _told(self, collected: Collected) -> Told:
        for piece in collected.pieces:
            for segment in piece.segments[0]:
                # The environment's own: nobody asks a segment for it, and that of Atari's gym cannot be unpickled.
                segment.action_space = None
        return Told(collected, self._curves.take())


class HostedEvaluator:
    def __init__(self, spec: HostedRole, folder: Optional[str]) -> None:
        self._folder = folder
        self._curves = RecordedCurves()
        self._evaluator = spec.family.role_classes().evaluator(
            spec.cfg, spec.seat('eval'), evaluator_envs(spec.cfg, spec.env_seed()), self._curves,
            save_live=lambda name: None,
        )

    def load_weights(self, weights: Any, policy_version: int) -> None:
        self._evaluator.load_weights(weights, policy_version)

    def evaluate(self, snapshot: WeightSnapshot, keep_going: KeepGoing) -> Told:
        evaluation = self._evaluator.evaluate(snapshot, keep_going)
        return Told(evaluation, self._curves.take())

    def close(self) -> None:
        self._evaluator.close()
        _throw_away(self._folder)


def host_name(role: str) -> str:
    """The name of a collector in the host's curves and log files: the first one has LightZero's own."""
    number = role.rsplit('-', 1)[1]
    return 'collector' if number == '0' else f'collector{number}'


def _throw_away(folder: Optional[str]) -> None:
    if folder is not None:
        with contextlib.suppress(OSError):
            os.chdir(tempfile.gettempdir())
        shutil.rmtree(folder, ignore_errors=True)

