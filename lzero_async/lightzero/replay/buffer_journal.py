"""BufferJournal: what happened to a GameBuffer since it was last written down, so that only that is to be written.

Segments come at one end of the buffer and go at the other, numbered from the first on (`base_idx` is the number of the
oldest). A page of the journal holds the segments that came, those that reanalyzing has changed, and the priorities that
were changed. Replaying all pages from the one with the oldest segment on gives the buffer back; a page can be thrown
away once its newest segment is gone, since nothing in it is about newer ones.
"""
from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Sequence, Set, Tuple

import numpy as np

from ...checkpoints.errors import StateDamaged
from ...core.segments import Stamp
from .replay_ages import STAMP, stamp_segment
from .segment_columns import Attributes, attributes_of, from_columns, to_columns

DRAWING_TO_LEARN = ('_sample_orig_data', '_sample_orig_data_episode')
DRAWING_TO_REANALYZE = ('_sample_orig_reanalyze_batch', '_sample_orig_reanalyze_data')


@dataclass(frozen=True)
class Page:
    """What is to be written: references to segments and small copies. The buffer may go on changing."""

    first: int
    """The number of its first new segment."""
    end: int
    """One more than the number of the newest segment at the time."""
    numbers: Tuple[int, ...]
    segments: Tuple[Attributes, ...]
    stamps: Tuple[Optional[Stamp], ...]
    priorities: Tuple[np.ndarray, ...]
    """Of the positions of each new segment, as far as the buffer still knows them."""
    changed_positions: np.ndarray
    changed_priorities: np.ndarray
    taken_at: float

    def tree(self) -> Any:
        """All of it as arrays and plain values."""
        return {
            'first': self.first,
            'end': self.end,
            'numbers': list(self.numbers),
            'content': to_columns(self.segments),
            'stamps': [
                None if stamp is None else [stamp.policy_version, stamp.rounds_at_pull, stamp.age(self.taken_at)]
                for stamp in self.stamps
            ],
            'priority_lengths': [len(priorities) for priorities in self.priorities],
            'priorities': np.concatenate([np.empty(0), *self.priorities]),
            'changed_positions': self.changed_positions,
            'changed_priorities': self.changed_priorities,
        }


