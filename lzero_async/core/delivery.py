"""WeightTarget: one receiver of weights, brought from version to version with retries and time-outs."""
from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional

from .errors import Stopped, SyncTimeout, WorkerLost
from .weights import WeightSnapshot

logger = logging.getLogger(__name__)

Load = Callable[[Any, WeightSnapshot], None]
"""Puts all of a snapshot into a receiver, or raises and leaves it as it was."""


@dataclass(frozen=True)
class SyncRules:
    max_sync_retries: int = 3
    """Attempts after the first."""
    sync_timeout: float = 30.0
    sync_retry_delay: float = 1.0


class WeightTarget:
    """Any thread may call any member; deliveries to one target take turns. It never goes back to an older version.

    Each attempt runs in a thread of its own, since nothing else can be left behind when it hangs. One that was left
    behind before it began to load does not load any more. One that was left behind while it loads still counts if it
    ends well later; until it ends, further attempts fail, and who wants to read waits.
    """

    def __init__(self, name: str, receiver: Any, load: Load, rules: SyncRules, closing: threading.Event) -> None:
        self.name = name
        self._receiver = receiver
        self._load = load
        self._rules = rules
        self._closing = closing
        self._delivering = threading.Lock()  # one delivery at a time
        # Guards all that follows; attempts, readers and those who wait for them wait on it.
        self._changed = threading.Condition(threading.Lock())
        self._held: Optional[WeightSnapshot] = None
        self._attempt: Optional[_Attempt] = None
        self._in_use = False  # by a reader, or by an attempt that loads
        self._released = False

    @property
    def held(self) -> Optional[WeightSnapshot]:
        """The newest snapshot that arrived whole."""
        with self._changed:
            return self._held

    @contextlib.contextmanager
    def reading(self) -> Iterator[Optional[WeightSnapshot]]:
        """While this lasts the receiver's weights stay those of one version, the one that is yielded.

        Waits for a load that is under way. Raises Stopped if the synchronizer is cleaned up meanwhile.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._in_use or self._released)
            if self._in_use:
                raise Stopped(f'the synchronizer is cleaned up while {self.name} is being loaded')
            self._in_use = True
            held = self._held
        try:
            yield held
        finally:
            self._leave()

    def deliver(self, snapshot: WeightSnapshot) -> bool:
        """Load `snapshot`, trying again where that fails. False: the receiver keeps its last good version.

        Raises WorkerLost if the receiver is gone.
        """
        return self.offer(snapshot) is not False

    def offer(self, snapshot: WeightSnapshot) -> Optional[bool]:
        """`deliver`, but None if there was nothing to load: the receiver has this version, or a newer one."""
        with self._delivering:
            if self._is_there(snapshot):
                return None
            return self._try_again_and_again(snapshot)

    def has(self, policy_version: int) -> bool:
        held = self.held
        return held is not None and held.policy_version == policy_version

    def forget(self) -> None:
        """Another receiver has taken this one's place, and holds nothing yet. Waits for an attempt under way to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._attempt is None or self._released)
            self._held = None

    def release(self) -> None:
        """Let go of whoever waits for an attempt."""
        with self._changed:
            self._released = True
            self._changed.notify_all()

    # ---------------------------------------------------------------- who delivers

    def _is_there(self, snapshot: WeightSnapshot) -> bool:
        with self._changed:
            held = self._held
            if held is not None and held.policy_version > snapshot.policy_version:
                return True
            if snapshot.weights is None or (held is not None and held.policy_version == snapshot.policy_version):
                # Shared with the learner, or there already, perhaps as of an earlier round: nothing is to be loaded.
                self._held = snapshot
                return True
            return False

    def _try_again_and_again(self, snapshot: WeightSnapshot) -> bool:
        attempts = self._rules.max_sync_retries + 1
        for attempt in range(1, attempts + 1):
            if self._closing.is_set() or (attempt > 1 and self._closing.wait(self._rules.sync_retry_delay)):
                return False
            begun = time.monotonic()
            error = self._try_once(snapshot)
            if isinstance(error, WorkerLost):
                raise error  # nobody is there to try again with
            if error is None:
                logger.info(
                    'Parameter sync: version %d (round %d) to %s in %.3f s', snapshot.policy_version, snapshot.rounds,
                    self.name, time.monotonic() - begun,
                )
                return True
            if self._closing.is_set():
                return False
            logger.warning(
                'Parameter sync: version %d to %s failed, attempt %d of %d: %s: %s', snapshot.policy_version, self.name,
                attempt, attempts, type(error).__name__, error,
            )
        held = self.held
        logger.error(
            'Parameter sync: version %d never reached %s, which keeps %s', snapshot.policy_version, self.name,
            f'version {held.policy_version}' if held else 'what it began with',
        )
        return False

    def _try_once(self, snapshot: WeightSnapshot) -> Optional[BaseException]:
        timeout = min(self._rules.sync_timeout, threading.TIMEOUT_MAX)
        give_up_at = time.monotonic() + timeout
        with self._changed:
            self._changed.wait_for(lambda: self._attempt is None or self._released, timeout)
            if self._attempt is not None:
                return SyncTimeout(f'{self.name} is still busy with version {self._attempt.snapshot.policy_version}')
        if self._is_there(snapshot):  # the earlier attempt has brought it
            return None
        attempt = _Attempt(snapshot)
        with self._changed:
            self._attempt = attempt
        thread = threading.Thread(
            target=self._run, args=(attempt,), name=f'lzero-async-sync-{self.name}', daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the system has no thread left
            with self._changed:
                self._end_locked(attempt, error)
            return error
        with self._changed:
            self._changed.wait_for(
                lambda: attempt.ended or self._released, max(0.0, give_up_at - time.monotonic())
            )
            if not attempt.ended:
                attempt.left = True
                return SyncTimeout(f'{self.name} did not answer within {self._rules.sync_timeout} s')
        thread.join()  # it has said its last word already
        return attempt.error

    # ---------------------------------------------------------------- who loads: the thread of an attempt

    def _run(self, attempt: '_Attempt') -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._in_use or attempt.left or self._released)
            if self._in_use or attempt.left:
                self._end_locked(attempt, SyncTimeout(f'{self.name} was in use'))
                return
            self._in_use = True
        error: Optional[BaseException] = None
        try:
            self._load(self._receiver, attempt.snapshot)
        except BaseException as failure:  # whatever it is, it is told to who waits
            error = failure
        self._end(attempt, error)

    def _end(self, attempt: '_Attempt', error: Optional[BaseException]) -> None:
        with self._changed:
            self._in_use = False
            self._end_locked(attempt, error)

    def _end_locked(self, attempt: '_Attempt', error: Optional[BaseException]) -> None:
        held = self._held
        if error is None and (held is None or held.policy_version <= attempt.snapshot.policy_version):
            self._held = attempt.snapshot
        attempt.error, attempt.ended = error, True
        self._attempt = None
        self._changed.notify_all()

    def _leave(self) -> None:
        with self._changed:
            self._in_use = False
            self._changed.notify_all()


class _Attempt:
    """One try to load one snapshot."""

    def __init__(self, snapshot: WeightSnapshot) -> None:
        self.snapshot = snapshot
        self.left = False
        self.ended = False
        self.error: Optional[BaseException] = None
