"""SampleAccount: what became of every sample. Generated = processed + dropped + still on the way."""
from __future__ import annotations

import logging
import threading
import time
from typing import Any, Callable, Dict, Optional

logger = logging.getLogger(__name__)


KEPT = (
    'generated', 'processed', 'dropped_stale', 'discarded', 'stale', 'age_sum', 'max_age', 'staleness_sum',
    'max_staleness', 'max_late_staleness', 'errors', 'timeouts',
)
"""What a saved state holds."""


class SampleAccount:
    """Any thread may call any member. A sample is one transition. `env_step` are environment steps made before."""

    def __init__(
        self, env_step: int = 0, begun: Optional[float] = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._begun = clock() if begun is None else begun
        # Guards all that follows.
        self._lock = threading.Lock()
        self._env_step = env_step
        self._to_first_batch: Optional[float] = None
        self._generated = 0
        self._processed = 0
        self._dropped_stale = 0
        self._discarded = 0
        self._stale = 0
        self._age_sum = 0.0
        self._max_age = 0.0
        self._staleness_sum = 0
        self._max_staleness = 0
        self._max_late_staleness = 0
        self._errors = 0
        self._timeouts = 0

    def stepped(self, env_steps: int) -> int:
        """Environment steps were made; returns those of the whole run so far."""
        with self._lock:
            self._env_step += env_steps
            return self._env_step

    def generated(self, samples: int) -> None:
        first: Optional[float] = None
        with self._lock:
            self._generated += samples
            if self._to_first_batch is None:
                first = self._to_first_batch = self._clock() - self._begun
        if first is not None:
            logger.info('the first batch was collected %.1f s after the run was called for', first)

    def generation_failed(self) -> None:
        with self._lock:
            self._errors += 1

    def generation_overdue(self) -> None:
        with self._lock:
            self._timeouts += 1

    def processed(self, samples: int, staleness: int, age: float, is_stale: bool, is_late: bool = False) -> None:
        """Samples were admitted for training; `is_late` if the host handed them over later than it collected them."""
        with self._lock:
            self._processed += samples
            self._stale += samples if is_stale else 0
            self._age_sum += samples * age
            self._staleness_sum += samples * staleness
            if samples:
                self._max_age = max(self._max_age, age)
                if is_late:
                    self._max_late_staleness = max(self._max_late_staleness, staleness)
                else:
                    self._max_staleness = max(self._max_staleness, staleness)

    def dropped(self, samples: int) -> None:
        """Samples were too stale or too old."""
        with self._lock:
            self._dropped_stale += samples

    def discarded(self, samples: int) -> None:
        """Samples were left in the queue when a run was broken off."""
        with self._lock:
            self._discarded += samples

    def state(self) -> Dict[str, Any]:
        with self._lock:
            return {name: getattr(self, f'_{name}') for name in KEPT}

    def restore(self, state: Dict[str, Any]) -> None:
        """Go on from `state`. Samples that were on their way are gone: they count as discarded."""
        with self._lock:
            for name in KEPT:
                setattr(self, f'_{name}', state[name])
            self._discarded = self._generated - self._processed - self._dropped_stale

    def numbers(self) -> Dict[str, Any]:
        with self._lock:
            processed = max(1, self._processed)
            return {
                'total_generated_samples': self._generated,
                'processed_samples': self._processed,
                'dropped_stale_samples': self._dropped_stale,
                'dropped_samples': self._dropped_stale + self._discarded,
                'generation_errors': self._errors,
                'generation_timeouts': self._timeouts,
                'avg_sample_age': self._age_sum / processed,
                'max_sample_age': self._max_age,
                'mean_staleness': self._staleness_sum / processed,
                'max_staleness': self._max_staleness,
                'max_late_staleness': self._max_late_staleness,
                'stale_samples_ratio': self._stale / processed,
                'time_to_first_batch': self._to_first_batch,
            }
