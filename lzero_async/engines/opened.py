"""The engines of a run: which, and how they are opened and closed."""
from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Callable, Dict, Optional, Protocol

from ..core.config import AsyncConfig
from ..core.cores import available_cores
from ..core.engine_choice import AUTO, PROCESS, RAY, THREAD, EngineChoice, pick_engine
from .contention import gil_contention
from .installed import check_ray
from .worker import MakeRole, Worker

logger = logging.getLogger(__name__)

ROLES = ('collector', 'evaluator')


class Engine(Protocol):
    """Starts workers. Any thread may call any member."""

    name: str
    place: Any
    """Where weights lie for its workers: a `torch_weights.WeightPlace`."""
    on_this_machine: bool
    """Whether its workers share this one's folders and cores."""

    def launch(self, name: str, make_role: MakeRole) -> Worker:
        """Start a worker for the role `name`, and return at once."""

    def close(self) -> None: ...


def choose_engines(
    settings: AsyncConfig, tell: Callable[[str], None] = lambda line: None, light_search: bool = False
) -> AsyncConfig:
    """The settings with every `auto` replaced by what it stands for here, which is logged and told, with the reason.

    `light_search` says that a search of this family seldom holds the GIL if it is accelerated.
    """
    if AUTO not in (settings.engine, settings.collector_engine, settings.evaluator_engine):
        return settings
    is_light = (
        light_search and settings.accelerate and settings.num_collectors == 1 and not settings.background_reanalyze
    )
    choice: EngineChoice = pick_engine(
        available_cores(), settings.off_policy_degree == 0, settings.ray_address is not None, is_light, gil_contention
    )
    line = f"engine 'auto' is {choice.engine!r}: {choice.reason}"
    logger.info(line)
    tell(line)
    asked = ('engine', 'collector_engine', 'evaluator_engine')
    chosen: Dict[str, Any] = {name: choice.engine for name in asked if getattr(settings, name) == AUTO}
    return replace(settings, **chosen)


def check_installed(settings: AsyncConfig) -> None:
    if RAY in (settings.engine_of(role) for role in ROLES):
        check_ray("engine 'ray'")


class Engines:
    """Opened when they are first asked for, closed together. Used by one thread."""

    def __init__(self, settings: AsyncConfig, log_folder: str) -> None:
        self._settings = settings
        self._log_folder = log_folder
        self._opened: Dict[str, Engine] = {}

    def of(self, role: str) -> Optional[Engine]:
        """The engine of `collector` or `evaluator`; None if its own thread does the work."""
        name = self._settings.engine_of(role)
        if name == THREAD:
            return None
        if name not in self._opened:
            self._opened[name] = self._open(name)
        return self._opened[name]

    def close(self) -> None:
        for engine in self._opened.values():
            engine.close()
        self._opened.clear()

    def _open(self, name: str) -> Engine:
        if name == PROCESS:
            from .process import ProcessEngine

            return ProcessEngine(self._log_folder)
        assert name == RAY, name
        from .ray_engine import RayEngine

        return RayEngine(self._settings)
