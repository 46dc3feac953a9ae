"""The replay ratio as an account: collected transitions owe updates, updates pay."""
from __future__ import annotations

from typing import Any, Dict, Optional


class UpdateAccount:
    """How many learner updates are owed.

    With `carry_fraction` the whole run's updates equal `replay_ratio * transitions` to within one. Without it each
    collect is rounded down on its own, as LightZero's serial loop does. `update_per_collect`, when set, replaces the
    ratio. Owned by the learner's thread; not locked.
    """

    def __init__(self, replay_ratio: float, update_per_collect: Optional[int], carry_fraction: bool) -> None:
        self._replay_ratio = replay_ratio
        self._update_per_collect = update_per_collect
        self._carry_fraction = carry_fraction
        self._transitions = 0
        self._whole_updates = 0
        self._paid = 0

    def owe(self, transitions: int) -> None:
        """A batch of `transitions` arrived and is to be trained for."""
        if self._update_per_collect is not None:
            self._whole_updates += self._update_per_collect
        elif self._carry_fraction:
            self._transitions += transitions
        else:
            self._whole_updates += int(transitions * self._replay_ratio)

    def pay(self, updates: int) -> None:
        self._paid += updates

    def state(self) -> Dict[str, Any]:
        return {'transitions': self._transitions, 'whole_updates': self._whole_updates, 'paid': self._paid}

    def restore(self, state: Dict[str, Any], most_owed: int) -> int:
        """Go on from `state`. Returns the updates that are let go, since no more than `most_owed` may be owed."""
        self._transitions, self._whole_updates = state['transitions'], state['whole_updates']
        self._paid = state['paid']
        let_go = max(0, self.owed - most_owed)
        self._paid += let_go
        return let_go

    @property
    def owed(self) -> int:
        """Updates still to be made; below zero when training ran ahead."""
        return int(self._transitions * self._replay_ratio) + self._whole_updates - self._paid
