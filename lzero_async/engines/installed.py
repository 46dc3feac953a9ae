"""What is an extra and may not be installed."""
from __future__ import annotations

import importlib.util

from ..core.errors import ConfigError


def check_ray(what: str) -> None:
    """Refuse `what`, which needs Ray, where that is not installed."""
    if importlib.util.find_spec('ray') is None:
        raise ConfigError(f"{what} needs Ray, which is not installed: pip install 'lzero-async[ray]'")
