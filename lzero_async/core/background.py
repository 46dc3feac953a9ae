"""Background: work done one piece at a time in a thread of its own, in the order in which it was asked for."""
from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, List, Optional, TypeVar

from .errors import Stopped

T = TypeVar('T')


class Background:
    """Any thread may call any member. The thread is started by the first piece of work."""

    def __init__(self, thread_name: str) -> None:
        self._thread_name = thread_name
        # Guards all that follows.
        self._lock = threading.Lock()
        self._executor: Optional[ThreadPoolExecutor] = None
        self._futures: 'List[Future[Any]]' = []
        self._closed = False

    def submit(self, fn: Callable[[], T]) -> 'Future[T]':
        with self._lock:
            if self._closed:
                raise Stopped('no more work is taken: the background is closed')
            if self._executor is None:
                self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._thread_name)
            # A failure stays in the list until wait() raises it; what ended well can go.
            self._futures = [future for future in self._futures if not future.done() or _has_failed(future)]
            future = self._executor.submit(fn)
            self._futures.append(future)
            return future

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Wait for what was asked for so far, for at most `timeout` seconds in all.

        Returns the last result, raises the first failure; what was not waited for can be waited for again.
        """
        with self._lock:
            waiting = list(self._futures)
        give_up_at = None if timeout is None else time.monotonic() + timeout
        result = None
        for future in waiting:
            try:
                if not future.cancelled():
                    result = future.result(None if give_up_at is None else max(0.0, give_up_at - time.monotonic()))
            finally:
                if future.done():
                    self._forget(future)
        return result

    @property
    def in_progress(self) -> bool:
        with self._lock:
            return any(not future.done() for future in self._futures)

    def close(self, wait: bool) -> None:
        """Take no more work; with `wait`, wait for what is running."""
        with self._lock:
            self._closed = True
            executor = self._executor
        if executor is not None:
            executor.shutdown(wait=wait)

    def _forget(self, future: 'Future[Any]') -> None:
        with self._lock:
            self._futures = [other for other in self._futures if other is not future]


def _has_failed(future: 'Future[Any]') -> bool:
    return not future.cancelled() and future.exception() is not None
