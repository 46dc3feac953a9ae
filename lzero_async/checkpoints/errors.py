"""What can be wrong with states on disk."""
from __future__ import annotations

from ..core.errors import LzeroAsyncError


class StateDamaged(LzeroAsyncError):
    """A file of a state is missing, cut short or altered, or was never one of ours."""


class FolderInUse(LzeroAsyncError):
    """Another run works in this experiment folder."""
