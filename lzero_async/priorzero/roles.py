"""The roles of PriorZero."""
from __future__ import annotations

from ..lightzero.families import RoleClasses
from .collect import PriorZeroCollector
from .evaluate import PriorZeroEvaluator
from .learn import PriorZeroLearner

ROLES = RoleClasses(PriorZeroLearner, PriorZeroCollector, PriorZeroEvaluator)
