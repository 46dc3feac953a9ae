"""Doorbell: what the supervising thread waits at. Threads ring it, and so does Ctrl-C, which nobody else gets."""
from __future__ import annotations

import contextlib
import signal
import socket
import threading
from typing import Any, Callable, Iterator, Optional

ASKING_FOR_THE_END = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """Keep Ctrl-C from the calling thread and from the processes that it starts meanwhile.

    A terminal sends it to all of a program's processes. Environments in processes of their own would die of it, and
    their collector fail, before the run has ended in order.
    """
    if not hasattr(signal, 'pthread_sigmask'):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Doorbell:
    """Any thread may ring; one waits. A ring that comes before the wait ends the wait.

    A socket rather than a condition: Python's own signal machinery can write to it, so that a signal which arrives in
    the instant before the wait begins is not slept through.
    """

    def __init__(self) -> None:
        self._waiter, self._ringer = socket.socketpair()
        self._ringer.setblocking(False)
        self._breaking_in = False
        self._guards_main_thread = False

    def ring(self) -> None:
        # Full of rings that nobody has heard yet, one more says nothing new; closed, nobody waits any more.
        with contextlib.suppress(OSError):
            self._ringer.send(b'\0')

    def wait(self, timeout: Optional[float] = None) -> None:
        """Return once somebody has rung since the last wait, or after `timeout` seconds."""
        self._waiter.settimeout(timeout)
        with contextlib.suppress(socket.timeout):
            self._waiter.recv(4096)

    def break_in(self) -> bool:
        """Raise KeyboardInterrupt in the main thread, whatever it waits for, if it is in `rung_by_ctrl_c`. Any thread.
        """
        main = threading.main_thread().ident
        if not self._guards_main_thread or main is None or not hasattr(signal, 'pthread_kill'):
            return False
        self._breaking_in = True
        signal.pthread_kill(main, signal.SIGINT)
        return True

    def close(self) -> None:
        self._waiter.close()
        self._ringer.close()

    @contextlib.contextmanager
    def rung_by_ctrl_c(self, handler: Callable[[], None]) -> Iterator[None]:
        """While this lasts the first Ctrl-C rings and calls `handler`, the next raises KeyboardInterrupt.

        SIGTERM, which is how a scheduler or a machine that shuts down asks for the end, is the same as Ctrl-C.
        `handler` runs between any two steps of the main thread, so it must take no lock. In any other thread than the
        main one this does nothing: Python runs signal handlers in the main thread only.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(_signum: int, _frame: Any) -> None:
            for one in ASKING_FOR_THE_END:
                signal.signal(one, signal.default_int_handler)
            if self._breaking_in:
                raise KeyboardInterrupt
            handler()

        previous_fd = signal.set_wakeup_fd(self._ringer.fileno(), warn_on_full_buffer=False)
        previous = {one: signal.signal(one, on_signal) for one in ASKING_FOR_THE_END}
        self._guards_main_thread = True
        try:
            yield
        finally:
            self._guards_main_thread = False
            for one, before in previous.items():
                # A handler that was not installed from Python reads as None, and cannot be put back from here.
                default = signal.default_int_handler if one == signal.SIGINT else signal.SIG_DFL
                signal.signal(one, default if before is None else before)
            signal.set_wakeup_fd(previous_fd)
