"""The `Async/*` curves, one point per round, beside LightZero's own."""
from __future__ import annotations

from typing import Any, Optional

from ..core.protocols import RoundRecord


class AsyncCurves:
    """Draws ratios and rates over the time since the last point. Called from the learner's thread only."""

    def __init__(self, tb_logger: Any) -> None:
        self._tb_logger = tb_logger
        self._last: Optional[RoundRecord] = None

    def draw(self, record: RoundRecord, staleness_mean: float, staleness_max: int) -> None:
        last, self._last = self._last, record
        recent = record.activity.since(last.activity) if last else record.activity
        env_steps = record.env_step - (last.env_step if last else 0)
        seconds = max(recent.elapsed, 1e-9)
        curves = {
            'lag': record.lag,
            'staleness_mean': staleness_mean,
            'staleness_max': staleness_max,
            'policy_version': record.policy_version,
            'queue_size': record.queue_size,
            'off_policy_degree': record.off_policy_degree,
            'collector_idle_ratio': recent.idle_ratio('collect'),
            'learner_idle_ratio': recent.idle_ratio('train'),
            'evaluator_idle_ratio': recent.idle_ratio('eval'),
            'env_steps_per_s': env_steps / seconds,
            'updates_per_s': record.updates / seconds,
            'overlap_ratio': recent.overlap_ratio,
        }
        for name, value in curves.items():
            self._tb_logger.add_scalar(f'Async/{name}', value, record.train_iter)
