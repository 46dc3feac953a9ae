"""An array that grows at its end and shrinks at its front, as a replay buffer does."""
from __future__ import annotations

from typing import Any

import numpy as np

SMALLEST_ROOM = 64


class GrowingArray:
    """Appending and dropping cost what is appended or dropped; now and then all is moved to a larger room."""

    def __init__(self, dtype: Any) -> None:
        self._room: np.ndarray = np.empty(SMALLEST_ROOM, dtype)
        self._begin = self._end = 0

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def values(self) -> np.ndarray:
        """A view of what it holds now. It may be written to."""
        return self._room[self._begin:self._end]

    def append(self, values: Any) -> None:
        end = self._end + len(values)
        if end > len(self._room):
            self._move(max(SMALLEST_ROOM, 3 * (len(self) + len(values)) // 2))
            end = self._end + len(values)
        self._room[self._end:end] = values
        self._end = end

    def drop(self, count: int) -> None:
        """Forget the first `count` values."""
        self._begin = min(self._begin + count, self._end)

    def assign(self, values: Any) -> None:
        """Hold `values` instead. It costs nothing if they are a view of the last ones held: then the others go."""
        if self._is_tail(values):
            self._begin = self._end - len(values)
            return
        self._room = np.array(values, self._room.dtype)
        self._begin, self._end = 0, len(self._room)

    def _is_tail(self, values: Any) -> bool:
        if not isinstance(values, np.ndarray) or values.base is not self._room or values.strides != self._room.strides:
            return False
        past_end = _address(values) + values.nbytes
        return len(values) <= len(self) and past_end == _address(self._room) + self._end * self._room.itemsize

    def _move(self, size: int) -> None:
        held = self.values
        self._room = np.empty(size, held.dtype)
        self._begin, self._end = 0, len(held)
        self._room[:len(held)] = held


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__['data'][0]
    return address
