"""How old the samples are that the learner draws from its buffer, at the time it trains on them."""
from __future__ import annotations

import time
from collections import Counter
from typing import Any, Callable, List, Optional

from ...core.protocols import SampleAges
from ...core.segments import Stamp

STAMP = 'lzero_async_stamp'
"""The attribute of a GameSegment that tells which weights played it."""


def stamp_segment(segment: Any, stamp: Stamp) -> None:
    setattr(segment, STAMP, stamp)


class ReplayAges:
    """Listens to what one buffer samples; draws nothing itself, so the samples are those drawn without it."""

    def __init__(self, buffer: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._finished = 0
        self._forget()
        for name in ('_sample_orig_data', '_sample_orig_data_episode'):
            if hasattr(buffer, name):
                setattr(buffer, name, self._heard(getattr(buffer, name)))

    def begin_round(self, finished: int) -> None:
        """From now on rounds are counted up to `finished`."""
        self._finished = finished
        self._forget()

    def of_round(self) -> Optional[SampleAges]:
        """Of all samples since the round began whose weights are known; None if there were none."""
        if not self._count:
            return None
        return SampleAges(
            self._count, self._staleness_sum / self._count, self._staleness_max, self._age_sum / self._count,
            self._age_max,
        )

    def _forget(self) -> None:
        self._count = self._staleness_sum = self._staleness_max = 0
        self._age_sum = self._age_max = 0.0

    def _heard(self, sample: Callable[..., Any]) -> Callable[..., Any]:
        def sample_and_hear(*args: Any, **kwargs: Any) -> Any:
            drawn = sample(*args, **kwargs)
            stamps: List[Optional[Stamp]] = [getattr(segment, STAMP, None) for segment in drawn[0]]
            now, counts = self._clock(), Counter(map(id, stamps))  # segments that came together share one
            for number, stamp in {id(stamp): stamp for stamp in stamps}.items():
                if stamp is not None:
                    self._add(stamp.staleness(self._finished), stamp.age(now), counts[number])
            return drawn

        return sample_and_hear

    def _add(self, staleness: int, age: float, count: int) -> None:
        self._count += count
        self._staleness_sum += count * staleness
        self._staleness_max = max(self._staleness_max, staleness)
        self._age_sum += count * age
        self._age_max = max(self._age_max, age)
