"""The numbers of a run by component, as one line."""
from __future__ import annotations

from typing import Any, Mapping

COMPONENTS = {
    'trainer': ('global_steps', 'processed_samples', 'current_param_version', 'param_sync_count',
                'background_reanalyzed_segments', 'background_reanalyze_time'),
    'rollouter': ('total_generated_samples', 'dropped_stale_samples', 'generation_errors', 'param_sync_requests',
                  'worker_restarts', 'time_to_first_batch'),
    'freshness': ('avg_sample_age', 'max_sample_age', 'stale_samples_ratio', 'mean_staleness', 'max_staleness',
                  'max_late_staleness'),
    'queue': ('queue_size', 'total_produced', 'total_consumed', 'dropped_samples', 'queue_memory_bytes'),
    'synchronizer': ('sync_count', 'sync_failures', 'non_finite_weights'),
    'coordinator': ('collect_count', 'train_count', 'drop_count', 'collect_train_lag', 'off_policy_degree'),
}


def component_statistics(statistics: Mapping[str, Any]) -> str:
    return '; '.join(
        f'{component}: ' + ' '.join(f'{name}={_short(statistics[name])}' for name in names if name in statistics)
        for component, names in COMPONENTS.items()
    )


def _short(value: Any) -> str:
    return f'{value:.3f}' if isinstance(value, float) else str(value)
