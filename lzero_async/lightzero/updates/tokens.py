"""Which tokens of a batch of sequences there are, and which numbers dropout keeps of them."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """Which tokens of (batch, tokens) there are: sequences may end early, and are then packed row behind row."""

    shape: Tuple[int, int]
    rows: Tensor
    """The tokens that are there, as indices into the flattened (batch, tokens)."""
    places: Tensor
    """For each of (batch, tokens) its row, or for one that is not there any other."""
    there: Tensor
    """(batch, tokens, 1): 1.0 where there is a token, else 0.0."""
    first: Tensor
    """The first row of each sequence, and behind them the number of rows."""

    @classmethod
    def until_last(cls, wanted: Tensor) -> Tokens:
        """Of each sequence those up to the last one that is wanted."""
        there = wanted.flip(1).cummax(1).values.flip(1)
        count, length = wanted.shape
        rows, places = there.flatten().nonzero().flatten(), (there.flatten().cumsum(0) - 1).clamp_(min=0)
        first = F.pad(there.sum(1).cumsum(0), (1, 0))
        return cls((count, length), rows, places, there.unsqueeze(2).float(), first)

    def doubled(self) -> Tokens:
        """Two tokens for each."""
        rows, places = (torch.stack((2 * index, 2 * index + 1), dim=1).flatten() for index in (self.rows, self.places))
        there = self.there.repeat_interleave(2, dim=1)
        return Tokens((self.shape[0], 2 * self.shape[1]), rows, places, there, 2 * self.first)

    def packed(self, padded: Tensor) -> Tensor:
        return padded.flatten(0, 1).index_select(0, self.rows)

    def padded(self, packed: Tensor) -> Tensor:
        """What stands where there is no token is of no meaning."""
        return packed.index_select(0, self.places).view(*self.shape, -1)


@dataclass(frozen=True)
class Kept:
    """What dropout keeps."""

    mask: Tensor
    """uint8, 1 for what is kept."""
    scale: float
    """What that is multiplied by."""

    def factors(self) -> Tensor:
        return self.mask.float().mul_(self.scale)
