"""WaitingLine: threads that wait for their turn. Who has waited longest goes first, and only that one is woken."""
from __future__ import annotations

import threading
import time
from collections import deque
from typing import Callable, Deque, Optional


class WaitingLine:
    """All is called with `lock` held, which is let go of while a thread waits.

    A condition that all wait on would wake a thousand threads for one of them to go.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._waiting: Deque[threading.Condition] = deque()

    def wait(
        self, may_go: Callable[[], bool], gives_up: Callable[[], bool], timeout: Optional[float],
        overdue: Callable[[], bool],
    ) -> bool:
        """Wait until it is this thread's turn and it may go, or until it gives up.

        After `timeout` seconds `overdue` says whether to wait as long again, in the same place. False if not.
        """
        turn = self._new_turn()
        self._waiting.append(turn)
        give_up_at = None if timeout is None else time.monotonic() + timeout
        try:
            while not (gives_up() or (self._waiting[0] is turn and may_go())):
                left = None if give_up_at is None else give_up_at - time.monotonic()
                if left is None or left > 0:
                    turn.wait(left)
                elif not overdue():
                    return False
                else:
                    assert timeout is not None
                    give_up_at = time.monotonic() + timeout
            return True
        finally:
            self._waiting.remove(turn)
            self.wake_first()  # perhaps the next one may go, too

    def wake_first(self) -> None:
        if self._waiting:
            self._waiting[0].notify()

    def wake_all(self) -> None:
        for turn in self._waiting:
            turn.notify()

    def _new_turn(self) -> threading.Condition:
        return threading.Condition(self._lock)
