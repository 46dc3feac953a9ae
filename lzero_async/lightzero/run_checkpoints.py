"""RunCheckpoints: writes down where a run stands, in the background, so that another one can go on from there."""
from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional

from ..checkpoints.store import StateStore
from .learn import LightZeroLearner
from .replay.buffer_journal import Page

logger = logging.getLogger(__name__)

RETRY_S = 30.0


@dataclass(frozen=True)
class Intervals:
    """After whichever comes first; None: never."""

    rounds: Optional[int]
    seconds: Optional[float]


@dataclass(frozen=True)
class _Taken:
    """A state on its way to the disk. Nobody changes what it holds."""

    learner: Dict[str, Any]
    page: Page
    run: Mapping[str, Any]
    taken_at: float
    """By the clock on the wall."""


class RunCheckpoints:
    """`core.protocols.Checkpoints`. The learner waits while its weights are copied; the rest is another thread's work.

    At most one state is on its way. If it cannot be written, a warning says so, training goes on, and another state is
    written a little later, with all that the failed one held.
    """

    def __init__(
        self,
        learner: LightZeroLearner,
        store: StateStore,
        intervals: Intervals,
        random_states: Callable[[], List[Any]],
        before_commit: Callable[[], None] = lambda: None,
        also: Callable[[], Mapping[str, Any]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`random_states` are those of the collectors, `also` is what else is to be saved of the run, in plain values.

        `before_commit` is called before a state counts as written.
        """
        self._learner = learner
        self._store = store
        self._intervals = intervals
        self._random_states = random_states
        self._before_commit = before_commit
        self._also = also
        self._clock = clock
        self._saver = ThreadPoolExecutor(max_workers=1, thread_name_prefix='lzero-async-saver')
        self._on_its_way: 'Optional[Future[None]]' = None
        self._page: Optional[Page] = None
        self._rounds = 0
        self._last = clock()
        self._retry_at: Optional[float] = None
        # Guards the counts, which any thread may read.
        self._lock = threading.Lock()
        self._numbers: Dict[str, Any] = {
            'checkpoint_count': 0, 'checkpoint_failures': 0, 'checkpoint_bytes': 0,
            'checkpoint_copy_time': 0.0, 'checkpoint_write_time': 0.0,
        }

    def round_finished(self, run_state: Callable[[], Mapping[str, Any]]) -> None:
        self._rounds += 1
        if self._is_idle() and self._due():
            self._save(run_state())

    def finish(self, run_state: Mapping[str, Any]) -> bool:
        """Write the last state, after the run, and wait for it. Whether it is on the disk."""
        self._wait()
        self._save(run_state)
        failure = self._settled()
        if failure is not None:
            logger.error(
                'the last state of the run could not be written, the one before it is what can be resumed: %s: %s',
                type(failure).__name__, failure,
            )
        return failure is None

    def restore(self, run_state: Mapping[str, Any]) -> None:
        """Count on from the run that wrote `run_state`."""
        with self._lock:
            self._numbers.update(run_state['checkpoints'])

    def close(self) -> None:
        self._saver.shutdown()

    def numbers(self) -> Dict[str, Any]:
        with self._lock:
            return dict(self._numbers)

    # ---------------------------------------------------------------- in the learner's thread, or after the run

    def _due(self) -> bool:
        now = self._clock()
        if self._retry_at is not None:
            return now >= self._retry_at
        rounds, seconds = self._intervals.rounds, self._intervals.seconds
        return (rounds is not None and self._rounds >= rounds) or (seconds is not None and now - self._last >= seconds)

    def _save(self, run_state: Mapping[str, Any]) -> None:
        begun = self._clock()
        learner = {**self._learner.capture(), 'collectors': self._random_states()}
        self._page = self._learner.journal.page()
        numbers = self.numbers()
        numbers['checkpoint_count'] += 1  # with this one
        taken = _Taken(learner, self._page, {**run_state, **self._also(), 'checkpoints': numbers}, time.time())
        self._on_its_way = self._saver.submit(self._write, taken)
        self._rounds, self._last, self._retry_at = 0, begun, None
        self._count(checkpoint_copy_time=self._clock() - begun)

    def _is_idle(self) -> bool:
        if self._on_its_way is not None and self._on_its_way.done():
            self._wait()
        return self._on_its_way is None

    def _wait(self) -> None:
        """Until nothing is on its way."""
        failure = self._settled()
        if failure is not None:
            self._retry_at = self._clock() + RETRY_S
            logger.warning(
                'the state of the run could not be written, training goes on, and it is tried again in %g s: %s: %s',
                RETRY_S, type(failure).__name__, failure,
            )

    def _settled(self) -> Optional[BaseException]:
        """Wait for what is on its way, if anything is, and count it. Why it could not be written, if so."""
        if self._on_its_way is None:
            return None
        failure, self._on_its_way = self._on_its_way.exception(), None
        if failure is None:
            assert self._page is not None
            self._learner.journal.written(self._page)
            self._count(checkpoint_count=1)
        else:
            self._learner.journal.not_written()
            self._count(checkpoint_failures=1)
        return failure

    def _count(self, **more: float) -> None:
        with self._lock:
            for name, number in more.items():
                self._numbers[name] += number

    # ---------------------------------------------------------------- in the saver's thread

    def _write(self, taken: _Taken) -> None:
        begun = self._clock()
        self._before_commit()
        manifest = self._store.write(
            taken.learner, taken.page.tree(), taken.page.end, taken.learner['buffer']['base_idx'], dict(taken.run),
            taken.taken_at,
        )
        seconds = self._clock() - begun
        size = manifest.learner.size + manifest.pages[-1].size
        self._count(checkpoint_write_time=seconds, checkpoint_bytes=size)
        logger.info('state %d is written: %.1f MB in %.2f s', manifest.number, size / 1e6, seconds)