class BufferJournal:
    """Called from the learner's thread only. Listens to one buffer; draws nothing itself.

    One page at a time: `page`, and then `written` or `not_written`.
    """

    def __init__(
        self, buffer: Any, make_plain: Callable[[], Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`make_plain` makes a GameSegment without content."""
        self._buffer = buffer
        self._make_plain = make_plain
        self._clock = clock
        self._length: int = buffer._cfg.game_segment_length
        # By their ids, while they are in the buffer: one attribute more would make a segment half as large again.
        self._numbers: Dict[int, int] = {}
        self._next: int = buffer.base_idx
        self._removed_positions = 0
        self._reset_up_to = 0
        self._changed: Set[int] = set()
        self._changed_positions: Set[int] = set()
        self._on_page: Tuple[Set[int], Set[int]] = (set(), set())
        buffer.push_game_segments = self._numbering(buffer.push_game_segments)
        buffer._remove = self._counting_removed(buffer._remove)
        for name in DRAWING_TO_LEARN:
            if hasattr(buffer, name):
                changes = buffer._cfg.reanalyze_ratio > 0
                setattr(buffer, name, self._hearing(getattr(buffer, name), changes, not buffer._cfg.use_priority))
        for name in DRAWING_TO_REANALYZE:
            if hasattr(buffer, name):
                setattr(buffer, name, self._hearing(getattr(buffer, name), True, False))
        buffer.update_priority = self._noting_priorities(buffer.update_priority)

    # ---------------------------------------------------------------- writing

    def page(self) -> Page:
        """All since the last page that was written."""
        buffer, plain = self._buffer, self._make_plain()
        base, end = buffer.base_idx, buffer.base_idx + len(buffer.game_segment_buffer)
        first = max(self._next, base)
        self._on_page, self._changed, self._changed_positions = (self._changed, self._changed_positions), set(), set()
        numbers = [*sorted(number for number in self._on_page[0] if base <= number < first), *range(first, end)]
        segments = [buffer.game_segment_buffer[number - base] for number in numbers]
        removed = self._removed_positions
        positions = np.array(sorted(position for position in self._on_page[1] if position >= removed), np.int64)
        return Page(
            first=first,
            end=end,
            numbers=tuple(numbers),
            segments=tuple(attributes_of(segment, plain) for segment in segments),
            stamps=tuple(getattr(segment, STAMP, None) for segment in segments),
            priorities=self._last_priorities(segments[len(numbers) - (end - first):]),
            changed_positions=positions,
            changed_priorities=np.asarray(buffer.game_pos_priorities, np.float64)[positions - removed],
            taken_at=self._clock(),
        )

    def written(self, page: Page) -> None:
        """What is on it need not be written again."""
        self._next = page.end
        self._on_page = (set(), set())

    def not_written(self) -> None:
        """What was on the last page is to be on the next one, too."""
        self._changed |= self._on_page[0]
        self._changed_positions |= self._on_page[1]
        self._on_page = (set(), set())

    def state(self) -> Dict[str, Any]:
        """What the pages do not tell."""
        buffer = self._buffer
        return {
            'base_idx': int(buffer.base_idx),
            'segments': len(buffer.game_segment_buffer),
            'positions': len(buffer.game_segment_game_pos_look_up),
            'removed_positions': self._removed_positions,
            'reset_up_to': self._reset_up_to,
            'num_of_collected_episodes': int(buffer.num_of_collected_episodes),
            'clear_time': float(buffer.clear_time),
        }

    # ---------------------------------------------------------------- reading

    def restore(self, state: Dict[str, Any], pages: Sequence[Any]) -> None:
        """Fill the buffer, which is empty, from the trees of its pages, the oldest first."""
        buffer, base = self._buffer, int(state['base_idx'])
        numbers = range(base, base + int(state['segments']))
        segments: Dict[int, Any] = {}
        priorities: Dict[int, np.ndarray] = {}
        for page in pages:
            self._read_page(page, segments, priorities)
        missing = [number for number in numbers if number not in segments]
        if missing:
            raise StateDamaged(f'segments {missing[0]} to {missing[-1]} of the replay buffer are on none of its pages')
        positions, removed = int(state['positions']), int(state['removed_positions'])
        look_up = [
            (number, position) for number in numbers for position in range(self._positions_of(segments[number]))
        ]
        known = np.concatenate([np.empty(0), *(priorities[number] for number in numbers)])
        if min(len(look_up), len(known)) < positions:
            raise StateDamaged(f'the pages of the replay buffer know less than its {positions} positions')
        buffer.game_segment_buffer = [segments[number] for number in numbers]
        buffer.game_segment_game_pos_look_up = look_up[len(look_up) - positions:]
        buffer.game_pos_priorities = known[len(known) - positions:]
        for page in pages:
            alive = page['changed_positions'] >= removed
            buffer.game_pos_priorities[page['changed_positions'][alive] - removed] = page['changed_priorities'][alive]
        buffer.game_pos_priorities[:max(0, int(state['reset_up_to']) - removed)] = 1.0
        buffer.base_idx = base
        buffer.num_of_collected_episodes = int(state['num_of_collected_episodes'])
        buffer.clear_time = float(state['clear_time'])
        self._removed_positions, self._reset_up_to = removed, int(state['reset_up_to'])
        self._next = base + len(numbers)
        self._number(0)

    def _read_page(self, page: Any, segments: Dict[int, Any], priorities: Dict[int, np.ndarray]) -> None:
        now = self._clock()
        ends = np.cumsum(page['priority_lengths'])
        for number, end, length in zip(range(page['first'], page['end']), ends, page['priority_lengths']):
            priorities[number] = page['priorities'][end - length:end]
        for number, segment, stamp in zip(
            page['numbers'], from_columns(page['content'], self._make_plain), page['stamps']
        ):
            if stamp is not None:
                version, rounds, age = stamp
                stamp_segment(segment, Stamp(version, rounds, now - age))
            segments[number] = segment

    # ---------------------------------------------------------------- inside

    def _positions_of(self, segment: Any) -> int:
        return min(len(segment.action_segment), self._length)

    def _last_priorities(self, segments: Sequence[Any]) -> Tuple[np.ndarray, ...]:
        """Of the newest segments, whose positions are the last ones."""
        priorities = np.asarray(self._buffer.game_pos_priorities, np.float64)
        end, found = len(priorities), []
        for segment in reversed(segments):
            begin = max(0, end - self._positions_of(segment))
            found.append(priorities[begin:end].copy())
            end = begin
        return tuple(reversed(found))

    def _numbering(self, push: Callable[[Any], None]) -> Callable[[Any], None]:
        def push_and_number(data_and_meta: Any) -> None:
            buffer = self._buffer
            begin = len(buffer.game_segment_buffer)
            push(data_and_meta)
            self._number(begin)

        return push_and_number

    def _number(self, begin: int) -> None:
        """Remember the numbers of all segments from place `begin` on."""
        segments = self._buffer.game_segment_buffer
        for place in range(begin, len(segments)):
            self._numbers[id(segments[place])] = self._buffer.base_idx + place

    def _counting_removed(self, remove: Callable[[int], None]) -> Callable[[int], None]:
        def remove_and_count(excess: int) -> None:
            before = len(self._buffer.game_segment_game_pos_look_up)
            for number, segment in enumerate(self._buffer.game_segment_buffer[:excess], self._buffer.base_idx):
                if self._numbers.get(id(segment)) == number:
                    del self._numbers[id(segment)]
            remove(excess)
            self._removed_positions += before - len(self._buffer.game_segment_game_pos_look_up)

        return remove_and_count

    def _hearing(self, draw: Callable[..., Any], changes: bool, resets: bool) -> Callable[..., Any]:
        def draw_and_hear(*args: Any, **kwargs: Any) -> Any:
            drawn = draw(*args, **kwargs)
            if resets:  # without use_priority the host sets all priorities to one when it draws
                self._reset_up_to = self._removed_positions + len(self._buffer.game_segment_game_pos_look_up)
            if changes:
                self._changed.update(self._numbers[id(segment)] for segment in drawn[0])
            return drawn

        return draw_and_hear

    def _noting_priorities(self, update: Callable[..., Any]) -> Callable[..., Any]:
        def update_and_note(train_data: Any, batch_priorities: Any) -> Any:
            before = np.array(self._buffer.game_pos_priorities)
            updated = update(train_data, batch_priorities)
            different = np.flatnonzero(before != self._buffer.game_pos_priorities)
            self._changed_positions.update((different + self._removed_positions).tolist())
            return updated

        return update_and_note
