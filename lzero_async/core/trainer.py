"""AsyncTrainer: the threads of a run. Starts them, stops them, joins them, and raises the first failure."""
from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import dataclass, replace
from typing import Any, Callable, ContextManager, Dict, List, Mapping, Optional, Sequence

from .channels import Channels
from .collector_loop import CollectorLoop
from .config import AsyncConfig
from .coordinator import AsyncTrainingCoordinator
from .doorbell import Doorbell, ctrl_c_blocked
from .errors import ConfigError, QueueClosed, RestartsExhausted, RoleFailed, Stopped
from .evaluation_schedule import EvaluationSchedule
from .learner_loop import LearnerLoop
from .on_policy import OnPolicyRounds
from .on_policy_collector import OnPolicyCollector
from .param_sync import ParameterSynchronizer
from .protocols import Checkpoints, Collector, Evaluator, IdleWorker, Learner, Observer
from .segment_queue import QueueStatistics
from .statistics import Statistics
from .stop import RunLimits
from .watchdog import Stalled, Watchdog

logger = logging.getLogger(__name__)

LEAVING_S = 5.0
"""For each thread of a run that has stalled, to come to its end."""

RoleContext = Callable[[str], ContextManager[Any]]
"""Entered by each role's thread around its work, with the role's name."""


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended: `max_env_step`, `max_train_iter`, `stop_value`, `interrupt`, or what was given to request_stop.
    """

    ended_by: str
    statistics: Statistics
    queue: QueueStatistics


class _RoundDropped(Exception):
    """All of a round's samples were too old, and it was not trained."""


