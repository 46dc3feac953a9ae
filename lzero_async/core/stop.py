"""How a run is asked to end."""
from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Optional


class StopSignal:
    """The first reason to stop, and whether to finish what is owed. Any thread may call any member.

    An interrupt replaces an earlier reason, since it leaves what that one would have finished.
    `request` ends a run in order: no new collects, owed rounds are trained. `abort` leaves them. `interrupt` is
    `abort` for a signal handler: it takes no lock, since the interrupted code may hold it.
    """

    def __init__(self) -> None:
        # Guards _reason, so that the first one stays.
        self._lock = threading.Lock()
        self._reason: Optional[str] = None
        self._asked = threading.Event()
        self._aborted = False
        self._interrupted = False
        self.times_asked = 0
        """How often `keep_going` was asked, more or less: who asks makes progress."""

    def request(self, reason: str) -> None:
        with self._lock:
            self._reason = self._reason or reason
        self._asked.set()

    def wait(self, seconds: float) -> None:
        """Wait so long, or until a stop is asked for. An interrupt is not noticed here: keep it short."""
        self._asked.wait(seconds)

    def abort(self, reason: str) -> None:
        self.request(reason)
        self._aborted = True

    def interrupt(self) -> None:
        self._interrupted = True

    @property
    def interrupted(self) -> bool:
        return self._interrupted

    def keep_going(self) -> bool:
        """False once work in progress should be left where it is."""
        self.times_asked += 1
        return not (self._aborted or self._interrupted)

    @property
    def requested(self) -> bool:
        return self._interrupted or self._reason is not None

    @property
    def reason(self) -> Optional[str]:
        return 'interrupt' if self._interrupted else self._reason


@dataclass(frozen=True)
class RunLimits:
    """When a run has done enough."""

    max_env_step: int
    max_train_iter: int

    def reached(self, env_step: int, train_iter: int) -> Optional[str]:
        """The name of the limit that is reached, if any."""
        if env_step >= self.max_env_step:
            return 'max_env_step'
        if train_iter >= self.max_train_iter:
            return 'max_train_iter'
        return None
