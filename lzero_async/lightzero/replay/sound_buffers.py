"""LightZero's buffers, without what goes wrong in them once they are full."""
from __future__ import annotations

import bisect
import time
from typing import Any, Type


class SoundReanalyze:
    """Reanalyzes the segments that it draws.

    LightZero draws places in the buffer and takes them for numbers of segments, which are larger by `base_idx`, the
    segments thrown away so far. So a full buffer reanalyzes others than it drew, and soon raises IndexError.
    """

    base_idx: int

    def _sample_orig_reanalyze_batch(self, batch_size: int) -> Any:
        thrown_away, self.base_idx = self.base_idx, 0
        try:
            return super()._sample_orig_reanalyze_batch(batch_size)  # type: ignore[misc]
        finally:
            self.base_idx = thrown_away


class SoundRemoval:
    """Throws away the samples of old segments, and no others.

    LightZero counts padded steps, too, which were never samples. So it also forgets samples of segments that stay, and
    keeps ever more segments whose samples it has forgotten, beyond `replay_buffer_size`.
    """

    base_idx: int
    game_segment_buffer: Any
    game_pos_priorities: Any
    game_segment_game_pos_look_up: Any

    def _remove(self, excess_game_segment_index: int) -> None:
        kept_from = self.base_idx + excess_game_segment_index
        samples = bisect.bisect_left(self.game_segment_game_pos_look_up, (kept_from, 0))
        del self.game_segment_buffer[:excess_game_segment_index]
        del self.game_segment_game_pos_look_up[:samples]
        self.game_pos_priorities = self.game_pos_priorities[samples:]
        self.base_idx = kept_from
        self.clear_time = time.time()  # the host compares it with the time at which a batch was drawn


def sound(buffer_class: Type[Any], also_removal: bool) -> Type[Any]:
    """A buffer class of LightZero's, mended. Without `also_removal` it samples as the original does."""
    mended = (SoundReanalyze, SoundRemoval) if also_removal else (SoundReanalyze,)
    return type(f'Sound{buffer_class.__name__}', (*mended, buffer_class), {})
