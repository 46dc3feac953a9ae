"""AsyncTrainingCoordinator: the counters, and the gates that keep collecting and training within their lag."""
from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from typing import Any, Callable, Dict, Mapping, Optional, TypeVar, Union

from .activity import KINDS, Activity, ActivityClock
from .autotune import DegreeChange, DegreeController
from .background import Background
from .calls import call
from .checks import boolean, integer
from .control_law import AUTO_DEGREE, auto_degree, may_collect, may_train
from .counts import RoundCounts
from .errors import BoundBroken, GateTimeout, Stopped
from .statistics import Statistics
from .strain import TrainingSignals
from .waiting_line import WaitingLine

logger = logging.getLogger(__name__)

T = TypeVar('T')


class AsyncTrainingCoordinator:
    """Lets collect, train and evaluate overlap, with collecting at most `off_policy_degree` rounds ahead.

    | off_policy_degree | mode |
    |---|---|
    | 0 | serial: collect and train take turns |
    | N > 0 | asynchronous: at most N rounds are collected and not yet trained |
    | -1 | asynchronous, N begins at max(1, buffer_size // batch_size // 10) and adapts while rounds are trained |

    Any thread may call any member. The `run_*` calls wait for their gate, run the function in the calling thread and
    count it when it returns; a function that raises is not counted, and its slot is free again. A function may be a
    coroutine function: it is awaited on a private event loop before the call returns. Functions must not call back
    into `run_*` of the same kind.
    """

    def __init__(
        self,
        off_policy_degree: int = 0,
        enable_async_eval: bool = False,
        buffer_size: int = 10000,
        batch_size: int = 32,
        *,
        max_train_ahead: Optional[int] = None,
        min_off_policy_degree: int = 1,
        max_off_policy_degree: Optional[int] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        degree = integer(AUTO_DEGREE)('off_policy_degree', off_policy_degree)
        buffer_size = integer(1)('buffer_size', buffer_size)
        batch_size = integer(1)('batch_size', batch_size)
        self._enable_async_eval = boolean('enable_async_eval', enable_async_eval)
        self._max_train_ahead = None if max_train_ahead is None else integer(0)('max_train_ahead', max_train_ahead)
        self._clock = clock
        self._background = Background('lzero-async-evaluator')

        # Guards all that follows. At each gate there is a line: the progress of one role opens the gate of the other.
        self._lock = threading.Lock()
        self._lines = {kind: WaitingLine(self._lock) for kind in KINDS}
        self._controller: Optional[DegreeController] = None
        if degree == AUTO_DEGREE:
            start = auto_degree(buffer_size, batch_size)
            self._controller = DegreeController(start, min_off_policy_degree, max_off_policy_degree)
            degree = self._controller.degree
        self._degree: int = degree
        self._signals: Optional[TrainingSignals] = None
        self._counts = RoundCounts()
        self._activity = ActivityClock(clock)
        self._stop_requested = False
        self._closed = False

    # ---------------------------------------------------------------- the law

    def can_collect(self) -> bool:
        """Whether a collect could start now."""
        with self._lock:
            return self._may_collect()

    def can_train(self) -> bool:
        """Whether a round could be trained now."""
        with self._lock:
            return self._may_train()

    @property
    def off_policy_degree(self) -> int:
        """The degree in force; never -1. A lowered one comes into force as outstanding rounds are trained."""
        with self._lock:
            return self._degree_in_force()

    @property
    def highest_degree(self) -> int:
        """What the degree can grow to while the run goes on; a fixed degree stays as it is."""
        return self._degree if self._controller is None else self._controller.highest

    @property
    def is_synchronous(self) -> bool:
        return self._degree == 0

    @property
    def max_train_ahead(self) -> Optional[int]:
        return self._max_train_ahead

    @property
    def collect_train_lag(self) -> int:
        with self._lock:
            return self._counts.lag

    @property
    def train_count(self) -> int:
        with self._lock:
            return self._counts.finished['train']

    # ---------------------------------------------------------------- the work

    def run_collect(
        self, fn: Callable[[], T], timeout: Optional[float] = None,
        overdue: Optional[Callable[[GateTimeout], None]] = None,
    ) -> T:
        """Wait until collecting is allowed, run `fn`, count a collected round, return what `fn` returned.

        Raises `Stopped` once a stop was requested, and `GateTimeout` after `timeout` seconds at the gate; or tells it
        to `overdue` every `timeout` seconds, and keeps its place in the line.
        """
        return self._run('collect', self._may_collect, fn, timeout, overdue)

    def run_train(self, fn: Callable[[], T], timeout: Optional[float] = None) -> T:
        """Wait until training is allowed, run `fn`, count a trained round, return what `fn` returned.

        Raises `Stopped` once closed, and `GateTimeout` after `timeout` seconds at the gate.
        """
        return self._run('train', self._may_train, fn, timeout)

    def run_eval(self, fn: Callable[[], T]) -> Union[T, 'Future[T]']:
        """Evaluate. Blocks and returns the result; with `enable_async_eval` returns a Future at once.

        Background evaluations run one at a time, in the order in which they were asked for.
        """
        if not self._enable_async_eval:
            return self._run('eval', lambda: True, fn, None)
        return self._background.submit(lambda: self._run('eval', lambda: True, fn, None))

    def wait_for_eval(self, timeout: Optional[float] = None) -> Any:
        """Wait for the background evaluations asked for so far, for at most `timeout` seconds in all.

        Returns the last result, raises the first failure; what was not waited for can be waited for again.
        """
        return self._background.wait(timeout)

    @property
    def eval_in_progress(self) -> bool:
        """Whether a background evaluation is running or waiting to."""
        return self._background.in_progress

    def drop_round(self) -> None:
        """A collected round will not be trained: it no longer counts towards the lag."""
        with self._lock:
            self._counts.dropped += 1
            self._wake()

    def report_signals(self, signals: TrainingSignals) -> None:
        """What the learner says of the round it is training; heard by the degree that tunes itself."""
        with self._lock:
            self._signals = signals

    # ---------------------------------------------------------------- the counts

    def get_statistics(self) -> Statistics:
        """A consistent, read-only copy of all counts and times (seconds)."""
        with self._lock:
            return Statistics({
                **self._counts.numbers(),
                'mode': 'synchronous' if self._degree == 0 else 'asynchronous',
                'off_policy_degree': self._degree_in_force(),
                'overlap_time': self._activity.read().overlap,
            })

    def activity(self) -> Activity:
        """Who was busy for how long, since the coordinator was made or its counters were reset."""
        with self._lock:
            return self._activity.read()

    def reset_counters(self) -> None:
        """Set all counts and times to zero. Work in flight goes on, and is counted when it finishes."""
        with self._lock:
            self._counts.reset()
            self._activity.reset()
            self._wake()

    def state(self) -> Dict[str, Any]:
        """The counts, and where the degree that tunes itself stands; plain values."""
        with self._lock:
            return {
                'counts': self._counts.state(),
                'controller': None if self._controller is None else self._controller.state(),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, before anything has started."""
        with self._lock:
            self._counts.restore(state['counts'])
            if self._controller is not None and state['controller'] is not None:
                self._controller.restore(state['controller'])
                self._degree = self._controller.degree

    # ---------------------------------------------------------------- the end

    def request_stop(self) -> None:
        """Let no further collect start. Owed rounds may still be trained."""
        with self._lock:
            self._stop_requested = True
            self._wake()

    def close(self, wait: bool = True) -> None:
        """Let nothing start any more and wake all who wait; with `wait`, wait for a running evaluation to end."""
        with self._lock:
            self._stop_requested = self._closed = True
            self._wake()
        self._background.close(wait)

    def __enter__(self) -> 'AsyncTrainingCoordinator':
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---------------------------------------------------------------- inside; only _run takes the lock itself

    def _degree_in_force(self) -> int:
        return max(self._degree, self._counts.outstanding) if self._degree else 0

    def _may_collect(self) -> bool:
        counts = self._counts
        return may_collect(self._degree, counts.kept, counts.in_flight['collect'], counts.finished['train'])

    def _may_train(self) -> bool:
        counts = self._counts
        return may_train(
            self._degree, counts.kept, counts.finished['train'], counts.in_flight['train'], self._max_train_ahead
        )

    def _stopped(self, kind: str) -> bool:
        return self._closed or (kind == 'collect' and self._stop_requested)

    def _run(
        self, kind: str, allowed: Callable[[], bool], fn: Callable[[], T], timeout: Optional[float],
        overdue: Optional[Callable[[GateTimeout], None]] = None,
    ) -> T:
        asked = self._clock()
        with self._lock:
            opened = self._lines[kind].wait(
                allowed, lambda: self._stopped(kind), timeout, lambda: self._tell_overdue(kind, timeout, overdue)
            )
            if self._stopped(kind):
                raise Stopped(f'no further {kind} may start: the run is stopping')
            if not opened:
                raise self._gate_timeout(kind, timeout)
            self._check_lag(kind)
            begun = self._clock()
            self._counts.begin(kind, waited=begun - asked)
            self._activity.start(kind)
        change: Optional[DegreeChange] = None
        finished = False
        try:
            result: T = call(fn)
            finished = True
            return result
        finally:
            with self._lock:
                self._counts.end(kind)
                self._activity.stop(kind)
                if finished:
                    seconds = self._clock() - begun
                    self._counts.finish(kind, seconds)
                    change = self._tune(kind, seconds)
                self._wake()
            if change is not None:
                logger.info('off_policy_degree is %d from now on: %s', change.degree, change.reason)

    def _gate_timeout(self, kind: str, timeout: Optional[float]) -> GateTimeout:
        other = 'training' if kind == 'collect' else 'collecting'
        limits = f'off_policy_degree={self._degree}, max_train_ahead={self._max_train_ahead}'
        return GateTimeout(f'{kind} waited {timeout} s for {other}: {self._counts}, {limits}')

    def _tell_overdue(
        self, kind: str, timeout: Optional[float], overdue: Optional[Callable[[GateTimeout], None]]
    ) -> bool:
        if overdue is None:
            return False
        waited = self._gate_timeout(kind, timeout)
        self._lock.release()  # who is told may take locks of its own
        try:
            overdue(waited)
        finally:
            self._lock.acquire()
        return True

    def _wake(self) -> None:
        """Something has changed that may open a gate."""
        for line in self._lines.values():
            if self._stop_requested:
                line.wake_all()
            else:
                line.wake_first()

    def _check_lag(self, kind: str) -> None:
        """The gate has let this through; still, a bound that is guaranteed is checked."""
        outstanding = self._counts.outstanding + 1
        if kind == 'collect' and outstanding > max(1, self._degree):
            raise BoundBroken(f'lag must be <= off_policy_degree {self._degree}, got {outstanding} with this collect')

    def _tune(self, kind: str, seconds: float) -> Optional[DegreeChange]:
        """Tell the controller, if there is one, what a finished piece of work took."""
        change: Optional[DegreeChange] = None
        if self._controller is not None and kind == 'collect':
            self._controller.collected(seconds)
        elif self._controller is not None and kind == 'train':
            signals, self._signals = self._signals, None
            change = self._controller.trained(seconds, self._counts.most_collects, signals)
            self._degree = self._controller.degree
        return change
