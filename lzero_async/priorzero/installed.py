"""Packages that only PriorZero needs and that may not be installed."""
from __future__ import annotations

import importlib
import os
from importlib.util import find_spec
from typing import Any, Optional

from ..core.errors import ConfigError

EXTRA = "pip install 'lzero-async[priorzero]'"


def needed(package: str, what: str, how: str = EXTRA) -> Any:
    """The module `package`. Refuses `what`, which needs it, where it is not installed, or broken."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == package.split('.')[0]
        state = 'is not installed' if missing else f'is installed and cannot be imported ({error})'
        raise ConfigError(f'{what} needs {package}, which {state}: {how}') from error


def folder_of(package: str) -> Optional[str]:
    """Where the files of an installed package are, without importing it; None if it is not installed."""
    spec = find_spec(package)
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    return next((folder for folder in folders if os.path.isdir(folder)), None)
