"""The roles over LightZero's own parts."""
from __future__ import annotations

from .collect import LightZeroCollector
from .evaluate import LightZeroEvaluator
from .families import RoleClasses
from .learn import LightZeroLearner

ROLES = RoleClasses(LightZeroLearner, LightZeroCollector, LightZeroEvaluator)
