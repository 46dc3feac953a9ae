"""Publication: the newest version of the weights, replaced whole, and never by weights that are not finite."""
from __future__ import annotations

import logging
import threading
from typing import List, Optional

from .errors import LzeroAsyncError
from .weight_ops import WeightOps
from .weights import WeightSnapshot

logger = logging.getLogger(__name__)


class Publication:
    """Any thread may call any member. A reader gets one immutable snapshot: all of one version."""

    def __init__(self, ops: WeightOps) -> None:
        self._ops = ops
        # Guards all that follows.
        self._lock = threading.Lock()
        self._latest: Optional[WeightSnapshot] = None
        self._under_way: List[WeightSnapshot] = []  # published, and not yet judged; in order
        self._published = 0
        self._non_finite = 0

    def publish(self, snapshot: WeightSnapshot) -> bool:
        """Make `snapshot` the newest version. False if its weights are not finite: the last good version stays.

        Where the copy is still under way (from a GPU) nobody waits here: the first who reads it waits and judges.
        """
        with self._lock:
            newest = self._under_way[-1] if self._under_way else self._latest
            if newest is not None and snapshot.policy_version < newest.policy_version:
                raise LzeroAsyncError(
                    f'policy_version must not go back: {snapshot.policy_version} after {newest.policy_version}'
                )
            self._under_way.append(snapshot)
            waiting = list(self._under_way)
        good = True
        for one in waiting:
            if one.weights is not None and not self._ops.is_settled(one.weights):
                return True
            good = self._judge(one)
        return good

    def latest(self) -> WeightSnapshot:
        """The newest version, waiting for its copy where that is still under way."""
        with self._lock:
            waiting = list(self._under_way)
        for one in waiting:
            if one.weights is not None:
                self._ops.settle(one.weights)
            self._judge(one)
        latest = self.newest
        if latest is None:
            raise LzeroAsyncError('no weights are published yet')
        return latest

    @property
    def newest(self) -> Optional[WeightSnapshot]:
        """The newest version that is complete and judged, without waiting."""
        with self._lock:
            return self._latest

    def offered(self) -> List[WeightSnapshot]:
        """The newest version, and those that are not yet judged."""
        with self._lock:
            return [one for one in (self._latest, *self._under_way) if one is not None]

    @property
    def published(self) -> int:
        with self._lock:
            return self._published

    @property
    def non_finite(self) -> int:
        with self._lock:
            return self._non_finite

    def _judge(self, snapshot: WeightSnapshot) -> bool:
        """Publish a complete copy if it is finite. Whoever comes second finds it judged."""
        bad = None if snapshot.weights is None else self._ops.first_non_finite(snapshot.weights)
        with self._lock:
            if not any(one is snapshot for one in self._under_way):
                return bad is None
            self._under_way = [one for one in self._under_way if one is not snapshot]
            if bad is not None:
                self._non_finite += 1
            else:
                self._published += 1
                # Two readers may judge at once, and the one with the older version come second.
                if self._latest is None or snapshot.policy_version >= self._latest.policy_version:
                    self._latest = snapshot
            kept = self._latest.policy_version if self._latest is not None else None
        if bad is not None:
            logger.error(
                'Parameter sync: version %d of round %d is not published, %s is not finite; version %s stays',
                snapshot.policy_version, snapshot.rounds, bad, kept,
            )
        return bad is None
