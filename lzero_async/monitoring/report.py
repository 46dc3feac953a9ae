"""RunReport: the state of a run at one moment, for whoever shows or stores it."""
from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, Optional

from ..core.activity import Activity
from ..core.protocols import Evaluation, RoundRecord
from ..core.statistics import Statistics


@dataclass(frozen=True)
class RunReport:
    exp_name: str
    ended_by: Optional[str]
    """None while the run goes on."""
    error: Optional[str]
    last_round: Optional[RoundRecord]
    statistics: Statistics
    activity: Activity
    mean_lag: float
    env_steps: int
    updates: int
    """Of the learner, those of an unfinished round included."""
    last_evaluation: Optional[Evaluation]
    best_evaluation: Optional[Evaluation]

    @property
    def mean_staleness(self) -> float:
        return float(self.statistics.get('mean_staleness', 0.0))

    @property
    def max_staleness(self) -> int:
        return int(self.statistics.get('max_staleness', 0))

    @property
    def env_steps_per_s(self) -> float:
        return _rate(self.env_steps, self.activity.elapsed)

    @property
    def updates_per_s(self) -> float:
        return _rate(self.updates, self.activity.elapsed)

    def as_dict(self) -> Dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            'exp_name': self.exp_name,
            'ended_by': self.ended_by,
            'error': self.error,
            'statistics': dict(self.statistics),
            'env_steps': self.env_steps,
            'updates': self.updates,
            'rounds': self.statistics['train_count'],
            'wall_time': self.activity.elapsed,
            'collect_wall_time': self.activity.busy['collect'],
            'train_wall_time': self.activity.busy['train'],
            'eval_wall_time': self.activity.busy['eval'],
            'overlap_ratio': self.activity.overlap_ratio,
            'collector_idle_ratio': self.activity.idle_ratio('collect'),
            'learner_idle_ratio': self.activity.idle_ratio('train'),
            'evaluator_idle_ratio': self.activity.idle_ratio('eval'),
            'env_steps_per_s': self.env_steps_per_s,
            'updates_per_s': self.updates_per_s,
            'mean_lag': self.mean_lag,
            'max_lag': self.statistics['max_lag'],
            'mean_staleness': self.mean_staleness,
            'max_staleness': self.max_staleness,
            'last_evaluation': asdict(self.last_evaluation) if self.last_evaluation else None,
            'best_evaluation': asdict(self.best_evaluation) if self.best_evaluation else None,
        }


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
