"""Which engine a role works in: what may be asked for, and what `auto` picks."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable

from .errors import ConfigError

if TYPE_CHECKING:
    from .config import AsyncConfig

THREAD, PROCESS, RAY, AUTO = 'thread', 'process', 'ray', 'auto'
ENGINES = (THREAD, PROCESS, RAY, AUTO)
LEAST_CONTENTION = 1.3


@dataclass(frozen=True)
class EngineChoice:
    engine: str
    reason: str


def pick_engine(
    cores: int, serial: bool, joins_ray: bool, is_light: bool, measure_contention: Callable[[], float]
) -> EngineChoice:
    """What `auto` stands for here. The contention is measured only if it decides.

    `is_light` says that collecting is all that works beside the learner, and seldom holds the GIL.
    It is how many times longer a small torch call takes beside a thread that makes such calls, too, than alone.
    """
    if serial:
        return EngineChoice(THREAD, 'the run is serial')
    if joins_ray:
        return EngineChoice(RAY, 'ray_address is given')
    if cores < 2:
        return EngineChoice(THREAD, f'{cores} core is available, and a child process would only share it')
    if is_light:
        return EngineChoice(THREAD, 'the accelerated search of one collector seldom holds the GIL')
    contention = measure_contention()
    told = f'{cores} cores are available, and a call beside another thread takes {contention:.2f} times as long'
    if contention < LEAST_CONTENTION:
        return EngineChoice(THREAD, f'{told}, below {LEAST_CONTENTION}: threads hardly hinder each other')
    return EngineChoice(PROCESS, f'{told}, {LEAST_CONTENTION} or more: threads would wait for each other')


def check_engines(settings: 'AsyncConfig') -> None:
    """Refuse what cannot work together."""
    serial = settings.off_policy_degree == 0
    if serial and settings.num_collectors != 1:
        raise ConfigError(
            f'num_collectors must be 1 when off_policy_degree is 0 (serial), got {settings.num_collectors}'
        )
    shared = {'collector': serial, 'evaluator': serial and not settings.enable_async_eval}
    for role, shares in shared.items():
        engine = settings.engine_of(role)
        if shares and engine not in (THREAD, AUTO):
            name = 'engine' if getattr(settings, f'{role}_engine') is None else f'{role}_engine'
            and_eval = ' and enable_async_eval is False' if role == 'evaluator' else ''
            raise ConfigError(
                f"{name} must be 'thread' or 'auto' when off_policy_degree is 0 (serial){and_eval}, since the {role} "
                f"shares the learner's policy, got {engine!r}"
            )
    if settings.ray_address is not None and not {RAY, AUTO} & {settings.engine_of(role) for role in shared}:
        raise ConfigError(f"ray_address must be None unless an engine is 'ray' or 'auto', got {settings.ray_address!r}")
