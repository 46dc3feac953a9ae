"""AsyncTrainingCoordinator: the counters, and the gates that keep collecting and training within their lag."""
from __future__ import annotations

import asyncio
import inspect
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Optional, TypeVar, Union

from .activity import KINDS, Activity, ActivityClock
from .checks import boolean, integer
from .control_law import AUTO_DEGREE, auto_degree, may_collect, may_train
from .errors import GateTimeout, Stopped
from .statistics import Statistics

T = TypeVar('T')


class AsyncTrainingCoordinator:
    """Lets collect, train and evaluate overlap, with collecting at most `off_policy_degree` rounds ahead.

    | off_policy_degree | mode |
    |---|---|
    | 0 | serial: collect and train take turns |
    | N > 0 | asynchronous: at most N rounds are collected and not yet trained |
    | -1 | asynchronous, N = max(1, buffer_size // batch_size // 10) |

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        degree = integer(AUTO_DEGREE)('off_policy_degree', off_policy_degree)
        buffer_size = integer(1)('buffer_size', buffer_size)
        batch_size = integer(1)('batch_size', batch_size)
        self._enable_async_eval = boolean('enable_async_eval', enable_async_eval)
        self._max_train_ahead = None if max_train_ahead is None else integer(0)('max_train_ahead', max_train_ahead)
        self._degree = auto_degree(buffer_size, batch_size) if degree == AUTO_DEGREE else degree
        self._clock = clock

        # Guards all that follows. Both gates wait on it: the progress of one role opens the gate of the other.
        self._changed = threading.Condition(threading.Lock())
        self._finished = {kind: 0 for kind in KINDS}
        self._in_flight = {kind: 0 for kind in KINDS}
        self._work_time = {kind: 0.0 for kind in KINDS}
        self._wait_time = {kind: 0.0 for kind in KINDS}
        self._max_lag = 0
        self._activity = ActivityClock(clock)
        self._stop_requested = False
        self._closed = False
        self._evaluator: Optional[ThreadPoolExecutor] = None
        self._evals: List['Future[Any]'] = []

    # ---------------------------------------------------------------- the law

    def can_collect(self) -> bool:
        """Whether a collect could start now."""
        with self._changed:
            return self._may_collect()

    def can_train(self) -> bool:
        """Whether a round could be trained now."""
        with self._changed:
            return self._may_train()

    @property
    def off_policy_degree(self) -> int:
        """The degree in force; never -1."""
        return self._degree

    @property
    def is_synchronous(self) -> bool:
        return self._degree == 0

    @property
    def max_train_ahead(self) -> Optional[int]:
        return self._max_train_ahead

    @property
    def collect_train_lag(self) -> int:
        with self._changed:
            return self._lag()

    @property
    def train_count(self) -> int:
        with self._changed:
            return self._finished['train']

    # ---------------------------------------------------------------- the work

    def run_collect(self, fn: Callable[[], T], timeout: Optional[float] = None) -> T:
        """Wait until collecting is allowed, run `fn`, count a collected round, return what `fn` returned.

        Raises `Stopped` once a stop was requested, and `GateTimeout` after `timeout` seconds at the gate.
        """
        return self._run('collect', self._may_collect, fn, timeout)

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
        with self._changed:
            if self._closed:
                raise Stopped('the coordinator is closed')
            if self._evaluator is None:
                self._evaluator = ThreadPoolExecutor(max_workers=1, thread_name_prefix='lzero-async-evaluator')
            # A failure stays in the list until wait_for_eval() raises it; what ended well can go.
            self._evals = [f for f in self._evals if not f.done() or _has_failed(f)]
            future = self._evaluator.submit(self._run, 'eval', lambda: True, fn, None)
            self._evals.append(future)
            return future

    def wait_for_eval(self, timeout: Optional[float] = None) -> Any:
        """Wait for the background evaluations asked for so far, for at most `timeout` seconds in all.

        Returns the last result, raises the first failure; what was not waited for can be waited for again.
        """
        with self._changed:
            waiting = list(self._evals)
        give_up_at = None if timeout is None else time.monotonic() + timeout
        result = None
        for future in waiting:
            try:
                if not future.cancelled():
                    result = future.result(None if give_up_at is None else max(0.0, give_up_at - time.monotonic()))
            finally:
                if future.done():
                    self._forget(future)
        return result

    @property
    def eval_in_progress(self) -> bool:
        """Whether a background evaluation is running or waiting to."""
        with self._changed:
            return any(not future.done() for future in self._evals)

    # ---------------------------------------------------------------- the counts

    def get_statistics(self) -> Statistics:
        """A consistent, read-only copy of all counts and times (seconds)."""
        with self._changed:
            overlap = self._activity.read().overlap
            numbers: Dict[str, Any] = {
                'collect_count': self._finished['collect'],
                'train_count': self._finished['train'],
                'eval_count': self._finished['eval'],
                'collect_train_lag': self._lag(),
                'max_lag': self._max_lag,
                'collects_in_flight': self._in_flight['collect'],
                'mode': 'synchronous' if self._degree == 0 else 'asynchronous',
                'off_policy_degree': self._degree,
                'overlap_time': overlap,
            }
            for kind in KINDS:
                count = self._finished[kind]
                numbers[f'{kind}_total_time'] = self._work_time[kind]
                numbers[f'{kind}_avg_time'] = self._work_time[kind] / count if count else 0.0
                numbers[f'{kind}_wait_time'] = self._wait_time[kind]
        return Statistics(numbers)

    def activity(self) -> Activity:
        """Who was busy for how long, since the coordinator was made or its counters were reset."""
        with self._changed:
            return self._activity.read()

    def reset_counters(self) -> None:
        """Set all counts and times to zero. Work in flight goes on, and is counted when it finishes."""
        with self._changed:
            for numbers in (self._finished, self._work_time, self._wait_time):
                numbers.update((kind, 0) for kind in KINDS)
            self._max_lag = 0
            self._activity.reset()
            self._changed.notify_all()

    # ---------------------------------------------------------------- the end

    def request_stop(self) -> None:
        """Let no further collect start. Owed rounds may still be trained."""
        with self._changed:
            self._stop_requested = True
            self._changed.notify_all()

    def close(self, wait: bool = True) -> None:
        """Let nothing start any more and wake all who wait; with `wait`, wait for a running evaluation to end."""
        with self._changed:
            self._stop_requested = self._closed = True
            self._changed.notify_all()
            evaluator = self._evaluator
        if evaluator is not None:
            evaluator.shutdown(wait=wait)

    def __enter__(self) -> 'AsyncTrainingCoordinator':
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---------------------------------------------------------------- inside; _forget and _run take the lock themselves

    def _forget(self, future: 'Future[Any]') -> None:
        with self._changed:
            self._evals = [other for other in self._evals if other is not future]

    def _lag(self) -> int:
        return self._finished['collect'] - self._finished['train']

    def _may_collect(self) -> bool:
        return may_collect(
            self._degree, self._finished['collect'], self._in_flight['collect'], self._finished['train']
        )

    def _may_train(self) -> bool:
        return may_train(
            self._degree,
            self._finished['collect'],
            self._finished['train'],
            self._in_flight['train'],
            self._max_train_ahead,
        )

    def _stopped(self, kind: str) -> bool:
        return self._closed or (kind == 'collect' and self._stop_requested)

    def _run(self, kind: str, allowed: Callable[[], bool], fn: Callable[[], T], timeout: Optional[float]) -> T:
        asked = self._clock()
        with self._changed:
            opened = self._changed.wait_for(lambda: self._stopped(kind) or allowed(), timeout)
            if self._stopped(kind):
                raise Stopped(f'no further {kind} may start: the run is stopping')
            if not opened:
                raise GateTimeout(self._why_closed(kind, timeout))
            begun = self._clock()
            self._wait_time[kind] += begun - asked
            self._in_flight[kind] += 1
            self._activity.start(kind)
        finished = False
        try:
            result: T = _call(fn)
            finished = True
            return result
        finally:
            with self._changed:
                self._in_flight[kind] -= 1
                self._activity.stop(kind)
                if finished:
                    self._finished[kind] += 1
                    self._work_time[kind] += self._clock() - begun
                    self._max_lag = max(self._max_lag, self._lag())
                self._changed.notify_all()

    def _why_closed(self, kind: str, timeout: Optional[float]) -> str:
        waits_for = 'training' if kind == 'collect' else 'collecting'
        return (
            f'{kind} waited {timeout} s for {waits_for}: collect_count={self._finished["collect"]}, '
            f'train_count={self._finished["train"]}, collects in flight={self._in_flight["collect"]}, '
            f'off_policy_degree={self._degree}, max_train_ahead={self._max_train_ahead}'
        )


def _has_failed(future: 'Future[Any]') -> bool:
    return not future.cancelled() and future.exception() is not None


def _call(fn: Callable[[], Any]) -> Any:
    result = fn()
    if not inspect.isawaitable(result):
        return result

    async def finish() -> Any:
        return await result

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(finish())
    # The caller sits inside a running loop, which cannot be entered twice: use one in a thread of its own.
    with ThreadPoolExecutor(max_workers=1) as helper:
        return helper.submit(asyncio.run, finish()).result()
