"""The roles over LightZero's own parts."""
from __future__ import annotations

from typing import Any

from .collect import LightZeroCollector
from .evaluate import LightZeroEvaluator
from .families import RoleClasses
from .learn import LightZeroLearner

ROLES = RoleClasses(LightZeroLearner, LightZeroCollector, LightZeroEvaluator)


def check_config(main: Any, create: Any) -> None:
    """They can work with all that LightZero can."""
