"""Roles whose work is done by a worker: what the loops of `core` see of them."""
from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Tuple

from ..core.errors import RemoteError, Stopped, WorkerLost
from ..core.protocols import Evaluation, KeepGoing
from ..core.segments import Collected
from ..core.weights import WeightSnapshot
from .worker import Call, Launch, Reply, Worker

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.1
LEAVING_S = 10.0
"""For a worker that was asked to leave its work."""
CLOSING_S = 10.0

Curves = List[Tuple[str, float, int]]
"""Points that the host drew meanwhile: curve, value, step."""


@dataclass(frozen=True)
class Patience:
    """Seconds until a worker counts as hung."""

    start: float = 300.0
    """In all, to begin with."""
    step: float = 30.0
    """Between two environment steps."""
    load: float = 30.0


class Interval(Protocol):
    """When evaluations fall due."""

    @property
    def last(self) -> int: ...

    def restore(self, last: int) -> None: ...

    def due(self, train_iter: int) -> bool: ...


@dataclass(frozen=True)
class Told:
    """What a role brings back from its worker, beside the result itself."""

    result: Any
    curves: Curves


class RemoteRole:
    """`core.protocols.Replaceable`. `place` is where weights lie for the worker; `draw` gets the host's curves.

    Whatever ends a worker, its calls raise WorkerLost from then on, until it is replaced.
    """

    def __init__(
        self, name: str, launch: Launch, place: Any, patience: Patience,
        draw: Callable[[str, float, int], None] = lambda curve, value, step: None,
    ) -> None:
        self.name = name
        self.device = place
        self.work_seconds = 0.0
        self.call_seconds = 0.0
        self._launch = launch
        self._patience = patience
        self._draw = draw
        self._launched = 0
        self._ready = self._was_ready = False
        self._loss: Optional[WorkerLost] = None
        # Guards _started and _launched: the learner's thread may start an evaluator that its own thread replaces.
        self._starting = threading.Lock()
        self._started: Optional[Worker] = None

    def start(self) -> None:
        """Start the worker, if there is none, and return at once."""
        with self._starting:
            self._start_next()

    def await_ready(self, keep_going: KeepGoing) -> None:
        if self._ready:
            return
        self.start()
        give_up_at = time.monotonic() + self._patience.start
        while True:
            if not keep_going():
                raise Stopped(f'{self.name} was starting')
            reply = self._poll()
            if reply is not None:
                break
            if time.monotonic() > give_up_at:
                self._lose(WorkerLost(f'{self.name} did not start within {self._patience.start:g} s'))
        if reply.raised is not None:
            if not self._was_ready:
                # The first one, and it did not die: the next would only raise the same.
                raise RemoteError(f'{self.name} could not be made: {reply.raised}')
            self._lose(WorkerLost(f'{self.name} could not be made: {reply.raised}'))
        self._ready = self._was_ready = True

    def replace(self) -> None:
        self._worker.kill()
        with self._starting:
            self._ready, self._loss, self._started = False, None, None
            self._start_next()

    def load_weights(self, weights: Any, policy_version: int) -> None:
        """`weights` are what `place` made of them."""
        reply = self._call(Call('load_weights', (weights, policy_version)), self._patience.load)
        if reply.raised is not None:
            raise RemoteError(f'{self.name} did not load version {policy_version}: {reply.raised}')

    def close(self) -> None:
        if self._started is not None:
            self._started.close(CLOSING_S if self._ready and self._loss is None else 0.0)

    # ---------------------------------------------------------------- calls

    def _work(self, method: str, *args: Any, keep_going: KeepGoing) -> Any:
        """The result of a call that works step by step."""
        begun = time.perf_counter()
        reply = self._call(Call(method, args), self._patience.step, keep_going)
        if reply.stopped:
            raise Stopped(f'{self.name} left its work before its end')
        if reply.raised is not None:
            self._lose(WorkerLost(f'{self.name} raised {reply.raised}'))
        self.work_seconds += reply.seconds
        self.call_seconds += time.perf_counter() - begun
        told: Told = reply.value
        for curve, value, step in told.curves:
            self._draw(curve, value, step)
        return told.result

    def _call(self, call: Call, patience: float, keep_going: KeepGoing = lambda: True) -> Reply:
        """Send, and wait as long as the worker goes on."""
        if self._loss is not None:
            raise self._loss
        self._send(call)
        beats, beaten_at = self._worker.beats(), time.monotonic()
        leave_until: Optional[float] = None
        while True:
            reply = self._poll()
            if reply is not None:
                return reply
            now = time.monotonic()
            if leave_until is None and not keep_going():
                self._worker.ask_to_leave()
                leave_until = now + LEAVING_S
            if leave_until is not None and now > leave_until:
                raise Stopped(f'{self.name} was left in the middle of its work')
            if self._worker.beats() != beats:
                beats, beaten_at = self._worker.beats(), now
            elif now - beaten_at > patience:
                self._lose(WorkerLost(f'{self.name} hung: nothing came of {call.method} for {patience:g} s'))

    def _send(self, call: Call) -> None:
        try:
            self._worker.send(call)
        except WorkerLost as loss:
            self._lose(loss)

    def _poll(self) -> Optional[Reply]:
        try:
            return self._worker.poll(LOOK_INTERVAL_S)
        except WorkerLost as loss:
            self._lose(loss)
            raise

    def _lose(self, loss: WorkerLost) -> None:
        self._loss = loss
        raise loss

    def _start_next(self) -> None:
        if self._started is None:
            self._started = self._launch(self._launched)
            self._launched += 1

    @property
    def _worker(self) -> Worker:
        assert self._started is not None
        return self._started


class RemoteCollector(RemoteRole):
    """`core.protocols.Collector` over a worker that serves one."""

    def collect(self, snapshot: WeightSnapshot, keep_going: KeepGoing) -> Collected:
        collected: Collected = self._work('collect', _light(snapshot), keep_going=keep_going)
        return collected

    def collect_random(self, policy_version: int) -> Collected:
        """One batch of random actions; what ends it is raised."""
        collected: Collected = self._work('collect_random', policy_version, keep_going=lambda: True)
        return collected


class RemoteEvaluator(RemoteRole):
    """`core.protocols.Evaluator` over a worker that serves one.

    When one is due, what was best so far and the saving of it stay on this side: a worker can be lost.
    """

    def __init__(
        self, name: str, launch: Launch, place: Any, patience: Patience, draw: Callable[[str, float, int], None],
        interval: Interval, save_best: Callable[[Any], None],
    ) -> None:
        super().__init__(name, launch, place, patience, draw)
        self._interval = interval
        self._save_best = save_best
        self._best = float('-inf')

    def due(self, train_iter: int) -> bool:
        self.start()  # with the first round: before that it would only slow the others' start
        return self._interval.due(train_iter)

    def state(self) -> Dict[str, Any]:
        return {'last_eval_iter': self._interval.last, 'best': self._best}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._interval.restore(state['last_eval_iter'])
        self._best = state['best']

    def evaluate(self, snapshot: WeightSnapshot, keep_going: KeepGoing) -> Evaluation:
        evaluation: Evaluation = self._work('evaluate', _light(snapshot), keep_going=keep_going)
        is_best = evaluation.reward_mean > self._best
        if is_best:
            self._best = evaluation.reward_mean
            self._save_best(snapshot.learner_state)
        return replace(evaluation, is_best=is_best)


def _light(snapshot: WeightSnapshot) -> WeightSnapshot:
    """Without what the worker has already, or has no use for."""
    return replace(snapshot, weights=None, learner_state=None)
