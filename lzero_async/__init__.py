"""lzero-async: LightZero, trained asynchronously.

Importing this package imports neither torch nor LightZero nor Ray; they come with the first run, and torch with the
first use of a synchronizer.
"""
from typing import Any

from .core.config import AsyncConfig
from .core.coordinator import AsyncTrainingCoordinator
from .core.errors import ConfigError, LzeroAsyncError, RoleFailed
from .core.on_policy import OnPolicyRounds
from .entry import run_training, train_unizero_segment_async
from .version import __version__

_NEED_TORCH = ('ParameterSynchronizer', 'UnifiedParameterSynchronizer', 'AsyncParameterSynchronizer')

__all__ = [
    *_NEED_TORCH,
    'ParameterSyncManager',
    'AsyncConfig',
    'AsyncTrainingCoordinator',
    'ConfigError',
    'LzeroAsyncError',
    'OnPolicyRounds',
    'RoleFailed',
    '__version__',
    'run_training',
    'train_unizero_segment_async',
]


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        from . import torch_weights

        return getattr(torch_weights, name)
    if name == 'ParameterSyncManager':
        from .engines.installed import check_ray

        check_ray(name)
        from .engines.param_sync_manager import ParameterSyncManager

        return ParameterSyncManager
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
