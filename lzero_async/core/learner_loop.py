"""LearnerLoop: take a batch, judge its age, train the updates it owes, publish the new weights."""
from __future__ import annotations

import logging
from dataclasses import replace
from typing import Callable, List, Optional, Tuple

from .channels import Channels
from .errors import EverythingDropped, Stopped
from .outstanding import Claim
from .protocols import IdleWorker, Learner, Observer, RoundRecord, RoundResult
from .segments import Piece, SegmentBatch
from .stop import RunLimits

logger = logging.getLogger(__name__)


class LearnerLoop:
    """`step` is one turn; the trainer decides which thread takes it. `who_collects` is asked when batches are late."""

    def __init__(
        self,
        learner: Learner,
        channels: Channels,
        limits: RunLimits,
        observer: Observer,
        who_collects: Callable[[], str] = lambda: 'the collectors',
    ) -> None:
        self._learner = learner
        self._channels = channels
        self._limits = limits
        self._observer = observer
        self._idle_worker = learner if isinstance(learner, IdleWorker) else None
        self._who_collects = who_collects
        self._rules = channels.settings.staleness_rules(channels.coordinator.highest_degree)
        self._granted = 0
        self._can_pay_ahead = False
        self._drops = 0
        self._published = channels.weights.get_current_version()

    def step(self) -> Optional[str]:
        """One batch. Returns the limit that the run has reached, if any; raises QueueClosed after the last batch."""
        if self._claim_ahead():
            return self._train_round(None)
        batch, claim = self._next_batch()
        fresh = self._fresh_part(batch, claim)
        if fresh is None:
            self._drop(claim)
            return None
        self._drops = 0
        if claim.paid:
            self._learner.admit(fresh)
            return None
        return self._train_round(fresh)

    def keep(self, batch: SegmentBatch) -> None:
        """Take a batch into the buffer that is not going to be trained in this run. Its updates are owed."""
        fresh = self._fresh_part(batch, Claim(paid=False, bound=self._channels.coordinator.highest_degree))
        if fresh is not None:
            self._learner.admit(fresh)

    # ---------------------------------------------------------------- the next batch

    def _claim_ahead(self) -> bool:
        coordinator = self._channels.coordinator
        if not (coordinator.max_train_ahead and self._can_pay_ahead) or self._channels.stop.requested:
            return False
        nothing_at_hand = self._channels.queue.first() is None
        return nothing_at_hand and coordinator.can_train() and self._channels.outstanding.claim_ahead()

    def _next_batch(self) -> Tuple[SegmentBatch, Claim]:
        """The batch with the oldest weights, waiting for one that may be trained."""
        queue, timeout = self._channels.queue, self._channels.settings.batch_timeout
        self._note('waits for a batch')
        self._wait_for_batches()
        while True:
            wakes, first = queue.wakes, queue.first()
            assert first is not None
            claim = self._channels.outstanding.claim(first.slot)
            if claim is not None:
                queue.remove(first)
                return first, claim
            if self._work_idly():
                continue
            self._note('waits for a batch with older weights')
            # A batch with older weights is still being collected, and one more round would make it too stale.
            if not queue.wait_for_other_first(first, timeout, wakes):
                who = self._who_collects()
                logger.warning('the learner waited %g s for a batch with older weights: %s', timeout, who)

    def _wait_for_batches(self) -> None:
        """Wait for min_batch_count batches, unless those of the last wait are not used up. Fewer after batch_timeout.
        """
        settings, queue = self._channels.settings, self._channels.queue
        if self._granted == 0:
            while not self._work_or_wait_for(settings.min_batch_count, settings.batch_timeout):
                queued = queue.statistics().queue_size
                logger.warning(
                    'the learner waited %g s for min_batch_count %d, and %s: %s', settings.batch_timeout,
                    settings.min_batch_count, f'goes on with {queued}' if queued else 'waits on', self._who_collects(),
                )
                if queued:
                    break
            self._granted = max(1, min(settings.min_batch_count, queue.statistics().queue_size))
        self._granted -= 1

    def _work_or_wait_for(self, count: int, timeout: float) -> bool:
        """`queue.wait_for`, but with idle work in place of waiting as long as there is some."""
        queue, clock = self._channels.queue, self._channels.clock
        give_up_at = clock() + timeout
        while not queue.has(count) and clock() < give_up_at and self._work_idly():
            pass
        return queue.wait_for(count, max(0.0, give_up_at - clock()))

    def _work_idly(self) -> bool:
        """Do a little of what the learner has to do besides training. False if there is nothing, or a stop is near."""
        if self._idle_worker is None or self._channels.stop.requested:
            return False
        self._note('works while it waits for a batch')
        if self._idle_worker.idle_work():
            return True
        self._note('waits for a batch')
        return False

    # ---------------------------------------------------------------- its age

    def _fresh_part(self, batch: SegmentBatch, claim: Claim) -> Optional[SegmentBatch]:
        """The batch without what is too stale or too old; None if nothing is left of it."""
        channels = self._channels
        finished, now = channels.outstanding.finished, channels.clock()
        kept: List[Piece] = []
        for piece in batch.pieces:
            stamp = batch.stamp_of(piece)
            staleness, age = stamp.staleness(finished), stamp.age(now)
            why = self._rules.why_dropped(staleness, age)
            is_late = stamp is not batch.stamp
            if why is None and is_late:
                why = self._rules.why_late(staleness, claim.bound)
            if why is None:
                kept.append(piece)
                stale = self._rules.is_stale(staleness)
                channels.samples.processed(piece.transitions, staleness, age, stale, is_late)
                continue
            channels.samples.dropped(piece.transitions)
            logger.warning(
                'dropped %d samples of version %d before round %d: %s', piece.transitions, piece.policy_version,
                finished + 1, why,
            )
        return batch.keeping(kept) if kept else None

    def _drop(self, claim: Claim) -> None:
        self._channels.outstanding.drop(claim)
        self._channels.coordinator.drop_round()
        self._drops += 1
        if self._drops >= self._rules.max_consecutive_drops:
            raise EverythingDropped(
                f'the last {self._drops} batches were all dropped (max_consecutive_drops): collecting is too slow, or '
                f'max_staleness_allowed {self._rules.max_staleness_allowed} or max_sample_age_s '
                f'{self._rules.max_sample_age_s} too low'
            )

    # ---------------------------------------------------------------- its training

    def _train_round(self, batch: Optional[SegmentBatch]) -> Optional[str]:
        """Train the round of a batch, or, with None, one in advance."""
        staleness = batch.staleness(self._channels.outstanding.finished) if batch is not None else 0
        age = batch.age(self._channels.clock()) if batch is not None else 0.0
        self._note(f'trains round {self._channels.outstanding.finished + 1}')
        result = self._channels.coordinator.run_train(lambda: self._train(batch))
        # A round trained ahead pays for a batch to come; one that makes no updates would pay with nothing.
        self._can_pay_ahead = result.sufficient and result.updates > 0
        self._tell(result, staleness, age)
        if not result.sufficient:
            return None
        return self._limits.reached(self._learner.env_step, self._learner.train_iter)

    def _train(self, batch: Optional[SegmentBatch]) -> RoundResult:
        channels = self._channels
        if batch is None:
            result = self._learner.train_ahead(channels.stop.keep_going)
        else:
            self._learner.admit(batch)
            result = self._learner.train_round(channels.stop.keep_going)
        # Before the round counts as finished: who sees the count must find the weights.
        snapshot = replace(self._learner.snapshot(), rounds=channels.outstanding.finished + 1)
        if channels.weights.publish(snapshot):
            self._published = snapshot.policy_version
        if not channels.stop.keep_going():
            raise Stopped('the round was left before its end')
        channels.outstanding.finish()
        channels.coordinator.report_signals(result.signals)
        return result

    def _note(self, what: str) -> None:
        self._channels.whereabouts.note('learner', what)

    def _tell(self, result: RoundResult, staleness: int, age: float) -> None:
        coordinator = self._channels.coordinator
        statistics = coordinator.get_statistics()
        self._observer.on_round(
            RoundRecord(
                round=statistics['train_count'],
                train_iter=self._learner.train_iter,
                env_step=self._learner.env_step,
                updates=result.updates,
                policy_version=self._published,
                staleness=staleness,
                sample_age=age,
                lag=statistics['collect_train_lag'],
                queue_size=self._channels.queue.statistics().queue_size,
                off_policy_degree=statistics['off_policy_degree'],
                activity=coordinator.activity(),
                replayed=result.replayed,
            )
        )