class AsyncTrainer:
    """Runs collectors, a learner and an evaluator until a limit is reached, a stop is requested or a role fails.

    With a synchronous coordinator the same steps are taken in turn by the calling thread, as it is: no thread is
    started (but for evaluation in the background and the watchdog), and only the evaluator enters its `role_context`.
    """

    def __init__(
        self,
        coordinator: AsyncTrainingCoordinator,
        collectors: Sequence[Collector],
        learner: Learner,
        evaluator: Evaluator,
        observer: Observer,
        limits: RunLimits,
        *,
        settings: AsyncConfig = AsyncConfig(),  # noqa: B008  frozen
        synchronizer: Optional[ParameterSynchronizer] = None,
        role_context: RoleContext = lambda role: contextlib.nullcontext(),
        begun: Optional[float] = None,
        tell_stall: Callable[[str], None] = logger.error,
        checkpoints: Optional[Checkpoints] = None,
        resumed: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """`begun` is when the user's call began, by time.monotonic(): the first batch is timed from there.

        `tell_stall` gets a report of many lines when no role has made progress for `stall_timeout`. `resumed` is the
        `state` of the run that this one goes on with; the learner has been restored by itself.
        """
        if not collectors:
            raise ConfigError('collectors must hold at least one collector, got none')
        if coordinator.is_synchronous and len(collectors) > 1:
            raise ConfigError(f'collectors must be one when off_policy_degree is 0, got {len(collectors)}')
        if settings.sync_batch_size is not None and not coordinator.is_synchronous:
            raise ConfigError(
                f'sync_batch_size must be None unless the coordinator is serial, got {settings.sync_batch_size} with '
                f'off_policy_degree {coordinator.off_policy_degree}'
            )
        self._coordinator = coordinator
        self._role_context = role_context
        self._limits = limits
        self._learner = learner
        self._observer = observer
        self._checkpoints = checkpoints
        self._tell_stall = tell_stall
        self._stalled = False
        self._at_work = 'run'  # which role the calling thread plays, in a serial run
        if resumed is not None:
            coordinator.restore(resumed['coordinator'])
        self._channels = Channels.open(
            coordinator, synchronizer or ParameterSynchronizer(settings), settings, env_step=learner.env_step,
            begun=begun, resumed=resumed,
        )
        self._queue, self._stop = self._channels.queue, self._channels.stop
        if not self._channels.weights.publish(replace(learner.snapshot(), rounds=self._channels.outstanding.finished)):
            raise ConfigError('the weights to begin with must be finite, got some that are not')
        self._on_policy: Optional[OnPolicyRounds] = None
        if settings.sync_batch_size is not None:
            self._on_policy = OnPolicyRounds(settings.sync_batch_size, learner.train_iter)
            collectors = [
                OnPolicyCollector(collector, self._on_policy, self._stop, settings.max_consecutive_drops)
                for collector in collectors
            ]
        self._collectors = [
            CollectorLoop(f'collector-{index}', collector, self._channels)
            for index, collector in enumerate(collectors)
        ]
        self._learner_loop = LearnerLoop(learner, self._channels, limits, observer, self._who_collects)
        self._evaluation = EvaluationSchedule(
            evaluator,
            learner,
            self._channels,
            observer,
            context=lambda: role_context('evaluator'),
            on_failure=self._fail,
            on_stop_value=lambda: self.request_stop('stop_value'),
        )
        if resumed is not None:
            self._evaluation.restore(resumed['evaluation'])
            if self._on_policy is not None and resumed['on_policy'] is not None:
                self._on_policy.restore(resumed['on_policy'])
        self._doorbell = Doorbell()
        # Guards the three below.
        self._lock = threading.Lock()
        self._failure: Optional[RoleFailed] = None
        self._collecting = len(self._collectors)
        self._running = 0

    def request_stop(self, reason: str = 'request_stop') -> None:
        """End the run in order: no new collects, owed rounds are trained. Any thread may ask; returns at once."""
        self._stop.request(reason)
        self._coordinator.request_stop()

    def run(self) -> RunOutcome:
        """Train until the end, and wait for it. Raises RoleFailed, from what the first failing role raised.

        The first Ctrl-C finishes the current update and ends the run; a second one raises KeyboardInterrupt at once.
        """
        try:
            with self._doorbell.rung_by_ctrl_c(self._stop.interrupt), self._watch():
                if self._coordinator.is_synchronous:
                    self._run_serial()
                else:
                    self._run_threads()
        except BaseException:  # a second Ctrl-C, or a serial role that calls sys.exit()
            self._abort('interrupt')
            self._settle(keep=False)
            if self._stalled and self._failure is not None:
                raise self._failure from self._failure.__cause__
            raise
        self._doorbell.close()
        self._coordinator.close()
        self._channels.leave()
        self._settle(keep=self._checkpoints is not None and self._failure is None)
        if self._failure is not None:
            raise self._failure
        return RunOutcome(self._stop.reason or 'request_stop', self.get_statistics(), self._queue.statistics())

    def state(self) -> Dict[str, Any]:
        """Where the run stands, but for its learner, in plain values: for `resumed` of another one.

        In the learner's thread between two rounds, or after the run.
        """
        return {
            **self._channels.state(),
            'evaluation': self._evaluation.state(),
            'on_policy': None if self._on_policy is None else self._on_policy.state(),
        }

    def random_states(self) -> List[Any]:
        """Of each collector, after its last collect; None before the first."""
        return [collector.random_state for collector in self._collectors]

    def get_statistics(self) -> Statistics:
        """All counts of the run, of all its parts, in one read-only copy. Any thread may ask, also after the run."""
        queue = self._queue.statistics()
        return Statistics({
            **self._coordinator.get_statistics(),
            'global_steps': self._learner.train_iter,
            **self._channels.weights.get_statistics(),
            **self._channels.samples.numbers(),
            **self._channels.restarts.numbers(),
            **(self._checkpoints.numbers() if self._checkpoints is not None else {}),
            'bad_updates': getattr(self._learner, 'bad_updates', 0),
            **(self._learner.idle_numbers() if isinstance(self._learner, IdleWorker) else {}),
            'num_collectors': len(self._collectors),
            'collector_engine': self._channels.settings.engine_of('collector'),
            'evaluator_engine': self._channels.settings.engine_of('evaluator'),
            'queue_size': queue.queue_size,
            'total_produced': queue.total_produced,
            'total_consumed': queue.total_consumed,
            'queue_memory_bytes': queue.nbytes,
            **(self._on_policy.get_statistics() if self._on_policy is not None else {}),
        })

    # ---------------------------------------------------------------- serial

    def _run_serial(self) -> None:
        collector = self._collectors[0]
        try:
            with contextlib.suppress(Stopped):
                while not self._stop.requested:
                    self._as_role('collector', collector.step)
                    self._as_role('learner', self._train_and_evaluate if self._on_policy is None else self._sync_update)
            self._at_work = 'evaluator'
            with contextlib.suppress(Stopped):
                self._evaluation.finish()
        except RoleFailed as failure:
            self._fail(failure)

    def _as_role(self, role: str, step: Callable[[], Any]) -> None:
        self._at_work = role
        try:
            step()
        except (Stopped, RoleFailed):
            raise
        except Exception as error:
            raise RoleFailed(role, error) from error

    def _train_and_evaluate(self) -> None:
        self._train_once()
        if not self._stop.requested:  # as in LightZero's loop, where the last round is not evaluated
            self._evaluation.round_finished()
        self._save()

    def _sync_update(self) -> None:
        assert self._on_policy is not None
        try:
            self._on_policy.sync_update(self._update_on_policy, lambda: self._learner.train_iter)
        except _RoundDropped:
            self._on_policy.discard_round()
            return
        record = self._on_policy.last_round
        assert record is not None
        self._observer.on_policy_round(record)
        if not self._stop.requested:
            self._evaluation.round_finished()
        self._save()

    def _update_on_policy(self, samples: List[Any]) -> None:
        trained = self._coordinator.train_count
        self._train_once()
        if self._coordinator.train_count == trained:
            raise _RoundDropped

    # ---------------------------------------------------------------- threads

    def _run_threads(self) -> None:
        threads = [
            threading.Thread(
                target=self._role_thread,
                args=(f'collector-{index}', lambda loop=loop: self._collect_all(loop), self._collector_ended),
                name=f'lzero-async-collector-{index}',
                daemon=True,
            )
            for index, loop in enumerate(self._collectors)
        ]
        threads.append(
            threading.Thread(
                target=self._role_thread,
                args=('learner', self._train_all, lambda: None),
                name='lzero-async-learner',
                daemon=True,
            )
        )
        self._running = len(threads)
        for thread in threads:
            thread.start()
        self._supervise(threads)

    def _supervise(self, threads: List[threading.Thread]) -> None:
        while self._roles_run():
            self._doorbell.wait(self._channels.settings.generation_timeout / 4)
            if self._stop.interrupted:
                self._abort('interrupt')
            if self._stalled:
                break
            for collector in self._collectors:
                collector.report_overdue()
        for thread in threads:
            # One that hangs is left behind: it is a daemon, and ends with the process.
            thread.join(LEAVING_S if self._stalled else None)
        if self._stalled and threads[-1].is_alive() and self._failure is not None:
            # It hangs amid an update: what it holds is not fit to be saved.
            self._failure = RoleFailed('learner', self._failure.__cause__ or self._failure)

    def _watch(self) -> ContextManager[Any]:
        settings, channels = self._channels.settings, self._channels
        if settings.stall_timeout is None:
            return contextlib.nullcontext()
        return Watchdog(
            settings.stall_timeout, lambda: (channels.whereabouts.moves, channels.stop.times_asked),
            channels.whereabouts.lines, self._on_stall,
        )

    def _on_stall(self, report: str) -> None:
        self._tell_stall(report)
        if self._channels.settings.stall_ends_run:
            self._fail(RoleFailed(self._at_work, Stalled(report.split('\n\n')[0])))
            self._stalled = True
            if not self._coordinator.is_synchronous:
                self._doorbell.ring()
            elif not self._doorbell.break_in():
                logger.error('the run cannot be ended: it hangs in a thread that no signal reaches')

    def _roles_run(self) -> bool:
        with self._lock:
            return self._running > 0

    def _role_thread(self, role: str, work: Callable[[], None], ended: Callable[[], None]) -> None:
        try:
            with ctrl_c_blocked(), self._role_context(role):
                work()
        except (Stopped, QueueClosed):
            pass
        except BaseException as error:  # whatever it is, a role must not die unheard
            self._fail(error if isinstance(error, RoleFailed) else RoleFailed(role, error))
        ended()
        with self._lock:
            self._running -= 1
        self._doorbell.ring()

    def _collect_all(self, loop: CollectorLoop) -> None:
        while True:
            batch = loop.step()
            if batch.env_step >= self._limits.max_env_step:
                self.request_stop('max_env_step')

    def _collector_ended(self) -> None:
        with self._lock:
            self._collecting -= 1
            last = self._collecting == 0
        if last:
            self._queue.close()

    def _train_all(self) -> None:
        with contextlib.suppress(QueueClosed):
            while True:
                self._train_once()
                # Also while the last rounds are trained after a stop: they are as good as any to evaluate.
                self._evaluation.round_finished()
                self._save()
        self._evaluation.finish()

    # ---------------------------------------------------------------- both

    def _who_collects(self) -> str:
        return ', '.join(collector.describe() for collector in self._collectors)

    def _train_once(self) -> None:
        limit = self._learner_loop.step()
        if limit is not None:
            self.request_stop(limit)

    def _settle(self, keep: bool) -> None:
        """What was collected and not trained is kept in the buffer if that is going to be saved, else given up."""
        while self._channels.left_over:
            batch = self._channels.left_over.pop(0)
            if keep:
                self._learner_loop.keep(batch)
            else:
                self._channels.samples.discarded(batch.transitions)

    def _save(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.round_finished(self.state)

    def _abort(self, reason: str) -> None:
        self._stop.abort(reason)
        self._channels.leave()

    def _fail(self, failure: RoleFailed) -> None:
        with self._lock:
            self._failure = self._failure or failure
        if isinstance(failure.__cause__, RestartsExhausted):
            self.request_stop('failure')  # what was collected is sound, and worth training on
        else:
            self._abort('failure')
