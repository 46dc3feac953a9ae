"""EvaluationSchedule: starts an evaluation when one is due, on the learner's newest published weights."""
from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any, Callable, ContextManager, Dict, Mapping, Optional

from .channels import Channels
from .errors import RestartsExhausted, RoleFailed, Stopped, WorkerLost
from .protocols import Evaluation, Evaluator, Learner, Observer, Replaceable, Resumable
from .weights import WeightSnapshot

logger = logging.getLogger(__name__)


class EvaluationSchedule:
    """One that falls due while another runs waits for it, and then takes the newest weights of that moment."""

    def __init__(
        self,
        evaluator: Evaluator,
        learner: Learner,
        channels: Channels,
        observer: Observer,
        context: Callable[[], ContextManager[Any]],
        on_failure: Callable[[RoleFailed], None],
        on_stop_value: Callable[[], None],
    ) -> None:
        self._evaluator = evaluator
        self._learner = learner
        self._channels = channels
        self._target = channels.weights.attach('evaluator', evaluator)
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
        published = self._channels.weights.latest()
        if published.policy_version != self._learner.train_iter:
            return  # the learner's weights were not finite: it stays due
        snapshot = replace(published, learner_state=self._learner.state())
        with self._lock:
            if not self._due:
                return  # the evaluator's thread took the snapshot of an earlier round meanwhile
            self._waiting = snapshot
            if self._running:
                return
            self._running = True
        self._channels.coordinator.run_eval(self._evaluate)

    def state(self) -> Dict[str, Any]:
        """Plain values. One that has begun or waits is due again."""
        with self._lock:
            due = self._due or self._running
        own = self._evaluator.state() if isinstance(self._evaluator, Resumable) else None
        return {'due': due, 'evaluator': None if own is None else dict(own)}

    def restore(self, state: Mapping[str, Any]) -> None:
        with self._lock:
            self._due = state['due']
        if isinstance(self._evaluator, Resumable) and state['evaluator'] is not None:
            self._evaluator.restore(state['evaluator'])

    def finish(self) -> None:
        """Wait until no evaluation is running or waiting."""
        while self._channels.coordinator.eval_in_progress:
            self._channels.coordinator.wait_for_eval()

    def _evaluate(self) -> None:
        with self._lock:
            snapshot, self._waiting, self._due = self._waiting, None, False
        assert snapshot is not None
        try:
            evaluation = self._play(snapshot)
            if evaluation is not None:
                self._observer.on_evaluation(evaluation)
        except (Stopped, KeyboardInterrupt):
            raise
        except RestartsExhausted as error:
            self._on_failure(RoleFailed('evaluator', error))
            return  # and so none starts any more, while the rest of the run ends in order
        except BaseException as error:
            failure = RoleFailed('evaluator', error)
            self._on_failure(failure)
            raise failure from error
        if evaluation is not None and evaluation.stop:
            self._on_stop_value()
        self._channels.whereabouts.note('evaluator', 'waits for the next evaluation to fall due')
        with self._lock:
            self._running = self._waiting is not None
            again = self._running
        if again:
            self._channels.coordinator.run_eval(self._evaluate)

    def _play(self, snapshot: WeightSnapshot) -> Optional[Evaluation]:
        self._channels.whereabouts.note('evaluator', f'evaluates version {snapshot.policy_version}')
        with self._context():
            while True:
                try:
                    return self._play_once(snapshot)
                except WorkerLost as loss:
                    self._replace_worker(loss)

    def _replace_worker(self, loss: WorkerLost) -> None:
        if not self._channels.stop.keep_going():
            raise Stopped('the evaluator is not replaced, since the run is over') from loss
        assert isinstance(self._evaluator, Replaceable)
        self._channels.restarts.replace('evaluator', self._evaluator, loss)
        self._target.forget()

    def _play_once(self, snapshot: WeightSnapshot) -> Optional[Evaluation]:
        version, keep_going = snapshot.policy_version, self._channels.stop.keep_going
        if isinstance(self._evaluator, Replaceable):
            self._evaluator.await_ready(keep_going)
        if not self._channels.weights.deliver(self._target, snapshot) or not self._target.has(version):
            logger.warning('version %d is not evaluated: it did not reach the evaluator', version)
            return None
        with self._target.reading():
            return self._evaluator.evaluate(snapshot, keep_going)
