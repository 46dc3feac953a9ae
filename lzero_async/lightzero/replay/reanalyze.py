"""Searching old segments of the replay buffer anew: by LightZero's schedule, and while the learner waits."""
from __future__ import annotations

import logging
import time
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

from .replay_ages import STAMP

logger = logging.getLogger(__name__)

SEARCHED = 'lzero_async_searched'
"""The attribute of a GameSegment that tells the version with which it was reanalyzed last in the background."""


class ScheduledReanalyze:
    """`buffer_reanalyze_freq`, as in LightZero's entry. No batch may be in the making."""

    def __init__(self, policy_cfg: Any, policy: Any, buffer: Any) -> None:
        self._cfg = policy_cfg
        self._policy = policy
        self._buffer = buffer

    def interval(self, budget: int) -> int:
        """Updates between two reanalyzes inside a round; 0 for none. A frequency below 1 counts in rounds instead."""
        frequency = self._cfg.get('buffer_reanalyze_freq', 0)
        return max(1, budget // frequency) if frequency >= 1 else 0

    def between_rounds(self, trained_rounds: int) -> None:
        frequency = self._cfg.get('buffer_reanalyze_freq', 0)
        if 0 < frequency < 1 and trained_rounds > 0 and trained_rounds % int(1 / frequency) == 0:
            self.now()

    def now(self) -> None:
        size = self._cfg.reanalyze_batch_size
        sequences = self._buffer.get_num_of_transitions() // self._cfg.num_unroll_steps
        if sequences > int(size / self._cfg.reanalyze_partition):
            self._buffer.reanalyze_buffer(size, self._policy)
            logger.info('reanalyzed %d sequences of the buffer', size)


class BackgroundReanalyze:
    """Goes through the older part of the buffer (`reanalyze_partition`), once for each version of the weights.

    A slice is one sequence of `num_unroll_steps`: what searching costs grows with the sequences, so that smaller
    slices cost no more, and who waits for the end of one waits less. Segments that were reanalyzed least often come
    first, of those the oldest. One that is begun is finished first, even if the version has changed meanwhile: where
    there is little time between two batches, all of its sequences have their turn.

    Called from the learner's thread, between two rounds; any thread may ask for the `numbers`.
    """

    def __init__(
        self, policy_cfg: Any, policy: Any, buffer: Any, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`buffer` is a `ChoosingBuffer`."""
        self._policy = policy
        self._buffer = buffer
        self._clock = clock
        self._partition: float = policy_cfg.reanalyze_partition
        self._steps: int = policy_cfg.num_unroll_steps
        self._length: int = policy_cfg.game_segment_length
        self._number: Optional[int] = None  # of the segment that is begun
        self._position = 0  # of its next sequence
        self._ordered_for: Optional[Tuple[int, int, int]] = None
        self._to_come: List[int] = []  # numbers, the next one last
        self._segments = 0
        self._seconds = 0.0

    def slice(self, version: int) -> bool:
        """Reanalyze one sequence. False if there is none that these weights have not seen yet."""
        buffer = self._buffer
        if (self._number is None or self._number < buffer.base_idx) and not self._begin_next(version):
            return False
        assert self._number is not None
        place = self._number - buffer.base_idx
        segment = buffer.game_segment_buffer[place]
        begun = self._clock()
        buffer.reanalyze_sequence(place, self._position, self._policy)
        setattr(segment, SEARCHED, version)
        self._position += self._steps
        if self._position >= min(len(segment), self._length):
            self._number = None
            self._segments += 1
        self._seconds += self._clock() - begun
        return True

    def numbers(self) -> Dict[str, Any]:
        return {'background_reanalyzed_segments': self._segments, 'background_reanalyze_time': self._seconds}

    def state(self) -> Dict[str, Any]:
        """The rest of it is in the segments, and goes with the buffer."""
        return {'number': self._number, 'position': self._position, **self.numbers()}

    def restore(self, state: Dict[str, Any]) -> None:
        self._number, self._position = state['number'], state['position']
        self._segments = state['background_reanalyzed_segments']
        self._seconds = state['background_reanalyze_time']

    def _begin_next(self, version: int) -> bool:
        buffer = self._buffer
        holds = (version, buffer.base_idx, len(buffer.game_segment_buffer))
        if self._ordered_for != holds:
            self._ordered_for, self._to_come = holds, self._in_order(version)
        while self._to_come:
            number = self._to_come.pop()
            segment = buffer.game_segment_buffer[number - buffer.base_idx]
            if _searched_with(segment) < version:
                segment.reanalyze_time += 1  # LightZero's own count: it draws by that
                self._number, self._position = number, 0
                return True
        self._number = None
        return False

    def _in_order(self, version: int) -> List[int]:
        buffer = self._buffer
        older = buffer.game_segment_buffer[:int(len(buffer.game_segment_buffer) * self._partition)]
        due = [
            (segment.reanalyze_time, buffer.base_idx + place)
            for place, segment in enumerate(older) if _searched_with(segment) < version
        ]
        return [number for _, number in sorted(due, reverse=True)]


def _searched_with(segment: Any) -> int:
    """The version whose search made the segment's targets; -1 if that is not known."""
    stamp = getattr(segment, STAMP, None)
    version: int = getattr(segment, SEARCHED, -1 if stamp is None else stamp.policy_version)
    return version


class ChoosingBuffer:
    """Reanalyzes the sequence that it is told to, where LightZero's buffers draw some."""

    game_segment_buffer: Any
    _chosen: Optional[Tuple[int, int]] = None

    def reanalyze_sequence(self, place: int, position: int, policy: Any) -> None:
        self._chosen = place, position
        try:
            self.reanalyze_buffer(1, policy)  # type: ignore[attr-defined]
        finally:
            self._chosen = None

    def _sample_orig_reanalyze_batch(self, batch_size: int) -> Any:
        if self._chosen is None:
            return super()._sample_orig_reanalyze_batch(batch_size)  # type: ignore[misc]
        place, position = self._chosen
        return [self.game_segment_buffer[place]], [position], [place], [], [0.0]


def choosing(buffer_class: Type[Any]) -> Type[Any]:
    """A buffer class of LightZero's that is also a `ChoosingBuffer`."""
    return type(buffer_class.__name__, (ChoosingBuffer, buffer_class), {})
