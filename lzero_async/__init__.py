"""lzero-async: LightZero, trained asynchronously.

Importing this package imports neither torch nor LightZero; they come with the first run.
"""
from .core.config import AsyncConfig
from .core.coordinator import AsyncTrainingCoordinator
from .core.errors import ConfigError, LzeroAsyncError, RoleFailed
from .entry import train_unizero_segment_async
from .version import __version__

__all__ = [
    'AsyncConfig',
    'AsyncTrainingCoordinator',
    'ConfigError',
    'LzeroAsyncError',
    'RoleFailed',
    '__version__',
    'train_unizero_segment_async',
]
