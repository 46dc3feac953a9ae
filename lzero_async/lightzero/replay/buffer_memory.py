"""How much memory the buffer holds, counted as segments come and go instead of by walking it."""
from __future__ import annotations

import sys
from collections import deque
from typing import Any, Deque

import numpy as np
import psutil
from pympler.asizeof import asizeof

MEGABYTE = 1024 * 1024
ARRAY_HEADER = sys.getsizeof(np.empty(0))


class BufferMemory:
    """Writes LightZero's own `Buffer/*` curves at a cost that depends on what changed, not on what is held."""

    def __init__(self, buffer: Any, tb_logger: Any) -> None:
        self._buffer = buffer
        self._tb_logger = tb_logger
        self._process = psutil.Process()
        self._sizes: Deque[int] = deque()
        self._removed = buffer.base_idx
        self._bytes = 0

    def update(self) -> int:
        """Account for what was pushed and removed since the last call; returns the bytes held now."""
        removed = self._buffer.base_idx - self._removed
        self._removed = self._buffer.base_idx
        for _ in range(min(removed, len(self._sizes))):  # others came and went between two calls
            self._bytes -= self._sizes.popleft()
        for segment in self._buffer.game_segment_buffer[len(self._sizes):]:
            self._sizes.append(segment_bytes(segment))
            self._bytes += self._sizes[-1]
        return self._bytes

    def log(self, train_iter: int) -> None:
        held = self.update()
        curves = {
            'Buffer/num_of_all_collected_episodes': self._buffer.num_of_collected_episodes,
            'Buffer/num_of_game_segments': len(self._buffer.game_segment_buffer),
            'Buffer/num_of_transitions': len(self._buffer.game_segment_game_pos_look_up),
            'Buffer/memory_usage/game_segment_buffer': held / MEGABYTE,
            'Buffer/memory_usage/process': self._process.memory_info().rss / MEGABYTE,
        }
        for name, value in curves.items():
            self._tb_logger.add_scalar(name, value, train_iter)


def array_bytes(segment: Any) -> int:
    """Bytes of the arrays of one GameSegment: nearly all of it, and quickly told."""
    return sum(value.nbytes for value in vars(segment).values() if isinstance(value, np.ndarray))


def segment_bytes(segment: Any) -> int:
    """Bytes of one GameSegment: its arrays, and the little else that is its own (the action space is shared)."""
    total = sys.getsizeof(segment) + sys.getsizeof(vars(segment))
    for name, value in vars(segment).items():
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            total += value.nbytes + ARRAY_HEADER
        elif name != 'action_space':
            total += int(asizeof(value))
    return total
