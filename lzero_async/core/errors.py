"""Every exception this package raises on purpose."""
from __future__ import annotations


class LzeroAsyncError(Exception):
    """Base of all errors raised by lzero-async."""


class ConfigError(LzeroAsyncError, ValueError):
    """A setting is refused. The message names the field, the rule and the value."""


class QueueClosed(LzeroAsyncError):
    """The queue takes no more batches, or has none left to give."""


class Stopped(LzeroAsyncError):
    """A wait or a piece of work ended because the run is stopping; nothing is wrong."""


class GateTimeout(LzeroAsyncError, TimeoutError):
    """A role waited at its gate for longer than it was told to."""


class RoleFailed(LzeroAsyncError):
    """A role raised. `role` names it, `__cause__` is what it raised, with its traceback."""

    def __init__(self, role: str, cause: BaseException) -> None:
        super().__init__(f'the {role} failed: {type(cause).__name__}: {cause}')
        self.role = role
