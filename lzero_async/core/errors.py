"""Every exception this package raises on purpose."""
from __future__ import annotations

from typing import Any, Tuple


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


class SyncTimeout(LzeroAsyncError, TimeoutError):
    """A target did not take its weights in time."""


class WeightsTooStale(LzeroAsyncError):
    """Nothing may be collected with the weights at hand, and no newer ones can come."""


class BoundBroken(LzeroAsyncError):
    """A bound on lag or staleness that the run guarantees does not hold. This is a defect, and the run stops."""


class EverythingDropped(LzeroAsyncError):
    """So many batches in a row were dropped as too stale or too old that the run cannot be getting anywhere."""


class RemoteError(LzeroAsyncError):
    """Something was raised in another process. The message ends with the traceback from there."""


class WorkerLost(LzeroAsyncError):
    """The process or actor behind a role died, hung or raised. Another one can take its place."""


class RestartsExhausted(LzeroAsyncError):
    """A role lost its worker so often that no further one is started. `__cause__` is the last loss."""


class RoleFailed(LzeroAsyncError):
    """A role raised. `role` names it, `__cause__` is what it raised, with its traceback."""

    def __init__(self, role: str, cause: BaseException) -> None:
        super().__init__(f'the {role} failed: {type(cause).__name__}: {cause}')
        self.role = role
        self.__cause__ = cause

    def __reduce__(self) -> Tuple[Any, ...]:
        return RoleFailed, (self.role, self.__cause__)
