"""The workers that a synchronizer is given: one or several, checked before anything starts."""
from __future__ import annotations

from typing import Any, Callable, List, Sequence, Tuple, Union

from .errors import ConfigError
from .weight_ops import check_source, check_target

Workers = Union[Any, Sequence[Any]]
"""One worker, or several. Actor workers give weights, rollout workers take them."""


def listed(workers: Any) -> List[Any]:
    if workers is None:
        return []
    return list(workers) if isinstance(workers, (list, tuple)) else [workers]


def check_workers(name: str, workers: List[Any], check: Callable[[str, Any], None]) -> None:
    for index, worker in enumerate(workers):
        check(name if len(workers) == 1 else f'{name}[{index}]', worker)


def checked_group(actor_workers: Workers, rollout_workers: Workers) -> Tuple[List[Any], List[Any]]:
    actors, rollouts = listed(actor_workers), listed(rollout_workers)
    for name, workers in (('actor_workers', actors), ('rollout_workers', rollouts)):
        if not workers:
            raise ConfigError(f'{name} must hold at least one worker, got none')
    check_workers('actor_workers', actors, check_source)
    check_workers('rollout_workers', rollouts, check_target)
    return actors, rollouts


def name_of(worker: Any, index: int = 0) -> str:
    return f'{type(worker).__name__.lower()}-{index}'
