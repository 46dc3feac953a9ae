"""OnPolicyRounds: strictly on-policy rounds. Collect a full batch with one version, stop, update, go on with the next.

For any loop:

    rounds = OnPolicyRounds(sync_batch_size=1024)
    while training:
        rounds.store(sample, rounds.policy_version)     # False: refused, and counted
        if rounds.should_sync_update():                 # full: collection_enabled is off by now
            rounds.sync_update(update)                  # update(samples), next version, collect again
"""
from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, TypeVar

from .checks import integer
from .errors import BoundBroken, LzeroAsyncError
from .statistics import Statistics

T = TypeVar('T')


@dataclass(frozen=True)
class OnPolicyRecord:
    """One finished round, as observers see it."""

    batch_size: int
    """Samples of the round."""
    policy_version: int
    """The version that collected them."""
    collection_time: float
    update_time: float
    samples_collected: int
    """Of all rounds so far."""
    refused_samples: int
    """Of all rounds so far."""


class OnPolicyRounds:
    """Any thread may call any member. `update` runs in the thread that calls `sync_update`."""

    def __init__(
        self, sync_batch_size: int, policy_version: int = 0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._size: int = integer(1)('sync_batch_size', sync_batch_size)
        self._clock = clock
        # Guards all that follows.
        self._lock = threading.Lock()
        self._version: int = integer(0)('policy_version', policy_version)
        self._samples: List[Tuple[Any, int]] = []
        self._count = 0
        self._total = 0
        self._enabled = True
        self._updating = False
        self._refused = 0
        self._rounds = 0
        self._begun = clock()
        self._collection_time = 0.0
        self._last: Optional[OnPolicyRecord] = None

    @property
    def sync_batch_size(self) -> int:
        return self._size

    @property
    def policy_version(self) -> int:
        """The version whose samples are taken."""
        with self._lock:
            return self._version

    @property
    def collection_enabled(self) -> bool:
        """Off from the moment the batch is full until the update is done."""
        with self._lock:
            return self._enabled

    @property
    def samples_collected_this_round(self) -> int:
        with self._lock:
            return self._count

    @property
    def refused_samples(self) -> int:
        with self._lock:
            return self._refused

    @property
    def last_round(self) -> Optional[OnPolicyRecord]:
        with self._lock:
            return self._last

    def store(self, sample: Any, policy_version: Optional[int] = None, count: int = 1) -> bool:
        """Take a sample, or something that holds `count` of them, collected with `policy_version` (None: the current).

        False while collection is off, and for a sample of another version: it is not kept, and counted as refused.
        """
        integer(0)('count', count)
        if policy_version is not None:
            integer(0)('policy_version', policy_version)
        with self._lock:
            version = self._version if policy_version is None else policy_version
            if not self._enabled or version != self._version:
                self._refused += count
                return False
            self._samples.append((sample, version))
            self._count += count
            self._total += count
            if self._count >= self._size:
                self._enabled = False
                self._collection_time = self._clock() - self._begun
            return True

    def should_sync_update(self) -> bool:
        """Whether the batch is full, and waits for its update."""
        with self._lock:
            return not self._enabled and not self._updating

    def sync_update(
        self,
        update: Callable[[List[Any]], T] = lambda samples: None,  # type: ignore[assignment, return-value]
        new_version: Optional[Callable[[], int]] = None,
    ) -> T:
        """Run `update(samples)`, raise the version (by one, or to what `new_version()` says), and collect again.

        If `update` or `new_version` raises, the round stays full and its samples stay: it can be tried again, or left
        with `discard_round`.
        """
        with self._lock:
            if self._updating:
                raise LzeroAsyncError('sync_update must not be called while an update is under way')
            if self._enabled:
                raise LzeroAsyncError(
                    f'sync_update needs a full batch of sync_batch_size {self._size} samples, got {self._count}'
                )
            others = [version for _, version in self._samples if version != self._version]
            if others:
                raise BoundBroken(f'every sample of a round must be of version {self._version}, got {others[0]}')
            self._updating = True
            samples = [sample for sample, _ in self._samples]
            begun = self._clock()
        try:
            result = update(samples)
            version = self._version + 1 if new_version is None else integer(self._version)('new_version', new_version())
        except BaseException:
            with self._lock:
                self._updating = False
            raise
        with self._lock:
            now = self._clock()
            self._last = OnPolicyRecord(
                self._count, self._version, self._collection_time, now - begun, self._total, self._refused
            )
            self._rounds += 1
            self._version = version
            self._samples, self._count = [], 0
            self._begun = now
            self._updating, self._enabled = False, True
        return result

    def discard_round(self) -> None:
        """Give up the samples of a full round, which count as refused, and collect it anew with the same version."""
        with self._lock:
            if self._enabled or self._updating:
                raise LzeroAsyncError('discard_round needs a full round that is not being updated')
            self._refused += self._count
            self._total -= self._count
            self._samples, self._count = [], 0
            self._begun = self._clock()
            self._enabled = True

    def state(self) -> Dict[str, int]:
        with self._lock:
            return {'total': self._total - self._count, 'refused': self._refused, 'rounds': self._rounds}

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on from `state`, before the first sample."""
        with self._lock:
            self._total, self._refused, self._rounds = state['total'], state['refused'], state['rounds']

    def get_statistics(self) -> Statistics:
        with self._lock:
            return Statistics(
                policy_version=self._version,
                collection_enabled=self._enabled,
                samples_collected_this_round=self._count,
                samples_collected=self._total,
                refused_samples=self._refused,
                sync_batch_size=self._size,
                sync_rounds=self._rounds,
            )
