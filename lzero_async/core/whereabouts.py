"""Whereabouts: what each role of a run is doing, and since when."""
from __future__ import annotations

import threading
import time
from typing import Callable, Dict, List, Tuple


class Whereabouts:
    """Any thread may call any member."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Guards both.
        self._lock = threading.Lock()
        self._of: Dict[str, Tuple[str, float]] = {}
        self._moves = 0

    def note(self, role: str, what: str) -> None:
        """`role` begins with `what`, which also means that it has come this far."""
        with self._lock:
            self._of[role] = (what, self._clock())
            self._moves += 1

    @property
    def moves(self) -> int:
        with self._lock:
            return self._moves

    def lines(self) -> List[str]:
        """One for each role."""
        now = self._clock()
        with self._lock:
            return [f'{role}: {what}, for {now - since:.1f} s' for role, (what, since) in sorted(self._of.items())]
