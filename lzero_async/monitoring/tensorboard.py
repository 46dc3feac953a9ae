"""The `Async/*` curves, one point per round, and the `Sync/*` curves of strictly on-policy rounds."""
from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from ..core.on_policy import OnPolicyRecord
from ..core.protocols import RoundRecord
from .component_statistics import COMPONENTS

DRAWN = ('trainer', 'rollouter', 'freshness', 'queue', 'synchronizer')
STATISTICS = tuple(name for component in DRAWN for name in COMPONENTS[component])


class AsyncCurves:
    """Draws ratios and rates over the time since the last point. Called from the learner's thread only."""

    def __init__(self, tb_logger: Any) -> None:
        self._tb_logger = tb_logger
        self._last: Optional[RoundRecord] = None

    def draw(self, record: RoundRecord, statistics: Mapping[str, Any]) -> None:
        last, self._last = self._last, record
        recent = record.activity.since(last.activity) if last else record.activity
        env_steps = record.env_step - (last.env_step if last else 0)
        seconds = max(recent.elapsed, 1e-9)
        curves: Dict[str, Any] = {
            'lag': record.lag,
            'staleness_mean': statistics.get('mean_staleness', record.staleness),
            'staleness_max': statistics.get('max_staleness', record.staleness),
            'policy_version': record.policy_version,
            'off_policy_degree': record.off_policy_degree,
            'collector_idle_ratio': recent.idle_ratio('collect'),
            'learner_idle_ratio': recent.idle_ratio('train'),
            'evaluator_idle_ratio': recent.idle_ratio('eval'),
            'env_steps_per_s': env_steps / seconds,
            'updates_per_s': record.updates / seconds,
            'overlap_ratio': recent.overlap_ratio,
            **{name: statistics[name] for name in STATISTICS if name in statistics},
            'queue_size': record.queue_size,
        }
        if record.replayed is not None:
            curves['replayed_staleness_mean'] = record.replayed.staleness_mean
            curves['replayed_staleness_max'] = record.replayed.staleness_max
            curves['replayed_age_mean'] = record.replayed.age_mean
            curves['replayed_age_max'] = record.replayed.age_max
        for name, value in curves.items():
            self._tb_logger.add_scalar(f'Async/{name}', value, record.train_iter)


class OnPolicyCurves:
    """One point per strictly on-policy round."""

    def __init__(self, tb_logger: Any) -> None:
        self._tb_logger = tb_logger

    def draw(self, record: OnPolicyRecord, train_iter: int) -> None:
        curves = {
            'Sync/BatchSize': record.batch_size,
            'Sync/PolicyVersion': record.policy_version,
            'Sync/CollectionTime': record.collection_time,
            'Sync/UpdateTime': record.update_time,
            'Sync/RefusedSamples': record.refused_samples,
            'Buffer/SamplesCollected': record.samples_collected,
        }
        for name, value in curves.items():
            self._tb_logger.add_scalar(name, value, train_iter)
