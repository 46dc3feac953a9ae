"""What is an extra and may not be installed."""
from __future__ import annotations

import importlib
import importlib.util

from ..core.errors import ConfigError


def check_ray(what: str) -> None:
    """Refuse `what`, which needs Ray, where that is not installed, or broken."""
    if importlib.util.find_spec('ray') is None:
        raise ConfigError(f"{what} needs Ray, which is not installed: pip install 'lzero-async[ray]'")
    try:
        importlib.import_module('ray')
    except Exception as error:
        raise ConfigError(f'{what} needs Ray, which is installed and cannot be imported: {error!r}') from error
