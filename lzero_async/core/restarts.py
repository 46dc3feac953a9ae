"""Restarts: the workers that were lost in a run, and how many more each role may lose."""
from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict

from .errors import RestartsExhausted, WorkerLost
from .protocols import Replaceable

logger = logging.getLogger(__name__)


class Restarts:
    """Any thread may call any member. Each role has a budget of its own, which time gives back."""

    def __init__(
        self, max_worker_restarts: int = 3, window_s: float = 600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = max_worker_restarts
        self._window_s = window_s
        self._clock = clock
        # Guards both.
        self._lock = threading.Lock()
        self._recent: Dict[str, Deque[float]] = {}
        self._restarts = 0

    def replace(self, name: str, role: Replaceable, loss: WorkerLost) -> None:
        """Start another worker for `role`, until one can be started. Raises RestartsExhausted if that is one too many.
        """
        while True:
            self.spend(name, loss)
            try:
                role.replace()
                return
            except WorkerLost as again:
                loss = again

    def spend(self, role: str, loss: WorkerLost) -> None:
        """A worker of `role` was lost, and another is to be started. Raises RestartsExhausted if that is one too many.
        """
        now = self._clock()
        with self._lock:
            recent = self._recent.setdefault(role, deque())
            while recent and now - recent[0] > self._window_s:
                recent.popleft()
            if len(recent) >= self._most:
                raise RestartsExhausted(
                    f'{role} was replaced {len(recent)} times within {self._window_s:g} s '
                    f'(max_worker_restarts {self._most}), and was lost once more: {loss}'
                ) from loss
            recent.append(now)
            self._restarts += 1
            count = len(recent)
        logger.error(
            '%s is replaced, %d of %d times within %g s: %s', role, count, self._most, self._window_s, loss
        )

    def restore(self, restarts: int) -> None:
        """So many were counted before; the budgets begin anew."""
        with self._lock:
            self._restarts = restarts

    def numbers(self) -> Dict[str, Any]:
        with self._lock:
            return {'worker_restarts': self._restarts}
