"""Looks at a run every few seconds from a thread of its own, so that nothing the roles do waits for it."""
from __future__ import annotations

import contextlib
import functools
import logging
import threading
from typing import Callable, Iterator, Sequence, TextIO

from ..core.config import AsyncConfig
from .report import RunReport
from .run_monitor import RunMonitor
from .summary import write_summary
from .terminal import TerminalView

logger = logging.getLogger(__name__)

LIVE_INTERVAL_S = 0.5
LINE_INTERVAL_S = 5.0


Callback = Callable[[RunReport], None]


@contextlib.contextmanager
def watched(
    monitor: RunMonitor, settings: AsyncConfig, terminal: TextIO, callbacks: Sequence[Callback] = ()
) -> Iterator[None]:
    """While this lasts keep async_summary.json fresh, the terminal and the callbacks informed and Component Statistics
    in the log; all of them once more at the end.
    """

    def tell() -> None:
        monitor.log_statistics()
        report = monitor.report()
        for index, callback in enumerate(callbacks):
            _safely(functools.partial(callback, report), f'monitor callback {index}')()

    with contextlib.ExitStack() as stack:
        stack.callback(_safely(tell, 'statistics'))
        stack.enter_context(_every(settings.sync_monitor_interval, tell, 'statistics'))
        if settings.show_progress:
            view = TerminalView(terminal)
            stack.callback(_safely(lambda: view.finish(monitor.report()), 'terminal'))
            stack.enter_context(view.shown())
            interval = LIVE_INTERVAL_S if view.is_live else LINE_INTERVAL_S
            stack.enter_context(_every(interval, lambda: view.update(monitor.report()), 'terminal'))
        write_summary(monitor.report())
        stack.callback(_safely(lambda: write_summary(monitor.report()), 'summary'))
        stack.enter_context(_every(settings.summary_interval_s, lambda: write_summary(monitor.report()), 'summary'))
        yield


def _safely(look: Callable[[], None], name: str) -> Callable[[], None]:
    """A watcher that stumbles is logged: it must not cost the run, nor the next look."""

    def look_safely() -> None:
        try:
            look()
        except Exception:
            logger.exception('the %s failed', name)

    return look_safely


@contextlib.contextmanager
def _every(seconds: float, look: Callable[[], None], name: str) -> Iterator[None]:
    done = threading.Event()
    look_safely = _safely(look, name)

    def watch() -> None:
        while not done.wait(seconds):
            look_safely()

    thread = threading.Thread(target=watch, name=f'lzero-async-{name}', daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
