"""OutstandingRounds: the batches between pull and training, and what keeps each within its bound of staleness.

The lag law alone bounds how many batches are outstanding, not how old one of them gets: while a slow collector works on
one batch, others may collect and the learner train many. So training, too, has a gate: a round may be trained only if
every batch that is still outstanding can afterwards be trained within its bound. The batch with the oldest weights may
always go, so that waiting for it never ends in a deadlock.
"""
from __future__ import annotations

import threading
from typing import Dict, Optional

from .errors import BoundBroken
from .staleness import Pull, within_bound


class OutstandingRounds:
    """Any thread may call any member; only `wait_for_round` waits. One round is trained at a time."""

    def __init__(self) -> None:
        # Guards all that follows; wait_for_round waits on it.
        self._changed = threading.Condition(threading.Lock())
        self._pulls: Dict[int, Pull] = {}
        self._slots = 0
        self._finished = 0
        self._training = False
        self._paid = 0
        self._closed = False

    @property
    def finished(self) -> int:
        """Rounds trained so far."""
        with self._changed:
            return self._finished

    @property
    def paid(self) -> int:
        """Rounds trained in advance, whose batches are still to come."""
        with self._changed:
            return self._paid

    @property
    def idle(self) -> bool:
        """Whether there is nothing to train, nor anything on the way to be."""
        with self._changed:
            return not self._pulls and not self._training

    def open(self, rounds: int, degree: int) -> Optional[int]:
        """A slot for a batch collected with weights of round `rounds`; None if it could not stay within its bound."""
        with self._changed:
            pull = Pull(rounds, self._slots, degree)
            if not within_bound((*self._pulls.values(), pull), self._begun(), self._paid):
                return None
            self._pulls[pull.slot] = pull
            self._slots += 1
            return pull.slot

    def leave(self, slot: int) -> None:
        """The batch of this slot will not be trained: its collect failed, or it was dropped."""
        with self._changed:
            del self._pulls[slot]
            self._changed.notify_all()

    def bound_of(self, slot: int) -> int:
        """The degree that was in force when the weights of this slot were pulled."""
        with self._changed:
            return self._pulls[slot].degree

    def may_train(self, slot: int) -> bool:
        """Whether the batch of this slot can be trained now and leave all others within their bounds."""
        with self._changed:
            others = tuple(pull for pull in self._pulls.values() if pull.slot != slot)
            return within_bound(others, self._finished + 1, self._paid)

    def may_train_ahead(self) -> bool:
        with self._changed:
            return within_bound(tuple(self._pulls.values()), self._finished + 1, self._paid + 1)

    def begin(self, slot: Optional[int]) -> None:
        """A round is trained from now on, on the batch of this slot or, without one, in advance.

        Raises BoundBroken if the batch is too stale. Its round counts for all others from here on.
        """
        with self._changed:
            if slot is not None:
                self._take(slot)
            else:
                self._paid += 1
            self._training = True

    def finish(self) -> None:
        """That round is trained, and its weights are published."""
        with self._changed:
            self._training = False
            self._finished += 1
            self._changed.notify_all()

    def admit_paid(self, slot: int) -> None:
        """The batch of this slot was trained for in advance. Raises BoundBroken if it is too stale."""
        with self._changed:
            self._take(slot)
            self._paid -= 1
            self._changed.notify_all()

    def wait_for_round(self, finished: int, timeout: Optional[float] = None) -> None:
        """Wait until more than `finished` rounds are trained, nothing is left to train, or the run is over."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._finished > finished or not (self._pulls or self._training), timeout
            )

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ---------------------------------------------------------------- under the lock

    def _begun(self) -> int:
        return self._finished + self._training

    def _take(self, slot: int) -> None:
        pull = self._pulls.pop(slot)
        staleness = self._finished - pull.rounds
        if staleness > pull.degree:
            raise BoundBroken(
                f'staleness must be <= off_policy_degree {pull.degree}, got {staleness}: the batch was collected with '
                f'the weights of round {pull.rounds}, and {self._finished} rounds are trained'
            )
