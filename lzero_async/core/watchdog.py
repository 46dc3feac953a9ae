"""Watchdog: notices that nobody makes progress any more, and says who waits for what."""
from __future__ import annotations

import sys
import threading
import time
import traceback
from typing import Callable, List, Optional, Tuple

from .errors import LzeroAsyncError

LOOKS = 8
"""Per stall_timeout."""


class Stalled(LzeroAsyncError):
    """No role made progress for `stall_timeout` seconds. The message names each, and what it waits for."""


class Watchdog:
    """A thread that looks now and then, for as long as the context lasts."""

    def __init__(
        self,
        stall_timeout: float,
        progress: Callable[[], Tuple[int, ...]],
        whereabouts: Callable[[], List[str]],
        on_stall: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`progress` differs from one call to the next if anybody has moved. `on_stall` gets the report."""
        self._timeout = stall_timeout
        self._progress = progress
        self._whereabouts = whereabouts
        self._on_stall = on_stall
        self._clock = clock
        self._last: Optional[Tuple[int, ...]] = None
        self._since = clock()
        self._told = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name='lzero-async-watchdog', daemon=True)

    def __enter__(self) -> 'Watchdog':
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def look(self) -> None:
        """Tell of a stall, once, if there is one."""
        progress, now = self._progress(), self._clock()
        if progress != self._last:
            self._last, self._since, self._told = progress, now, False
        elif now - self._since >= self._timeout and not self._told:
            self._told = True
            self._on_stall(self._report(now - self._since))

    def _watch(self) -> None:
        while not self._over.wait(self._timeout / LOOKS):
            self.look()

    def _report(self, seconds: float) -> str:
        head = f'no role has made progress for {seconds:.0f} s (stall_timeout {self._timeout:g})'
        return '\n'.join([head, *self._whereabouts(), '', *stacks()])


def stacks() -> List[str]:
    """Where every thread of this process is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = []
    for ident, frame in sys._current_frames().items():
        lines += [f'thread {names.get(ident, ident)}:', *traceback.format_list(traceback.extract_stack(frame))]
    return [line.rstrip() for line in lines]
