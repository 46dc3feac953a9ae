"""How old samples may be, as pure functions.

Two measures, both from the pull of the weights that collected the samples to the moment they are trained on:

    staleness   in rounds: the versions that the learner finished in between
    age         in seconds

Staleness above `staleness_threshold` marks samples as stale: they are trained on, and counted. Staleness above
`max_staleness_allowed`, or age above `max_sample_age_s`, drops them.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class StalenessRules:
    staleness_threshold: int = 3
    max_staleness_allowed: int = 5
    max_sample_age_s: Optional[float] = None
    max_consecutive_drops: int = 20
    """Batches dropped one after the other until the run gives up."""
    late_rounds: int = 0
    """By so much may samples that are handed over late, by the collector's next collect, pass their batch's bound."""

    def is_stale(self, staleness: int) -> bool:
        return staleness > self.staleness_threshold

    def why_late(self, staleness: int, bound: int) -> Optional[str]:
        """What samples break that were handed over late, in a batch with this bound, if anything."""
        if staleness <= bound + self.late_rounds:
            return None
        more = f' + {self.late_rounds} for the other collectors' if self.late_rounds else ''
        return f'staleness {staleness} > off_policy_degree {bound}{more}, handed over late'

    def why_dropped(self, staleness: int, age: float) -> Optional[str]:
        """The rule that samples of this staleness and age break, if any."""
        if staleness > self.max_staleness_allowed:
            return f'staleness {staleness} > max_staleness_allowed {self.max_staleness_allowed}'
        if self.max_sample_age_s is not None and age > self.max_sample_age_s:
            return f'age {age:.2f} s > max_sample_age_s {self.max_sample_age_s:g}'
        return None


@dataclass(frozen=True)
class Pull:
    """A batch between its pull of weights and its training, as the bound sees it."""

    rounds: int
    slot: int
    degree: int
    """The degree in force when the weights were pulled: its staleness may not pass it."""

    @property
    def order(self) -> Tuple[int, int]:
        return self.rounds, self.slot


def within_bound(pulls: 'Tuple[Pull, ...]', train_count: int, paid: int) -> bool:
    """Whether all of `pulls` can still be trained within their bounds, the oldest first, one round each.

    The batch in place j waits for j others, of which the first `paid` were trained for in advance and cost no round:

        train_count + max(0, j - paid) - rounds_j <= degree_j      for every j
    """
    ordered = sorted(pulls, key=lambda pull: pull.order)
    return all(train_count + max(0, place - paid) - pull.rounds <= pull.degree for place, pull in enumerate(ordered))
