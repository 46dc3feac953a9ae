"""Which segment a sample of the buffer belongs to, and where in it: kept as runs instead of one tuple per sample."""
from __future__ import annotations

from typing import Any, Iterable, Iterator, List, Sequence, Tuple, Union

import numpy as np

from .growing_array import GrowingArray

Pair = Tuple[int, int]


class Positions(Sequence[Pair]):
    """Stands in for the list `game_segment_game_pos_look_up` of pairs (number of the segment, position in it).

    All samples of a segment follow each other, so a run needs three numbers, however many samples it has. Places are
    counted from the first sample that there ever was, so that forgetting old ones changes no run.
    """

    def __init__(self, pairs: Iterable[Pair] = ()) -> None:
        self._numbers = GrowingArray(np.int64)
        self._firsts = GrowingArray(np.int64)
        self._begins = GrowingArray(np.int64)
        self._forgotten = 0
        self._end = 0
        self += pairs

    def extend(self, number: int, count: int, first: int = 0) -> None:
        """Samples of segment `number`: its positions from `first` on."""
        if count > 0:
            self._numbers.append([number])
            self._firsts.append([first])
            self._begins.append([self._end])
            self._end += count

    def find(self, places: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Of the samples at `places`: the numbers of their segments, and their positions."""
        places = places + self._forgotten
        runs = self._begins.values.searchsorted(places, side='right') - 1
        return self._numbers.values[runs], self._firsts.values[runs] + (places - self._begins.values[runs])

    def __len__(self) -> int:
        return self._end - self._forgotten

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return self._pairs(np.arange(*place.indices(len(self))))
        index = range(len(self))[place]  # counts from the end, and raises IndexError, as a list does
        return self._pairs(np.array([index]))[0]

    def __delitem__(self, places: slice) -> None:
        """The oldest samples can be forgotten, no others."""
        begin, end, step = places.indices(len(self))
        if (begin, step) != (0, 1):
            raise ValueError(f'only the oldest samples can be forgotten, got {places}')
        self._forgotten += end
        self._forget_runs()

    def __iadd__(self, pairs: Iterable[Pair]) -> 'Positions':
        table = np.array(list(pairs), np.int64).reshape(-1, 2)
        if len(table):
            begins = np.flatnonzero(np.any(np.diff(table, axis=0) != (0, 1), axis=1)) + 1
            for run in np.split(table, begins):
                self.extend(int(run[0, 0]), len(run), int(run[0, 1]))
        return self

    def __iter__(self) -> Iterator[Pair]:
        return iter(self[:])

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, (Positions, list)) and len(self) == len(other) and self[:] == list(other)

    def __repr__(self) -> str:
        return f'Positions({len(self)} samples of {len(self._numbers)} segments)'

    def _pairs(self, places: np.ndarray) -> List[Pair]:
        numbers, positions = self.find(places)
        return list(zip(numbers.tolist(), positions.tolist()))

    def _forget_runs(self) -> None:
        """All runs without samples: those that end where or before the first sample that is left begins."""
        over = len(self._begins) if not len(self) else int(
            self._begins.values.searchsorted(self._forgotten, side='right')
        ) - 1
        for lane in (self._numbers, self._firsts, self._begins):
            lane.drop(over)


def as_positions(pairs: Union[Positions, Iterable[Pair]]) -> Positions:
    return pairs if isinstance(pairs, Positions) else Positions(pairs)
