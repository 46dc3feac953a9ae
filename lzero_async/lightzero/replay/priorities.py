"""Drawing samples by their priorities, as LightZero does, without going through all of them for every batch."""
from __future__ import annotations

from typing import Any, Optional

import numpy as np

from .growing_array import GrowingArray


class WeightedDraw:
    """`np.random.choice(len(p), size, replace=False, p=p)`, again and again for one `p`.

    The same draws, to the last bit, from the same random numbers; but the cumulated `p` is computed once.
    """

    def __init__(self, probabilities: np.ndarray, all_equal: bool = False) -> None:
        """If they are `all_equal`, they are also positive."""
        self.probabilities = probabilities
        self._all_equal = all_equal
        self._cumulated = _cumulated(probabilities) if len(probabilities) else probabilities
        # Whatever numpy would refuse is left to numpy.
        self._sound = bool(
            len(probabilities) and np.isfinite(self._cumulated[-1]) and (all_equal or probabilities.min() >= 0)
        )
        self._drawable = len(probabilities) if all_equal else int(np.count_nonzero(probabilities))

    def draw(self, among: int, size: int) -> np.ndarray:
        if not self._sound or among != len(self.probabilities) or size > self._drawable:
            return np.random.choice(among, size, p=self.probabilities, replace=False)
        found = np.empty(0, np.int64)
        cumulated, left = self._cumulated, self.probabilities
        while len(found) < size:
            numbers = np.random.rand(size - len(found))
            if len(found):  # two numbers have met in one sample: the other is drawn again, without those found
                left = left.copy() if left is self.probabilities else left
                left[found] = 0
                cumulated = _cumulated(left)
            new = self._find(cumulated, numbers)
            _, firsts = np.unique(new, return_index=True)
            firsts.sort()
            found = np.concatenate((found, new[firsts]))
        return found

    def _find(self, cumulated: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """`cumulated.searchsorted(numbers, side='right')`."""
        if not self._all_equal:
            return cumulated.searchsorted(numbers, side='right')
        # Nearly always one can tell where it is, without a search through memory that no cache holds.
        last = len(cumulated) - 1
        places = np.minimum((numbers * len(cumulated)).astype(np.int64), last)
        found = (cumulated[places] > numbers) & ((places == 0) | (cumulated[places - 1] <= numbers))
        places[~found] = cumulated.searchsorted(numbers[~found], side='right')
        return places


class Priorities:
    """One number for each sample of the buffer, and what follows from them as long as none of them changes."""

    def __init__(self) -> None:
        self._lane = GrowingArray(np.float64)
        self._all_one = False
        self._highest: Optional[float] = None
        self._draw: Optional[WeightedDraw] = None

    def __len__(self) -> int:
        return len(self._lane)

    def handed_out(self) -> np.ndarray:
        """The numbers, to be read and written: who writes does not tell, so all that follows is computed anew."""
        self._forget()
        return self._lane.values

    def assign(self, values: Any) -> None:
        self._forget()
        self._lane.assign(values)

    def append(self, values: np.ndarray) -> None:
        highest = self._highest
        self._forget()
        self._lane.append(values)
        if highest is not None:
            self._highest = max(highest, float(values.max())) if len(values) else highest

    def highest(self) -> float:
        if self._highest is None:
            self._highest = float(self._lane.values.max())
        return self._highest

    def all_become_one(self) -> None:
        if not self._all_one and len(self):
            self._forget()
            self._lane.values.fill(1.0)
            self._highest, self._all_one = 1.0, True

    def weighted_draw(self, alpha: float) -> WeightedDraw:
        if self._draw is None:
            if self._all_one:
                weights = np.full(len(self), 1.0 + 1e-6)
                probabilities = np.broadcast_to(weights[:1] / weights.sum(), len(self))  # one number, kept once
            else:
                probabilities = self._lane.values ** alpha + 1e-6  # as the host has it
                probabilities /= probabilities.sum()
            self._draw = WeightedDraw(probabilities, self._all_one)
        return self._draw

    def _forget(self) -> None:
        self._all_one = False
        self._highest = None
        self._draw = None


def _cumulated(probabilities: np.ndarray) -> np.ndarray:
    cumulated: np.ndarray = np.cumsum(probabilities)
    cumulated /= cumulated[-1]
    return cumulated
