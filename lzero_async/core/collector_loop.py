"""CollectorLoop: pull weights, collect one batch with them, stamp it, queue it."""
from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Dict, Optional

from .channels import Channels
from .errors import QueueClosed, Stopped, WeightsTooStale, WorkerLost
from .outstanding import Outlook
from .protocols import Collector, Replaceable
from .segments import Collected, SegmentBatch, Stamp
from .weights import WeightSnapshot

logger = logging.getLogger(__name__)

REMEMBERED_PULLS = 10_000


class _Paused(Exception):
    """The weights at hand are so old that a batch collected with them could not stay within its bound."""

    def __init__(self, held: WeightSnapshot, outlook: Outlook) -> None:
        super().__init__()
        self.held = held
        self.outlook = outlook


class _Superseded(Exception):
    """Other weights have arrived since the pull."""


class CollectorLoop:
    """`step` is one turn; the trainer decides which thread takes it. `describe` may be asked from any thread."""

    def __init__(self, name: str, collector: Collector, channels: Channels) -> None:
        self.name = name
        self._collector = collector
        self._channels = channels
        self._target = channels.weights.attach(name, collector)
        self._stamps: Dict[int, Stamp] = {}
        self._last_begun: Optional[float] = None
        self._collecting_since: Optional[float] = None
        self._overdue_reported: Optional[float] = None
        self.random_state: Any = None
        """Where the collector's random generators stood after its last collect."""

    def step(self) -> SegmentBatch:
        """Raises Stopped when no further collect may start, QueueClosed when nobody takes batches any more."""
        batch = self._collect_within_bound()
        self._channels.samples.generated(batch.transitions)
        # Only now, when the round is counted, may the learner see it: train_count never passes collect_count.
        self._note('waits for room in the queue')
        try:
            self._queue_up(batch)
        except QueueClosed:
            self._channels.samples.discarded(batch.transitions)
            raise
        return batch

    def _queue_up(self, batch: SegmentBatch) -> None:
        settings, queue = self._channels.settings, self._channels.queue
        while not queue.put(batch, settings.generation_timeout):
            logger.warning(
                '%s waited %g s for the learner to make room in the queue: data_queue_size is %d', self.name,
                settings.generation_timeout, settings.queue_bound,
            )

    def describe(self) -> str:
        """What this collector is doing, for who waits for it."""
        since = self._collecting_since
        if since is None:
            return f'{self.name} is not collecting'
        return f'{self.name} has been collecting for {self._channels.clock() - since:.1f} s'

    def report_overdue(self) -> None:
        """Say so once if the collect that is under way takes longer than generation_timeout."""
        since = self._collecting_since
        timeout = self._channels.settings.generation_timeout
        if since is None or since == self._overdue_reported or self._channels.clock() - since < timeout:
            return
        self._overdue_reported = since
        self._channels.samples.generation_overdue()
        logger.warning('%s: generation_timeout is %g s; the learner gets no batch from it', self.describe(), timeout)

    # ---------------------------------------------------------------- one batch

    def _collect_within_bound(self) -> SegmentBatch:
        while True:
            self._keep_interval()
            try:
                self._note('waits for its worker')
                self._await_worker()
                self._note('waits until it may collect')
                return self._channels.coordinator.run_collect(
                    self._collect, self._channels.settings.generation_timeout,
                    overdue=lambda waited: logger.warning('%s: %s', self.name, waited),
                )
            except _Superseded:
                continue
            except _Paused as paused:
                self._wait_for_newer(paused)
            except WorkerLost as loss:
                self._replace_worker(loss)

    def _await_worker(self) -> None:
        if isinstance(self._collector, Replaceable):
            self._collector.await_ready(self._channels.stop.keep_going)

    def _replace_worker(self, loss: WorkerLost) -> None:
        """Start another one, which gets the newest weights. Nothing that the learner was given is lost."""
        if self._channels.stop.requested:
            raise Stopped(f'{self.name} is not replaced, since the run is stopping') from loss
        assert isinstance(self._collector, Replaceable)
        self._channels.restarts.replace(self.name, self._collector, loss)
        self._target.forget()

    def _note(self, what: str) -> None:
        self._channels.whereabouts.note(self.name, what)

    def _keep_interval(self) -> None:
        interval = self._channels.settings.batch_generation_interval
        if self._last_begun is None or interval == 0 or self._channels.coordinator.is_synchronous:
            return
        left = self._last_begun + interval - self._channels.clock()
        if left > 0:
            self._channels.stop.wait(left)

    def _collect(self) -> SegmentBatch:
        channels = self._channels
        outlook = channels.outstanding.expect()
        try:
            snapshot = channels.weights.pull(self._target)
        except BaseException:
            channels.outstanding.leave(None)
            raise
        slot = channels.outstanding.open(snapshot.rounds, channels.coordinator.off_policy_degree)
        if slot is None:
            raise _Paused(snapshot, outlook)
        self._last_begun = self._collecting_since = channels.clock()
        stamp = Stamp(snapshot.policy_version, snapshot.rounds, self._last_begun)
        self._remember(stamp)
        self._note(f'collects with version {snapshot.policy_version}')
        try:
            collected = self._play(snapshot)
        except BaseException as error:
            channels.outstanding.leave(slot)
            channels.queue.wake()  # the learner may be waiting for this very batch
            if not isinstance(error, (Stopped, _Superseded)):
                channels.samples.generation_failed()
            raise
        finally:
            self._collecting_since = None
        self.random_state = collected.random_state
        return self._stamped(collected, stamp, slot)

    def _play(self, snapshot: WeightSnapshot) -> Collected:
        with self._target.reading() as held:
            # A load that was given up may have ended well since: then these are not the weights of the stamp.
            if held is not None and held.policy_version != snapshot.policy_version:
                raise _Superseded
            return self._collector.collect(snapshot, self._channels.stop.keep_going)

    def _stamped(self, collected: Collected, stamp: Stamp, slot: int) -> SegmentBatch:
        versions = {piece.policy_version for piece in collected.pieces} - {stamp.policy_version}
        # One that is not remembered is older than all that are, and will be dropped.
        earlier = tuple(self._stamps.get(version, Stamp(version, 0, 0.0)) for version in sorted(versions))
        env_step = self._channels.samples.stepped(collected.env_steps)
        return SegmentBatch(collected.pieces, env_step, stamp, earlier, self._channels.clock(), slot)

    def _remember(self, stamp: Stamp) -> None:
        # The same version pulled again is the same weights: as fresh as the later round says. Which of the pulls played
        # a sample that comes late is not known, so its age counts from the first.
        first = self._stamps.get(stamp.policy_version, stamp)
        self._stamps[stamp.policy_version] = replace(stamp, pulled_at=first.pulled_at)
        if len(self._stamps) > REMEMBERED_PULLS:
            del self._stamps[min(self._stamps)]

    # ---------------------------------------------------------------- a pause

    def _wait_for_newer(self, paused: _Paused) -> None:
        """Wait until newer weights may be there. Raises WeightsTooStale if none can come."""
        channels = self._channels
        finished, newest = channels.outstanding.finished, channels.weights.latest()
        if finished > paused.outlook.finished:
            return  # rounds were trained while the weights were on their way
        undelivered = newest.policy_version > paused.held.policy_version
        why = (
            f'version {newest.policy_version} did not reach it'
            if undelivered else 'no newer ones were published, since the learner\'s were not finite'
        )
        told = (
            f'{self.name} holds the weights of round {paused.held.rounds}, {finished} rounds are trained, and '
            f'off_policy_degree is {channels.coordinator.off_policy_degree}: {why}'
        )
        if paused.outlook.idle and channels.outstanding.idle and not channels.stop.requested:
            raise WeightsTooStale(f'nothing more can be collected: {told}')
        logger.warning('collection pauses: %s', told)
        channels.outstanding.wait_for_round(finished, channels.settings.sync_retry_delay if undelivered else None)
