"""OutstandingRounds: the batches between pull and training, and what keeps each within its bound of staleness.

The lag law alone bounds how many batches are outstanding, not how old one of them gets: while a slow collector works on
one batch, others may collect and the learner train many. So training, too, has a gate: a round may be trained only if
every batch that is still outstanding can afterwards be trained within its bound. The batch with the oldest weights may
always go, so that waiting for it never ends in a deadlock.
"""
from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Dict, Iterable, Optional

from .errors import BoundBroken
from .staleness import Pull, within_bound


@dataclass(frozen=True)
class Outlook:
    """How things stood when a collector began to pull its weights."""

    finished: int
    idle: bool
    """Nothing was to be trained, and nothing on the way to be."""


@dataclass(frozen=True)
class Claim:
    """A batch that the learner has taken for itself."""

    paid: bool
    """It was trained for in advance; else a round begins with it."""
    bound: int
    """The degree that was in force when its weights were pulled."""


class OutstandingRounds:
    """Any thread may call any member; only `wait_for_round` waits. One round is trained at a time.

    A collector says `expect`, pulls, and says `open`. The learner says `claim` or `claim_ahead`, and then `finish`.
    """

    def __init__(self, finished: int = 0) -> None:
        """`finished` rounds were trained before."""
        # Guards all that follows; wait_for_round waits on it.
        self._changed = threading.Condition(threading.Lock())
        self._pulls: Dict[int, Pull] = {}
        self._slots = 0
        self._expected = 0
        self._finished = finished
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
            return self._idle()

    # ---------------------------------------------------------------- collectors

    def expect(self) -> Outlook:
        """Somebody pulls weights now, and will say `open`, or `leave` if that failed."""
        with self._changed:
            outlook = Outlook(self._finished, self._idle())
            self._expected += 1
            return outlook

    def open(self, rounds: int, degree: int) -> Optional[int]:
        """A slot for a batch collected with weights of round `rounds`; None if it could not stay within its bound."""
        with self._changed:
            self._expected -= 1
            self._changed.notify_all()
            pull = Pull(rounds, self._slots, degree)
            if not within_bound((*self._pulls.values(), pull), self._finished + self._training, self._paid):
                return None
            self._pulls[pull.slot] = pull
            self._slots += 1
            return pull.slot

    def leave(self, slot: Optional[int]) -> None:
        """No batch will come for this slot, or, with None, for what was expected."""
        with self._changed:
            if slot is None:
                self._expected -= 1
            else:
                del self._pulls[slot]
            self._changed.notify_all()

    def wait_for_round(self, finished: int, timeout: Optional[float] = None) -> None:
        """Wait until more than `finished` rounds are trained, nothing is left to train, or the run is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._finished > finished or self._idle(), timeout)

    # ---------------------------------------------------------------- the learner

    def claim(self, slot: int) -> Optional[Claim]:
        """Take the batch of this slot, if all others can afterwards still be trained within their bounds.

        It uses up a round that was trained in advance, if there is one that no batch with older weights needs more.
        Else its round begins here, and counts for all others. Raises BoundBroken if the batch is too stale.
        """
        with self._changed:
            pull = self._pulls[slot]
            others = [other for other in self._pulls.values() if other.slot != slot]
            if self._paid and self._within_bound(others, 0, -1):
                self._paid -= 1
                return self._claimed(pull, paid=True)
            if self._within_bound(others, 1, 0):
                self._training = True
                return self._claimed(pull, paid=False)
            return None

    def claim_ahead(self) -> bool:
        """Begin a round in advance, if all batches can afterwards still be trained within their bounds."""
        with self._changed:
            if not self._within_bound(self._pulls.values(), 1, 1):
                return False
            self._training = True
            self._paid += 1
            return True

    def drop(self, claim: Claim) -> None:
        """The batch that was claimed is not trained after all."""
        with self._changed:
            if claim.paid:
                self._paid += 1
            else:
                self._training = False
            self._changed.notify_all()

    def finish(self) -> None:
        """The round is trained, and its weights are published."""
        with self._changed:
            self._training = False
            self._finished += 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ---------------------------------------------------------------- under the lock

    def _idle(self) -> bool:
        return not (self._pulls or self._training or self._expected)

    def _within_bound(self, pulls: Iterable[Pull], more_rounds: int, more_paid: int) -> bool:
        return within_bound(tuple(pulls), self._finished + more_rounds, self._paid + more_paid)

    def _claimed(self, pull: Pull, paid: bool) -> Claim:
        del self._pulls[pull.slot]
        staleness = self._finished - pull.rounds
        if staleness > pull.degree:
            raise BoundBroken(
                f'staleness must be <= off_policy_degree {pull.degree}, got {staleness}: the batch was collected with '
                f'the weights of round {pull.rounds}, and {self._finished} rounds are trained'
            )
        self._changed.notify_all()
        return Claim(paid, pull.degree)
