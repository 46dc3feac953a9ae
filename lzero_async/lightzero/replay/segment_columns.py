"""GameSegments as columns of arrays, to be kept on disk without pickle, and back."""
from __future__ import annotations

import functools
import logging
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from ...checkpoints.errors import StateDamaged
from .replay_ages import STAMP

logger = logging.getLogger(__name__)

NOT_KEPT = ('action_space', STAMP)
"""The environment's own, which no segment in a buffer is asked for, and ours."""
REWRITTEN = ('child_visit_segment', 'root_value_segment', 'improved_policy_probs')
"""What reanalyzing changes in place."""

Attributes = Dict[str, Any]


def attributes_of(segment: Any, plain: Any) -> Attributes:
    """All of a segment that differs from a `plain` one, as it is now: what may be changed in place is copied."""
    found = {}
    for name, value in vars(segment).items():
        if name in NOT_KEPT or _same(value, getattr(plain, name, _NOTHING)):
            continue
        found[name] = value.copy() if name in REWRITTEN and isinstance(value, np.ndarray) else value
    return found


def to_columns(segments: Sequence[Attributes]) -> Any:
    """A tree of arrays and plain values: arrays of one kind in one piece, with the length of each."""
    kinds: Dict[Tuple[Any, ...], List[Tuple[int, np.ndarray]]] = {}
    others: Dict[str, List[Tuple[int, Any]]] = {}
    for row, attributes in enumerate(segments):
        for name, value in attributes.items():
            if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in 'biuf':
                kinds.setdefault((name, value.dtype.str, value.shape[1:]), []).append((row, value))
            elif isinstance(value, np.ndarray):
                others.setdefault(name, []).append((row, _Strange.plain(value)))
            elif _is_plain(value):
                others.setdefault(name, []).append((row, value))
            else:
                _warn_of(name, type(value).__name__)
    columns = [
        {
            'name': kind[0],
            'rows': np.array([row for row, _ in members], np.int64),
            'lengths': np.array([len(value) for _, value in members], np.int64),
            'values': np.concatenate([value for _, value in members]),
        }
        for kind, members in kinds.items()
    ]
    return {'segments': len(segments), 'columns': columns, 'others': others}


def from_columns(tree: Any, make_plain: Callable[[], Any]) -> List[Any]:
    """The segments. `make_plain` makes one without content. Raises StateDamaged if columns do not fit together."""
    try:
        segments = [make_plain() for _ in range(int(tree['segments']))]
        for column in tree['columns']:
            ends = np.cumsum(column['lengths'])
            if len(ends) != len(column['rows']) or ends[-1] != len(column['values']):
                raise ValueError(f'{column["name"]} does not have the length of its parts')
            for row, begin, end in zip(column['rows'], [0, *ends[:-1]], ends):
                setattr(segments[row], column['name'], column['values'][begin:end].copy())
        for name, members in tree['others'].items():
            for row, value in members:
                setattr(segments[row], name, _Strange.array(value) if isinstance(value, dict) else value)
        return segments
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise StateDamaged(f'segments that do not fit together: {type(error).__name__}: {error}') from error


class _Strange:
    """Arrays that are not plain blocks of numbers: lists of unequal lengths, strings, single numbers."""

    @staticmethod
    def plain(array: np.ndarray) -> Dict[str, Any]:
        return {'dtype': array.dtype.str, 'shape': list(array.shape), 'items': _listed(array.ravel().tolist())}

    @staticmethod
    def array(plain: Dict[str, Any]) -> np.ndarray:
        items = plain['items']
        array: np.ndarray = np.empty(len(items), dtype=np.dtype(plain['dtype']))
        for index, item in enumerate(items):
            array[index] = item
        return array.reshape(plain['shape'])


def _listed(items: List[Any]) -> List[Any]:
    return [item.tolist() if isinstance(item, np.ndarray) else item for item in items]


@functools.lru_cache(maxsize=None)
def _warn_of(name: str, kind: str) -> None:
    logger.warning('%s of segments is not saved: it is %s, and only numbers, strings, arrays and lists are', name, kind)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str, np.generic))


_NOTHING = object()


def _same(value: Any, plain: Any) -> bool:
    if isinstance(value, np.ndarray) or isinstance(plain, np.ndarray):
        return False
    return bool(type(value) is type(plain) and value == plain)
