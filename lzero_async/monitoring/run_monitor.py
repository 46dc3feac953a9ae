"""RunMonitor: observes a run, draws its curves, and can say at any moment how it stands."""
from __future__ import annotations

import logging
import os
import threading
from dataclasses import asdict, replace
from typing import Any, Callable, Dict, Mapping, Optional

from ..core.config import AsyncConfig
from ..core.coordinator import AsyncTrainingCoordinator
from ..core.on_policy import OnPolicyRecord
from ..core.protocols import Evaluation, Learner, RoundRecord
from ..core.statistics import Statistics
from .component_statistics import component_statistics
from .report import RunReport
from .tensorboard import AsyncCurves, OnPolicyCurves

logger = logging.getLogger(__name__)

TRANSCRIPT = 'transcript.txt'
"""Of the last evaluation, in the experiment folder, where there is one."""


class RunMonitor:
    """`core.protocols.Observer`. The learner's and the evaluator's thread tell, any thread may ask for a report."""

    def __init__(
        self, coordinator: AsyncTrainingCoordinator, learner: Learner, tb_logger: Any, settings: AsyncConfig,
        exp_name: str,
    ) -> None:
        self._coordinator = coordinator
        self._learner = learner
        self._statistics: Callable[[], Statistics] = coordinator.get_statistics
        self._curves = AsyncCurves(tb_logger)
        self._on_policy_curves = OnPolicyCurves(tb_logger)
        self._round_level = logging.INFO if settings.enable_async_debug_log else logging.DEBUG
        self._exp_name = exp_name
        # Guards all that follows.
        self._lock = threading.Lock()
        self._last_round: Optional[RoundRecord] = None
        self._rounds = 0
        self._lag_sum = 0
        self._last_evaluation: Optional[Evaluation] = None
        self._best_evaluation: Optional[Evaluation] = None
        self._ended_by: Optional[str] = None
        self._error: Optional[str] = None

    def listen_to(self, statistics: Callable[[], Statistics]) -> None:
        """Report these numbers, those of the whole run, from now on."""
        self._statistics = statistics

    def on_round(self, record: RoundRecord) -> None:
        with self._lock:
            self._last_round = record
            self._rounds += 1
            self._lag_sum += record.lag
        self._curves.draw(record, self._statistics())
        logger.log(
            self._round_level,
            'round %d: train_iter=%d env_step=%d updates=%d lag=%d staleness=%d sample_age=%.2fs queue_size=%d',
            record.round, record.train_iter, record.env_step, record.updates, record.lag, record.staleness,
            record.sample_age, record.queue_size,
        )

    def on_evaluation(self, evaluation: Evaluation) -> None:
        if evaluation.transcript:
            with open(os.path.join(self._exp_name, TRANSCRIPT), 'w', encoding='utf-8') as file:
                file.write(evaluation.transcript)
            evaluation = replace(evaluation, transcript='')
        with self._lock:
            self._last_evaluation = evaluation
            if evaluation.is_best:
                self._best_evaluation = evaluation
        logger.info(
            'evaluation of policy_version %d: reward %.2f%s',
            evaluation.policy_version, evaluation.reward_mean, ' (best)' if evaluation.is_best else '',
        )

    def on_policy_round(self, record: OnPolicyRecord) -> None:
        self._on_policy_curves.draw(record, self._learner.train_iter)
        logger.log(
            self._round_level,
            'on-policy round of %d samples of policy_version %d: collected in %.2f s, updated in %.2f s',
            record.batch_size, record.policy_version, record.collection_time, record.update_time,
        )

    def log_statistics(self) -> None:
        """One line with the numbers of all components."""
        logger.info('Component Statistics: %s', component_statistics(self._statistics()))

    def ended(self, ended_by: str, error: Optional[str] = None) -> None:
        with self._lock:
            self._ended_by, self._error = ended_by, error
        if error is None:
            logger.info('the run ended by %s', ended_by)
        else:
            logger.error('the run ended by %s: %s', ended_by, error)

    def state(self) -> Dict[str, Any]:
        """Plain values, for `restore` of a run that goes on with this one."""
        with self._lock:
            best = self._best_evaluation
            return {
                'rounds': self._rounds, 'lag_sum': self._lag_sum,
                'best_evaluation': None if best is None else asdict(best),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        best = state['best_evaluation']
        with self._lock:
            self._rounds, self._lag_sum = state['rounds'], state['lag_sum']
            self._best_evaluation = None if best is None else Evaluation(**{**best, 'returns': tuple(best['returns'])})

    def report(self) -> RunReport:
        statistics, activity = self._statistics(), self._coordinator.activity()
        with self._lock:
            rounds = max(1, self._rounds)
            return RunReport(
                exp_name=self._exp_name,
                ended_by=self._ended_by,
                error=self._error,
                last_round=self._last_round,
                statistics=statistics,
                activity=activity,
                mean_lag=self._lag_sum / rounds,
                env_steps=self._learner.env_step,
                updates=self._learner.train_iter,
                last_evaluation=self._last_evaluation,
                best_evaluation=self._best_evaluation,
            )
