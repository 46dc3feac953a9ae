"""What each role does again and again. `step` is one turn; the trainer decides which thread takes it."""
from __future__ import annotations

import logging
import threading
import time
from typing import Any, Callable, ContextManager, Optional

from .coordinator import AsyncTrainingCoordinator
from .errors import RoleFailed, Stopped
from .protocols import Collector, Evaluator, Learner, Observer, RoundRecord, RoundResult
from .segment_queue import SegmentQueue
from .segments import SegmentBatch
from .stop import RunLimits, StopSignal
from .weights import WeightSnapshot, WeightStore

logger = logging.getLogger(__name__)


class CollectorLoop:
    """Pull weights, collect one batch with them, stamp it, queue it."""

    def __init__(
        self,
        collector: Collector,
        coordinator: AsyncTrainingCoordinator,
        queue: 'SegmentQueue[SegmentBatch]',
        store: WeightStore,
        stop: StopSignal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._collector = collector
        self._coordinator = coordinator
        self._queue = queue
        self._store = store
        self._stop = stop
        self._clock = clock

    def step(self) -> SegmentBatch:
        """Raises Stopped when no further collect may start, QueueClosed when nobody takes batches any more."""
        batch = self._coordinator.run_collect(self._collect)
        # Only now, when the round is counted, may the learner see it: train_count never passes collect_count.
        self._queue.put(batch)
        return batch

    def _collect(self) -> SegmentBatch:
        # The count is read first: a round finished in between makes the weights newer than the stamp says, not older.
        rounds_at_pull = self._coordinator.train_count
        pulled_at = self._clock()
        snapshot = self._store.latest()
        collected = self._collector.collect(snapshot, self._stop.keep_going)
        return SegmentBatch(collected, snapshot.policy_version, rounds_at_pull, pulled_at, self._clock())


class EvaluationSchedule:
    """Starts an evaluation when one is due, on the learner's newest weights.

    One that falls due while another runs waits for it, and then takes the newest weights of that moment.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        coordinator: AsyncTrainingCoordinator,
        learner: Learner,
        stop: StopSignal,
        observer: Observer,
        context: Callable[[], ContextManager[Any]],
        on_failure: Callable[[RoleFailed], None],
        on_stop_value: Callable[[], None],
    ) -> None:
        self._evaluator = evaluator
        self._coordinator = coordinator
        self._learner = learner
        self._stop = stop
        self._observer = observer
        self._context = context
        self._on_failure = on_failure
        self._on_stop_value = on_stop_value
        # Guards what the learner's and the evaluator's thread share, below.
        self._lock = threading.Lock()
        self._due = False
        self._running = False
        self._waiting: Optional[WeightSnapshot] = None

    def round_finished(self) -> None:
        """Called by the learner's thread between rounds. Blocks only where evaluation does."""
        fell_due = self._evaluator.due(self._learner.train_iter)
        with self._lock:
            self._due = self._due or fell_due
            if not self._due:
                return
        snapshot = self._learner.snapshot(with_state=True)
        with self._lock:
            if not self._due:
                return  # the evaluator's thread took the snapshot of an earlier round meanwhile
            self._waiting = snapshot
            if self._running:
                return
            self._running = True
        self._coordinator.run_eval(self._evaluate)

    def finish(self) -> None:
        """Wait until no evaluation is running or waiting."""
        while self._coordinator.eval_in_progress:
            self._coordinator.wait_for_eval()

    def _evaluate(self) -> None:
        with self._lock:
            snapshot, self._waiting, self._due = self._waiting, None, False
        assert snapshot is not None
        try:
            with self._context():
                evaluation = self._evaluator.evaluate(snapshot, self._stop.keep_going)
            self._observer.on_evaluation(evaluation)
        except (Stopped, KeyboardInterrupt):
            raise
        except BaseException as error:
            failure = RoleFailed('evaluator', error)
            failure.__cause__ = error
            self._on_failure(failure)
            raise failure from error
        if evaluation.stop:
            self._on_stop_value()
        with self._lock:
            self._running = self._waiting is not None
            again = self._running
        if again:
            self._coordinator.run_eval(self._evaluate)


class LearnerLoop:
    """Take a batch, train the updates it owes, publish the new weights, see to evaluation."""

    def __init__(
        self,
        learner: Learner,
        coordinator: AsyncTrainingCoordinator,
        queue: 'SegmentQueue[SegmentBatch]',
        store: WeightStore,
        limits: RunLimits,
        stop: StopSignal,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._learner = learner
        self._coordinator = coordinator
        self._queue = queue
        self._store = store
        self._limits = limits
        self._stop = stop
        self._observer = observer
        self._clock = clock
        self._admitted = 0
        self._can_pay_ahead = False

    def step(self) -> Optional[str]:
        """One batch. Returns the limit that the run has reached, if any; raises QueueClosed after the last batch."""
        batch = self._next_batch()
        if batch is not None and self._admitted < self._coordinator.train_count:
            self._admit(batch)  # paid for in advance
            return None
        staleness, age = self._age(batch)
        result = self._coordinator.run_train(lambda: self._train(batch))
        # A round trained ahead pays for a batch to come; one that makes no updates would pay with nothing.
        self._can_pay_ahead = result.sufficient and result.updates > 0
        self._tell(result, staleness, age)
        if not result.sufficient:
            return None
        return self._limits.reached(self._learner.env_step, self._learner.train_iter)

    def _next_batch(self) -> Optional[SegmentBatch]:
        """The next batch, waiting for one; None when there is none and training ahead is allowed."""
        if self._coordinator.max_train_ahead and self._can_pay_ahead and not self._stop.requested:
            batch = self._queue.take_nowait()
            if batch is not None or self._coordinator.can_train():
                return batch
        return self._queue.take()

    def _age(self, batch: Optional[SegmentBatch]) -> 'tuple[int, float]':
        if batch is None:
            return 0, 0.0
        return batch.staleness(self._coordinator.train_count), batch.age(self._clock())

    def _admit(self, batch: SegmentBatch) -> None:
        self._admitted += 1
        self._learner.admit(batch.collected)

    def _train(self, batch: Optional[SegmentBatch]) -> RoundResult:
        if batch is None:
            result = self._learner.train_ahead(self._stop.keep_going)
        else:
            self._admit(batch)
            result = self._learner.train_round(self._stop.keep_going)
        # Before the round counts as finished: who sees the count must find the weights.
        self._store.publish(self._learner.snapshot(with_state=False))
        if not self._stop.keep_going():
            raise Stopped('the round was left before its end')
        return result

    def _tell(self, result: RoundResult, staleness: int, age: float) -> None:
        statistics = self._coordinator.get_statistics()
        self._observer.on_round(
            RoundRecord(
                round=statistics['train_count'],
                train_iter=self._learner.train_iter,
                env_step=self._learner.env_step,
                updates=result.updates,
                policy_version=self._store.latest().policy_version,
                staleness=staleness,
                sample_age=age,
                lag=statistics['collect_train_lag'],
                queue_size=self._queue.statistics().queue_size,
                off_policy_degree=statistics['off_policy_degree'],
                activity=self._coordinator.activity(),
            )
        )
