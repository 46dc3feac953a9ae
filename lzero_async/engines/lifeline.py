"""A child process that ends when its parent does, even if that is killed."""
from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from typing import Any, Callable

PR_SET_PDEATHSIG = 1
WATCH_INTERVAL_S = 0.5


def die_with_parent(parent: int) -> None:
    """From now on this process is killed when the process `parent`, which started it, is no more.

    On Linux the system sees to it, also while a call holds the GIL. There the parent's end is that of the thread that
    started this process: start it from one that lives as long as it may. Elsewhere a thread looks now and then.
    """
    if sys.platform.startswith('linux') and _ask_kernel():
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)  # it ended before the kernel knew
    else:
        threading.Thread(target=_watch, args=(parent,), name='lzero-async-lifeline', daemon=True).start()


def _ask_kernel() -> bool:
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
    return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_INTERVAL_S)
    os.kill(os.getpid(), signal.SIGKILL)


class DiesWithMaker:
    """A function that may be called in a child of the process that made it: there it first sees to its own end.

    For the environments that DI-engine starts in processes of their own, which would else outlive a killed run.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._maker = os.getpid()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if os.getpid() != self._maker:
            die_with_parent(self._maker)
        return self._fn(*args, **kwargs)
