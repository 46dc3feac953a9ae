"""Parts of many segments, each from its own position on, put together in one array."""
from __future__ import annotations

from typing import Any, List, NamedTuple, Sequence

import numpy as np


class Slices(NamedTuple):
    values: np.ndarray
    """(segments, width, ...). Zeros where a segment has no more."""
    counts: np.ndarray
    """How many each segment had."""

    @property
    def inside(self) -> np.ndarray:
        return np.arange(self.values.shape[1]) < self.counts[:, None]


def alike(arrays: Sequence[Any]) -> bool:
    """Whether all are arrays that differ in their lengths only."""
    first = arrays[0]
    if not isinstance(first, np.ndarray) or not first.ndim:
        return False
    dtype, shape = first.dtype, first.shape[1:]
    return all(
        isinstance(array, np.ndarray) and array.dtype == dtype and array.shape[1:] == shape for array in arrays
    )


def slices(arrays: Sequence[np.ndarray], begins: Sequence[int], width: int) -> Slices:
    """`width` entries of each array from its `begin` on. The arrays are `alike`."""
    parts = [array[begin:begin + width] for array, begin in zip(arrays, begins)]
    counts = np.fromiter(map(len, parts), np.int64, len(parts))
    flat = np.concatenate(parts)
    shape = (len(parts), width, *flat.shape[1:])
    if len(flat) == len(parts) * width:
        return Slices(flat.reshape(shape), counts)
    found = Slices(np.zeros(shape, flat.dtype), counts)
    found.values[found.inside] = flat
    return found


class Drawn:
    """The segments of a batch, column by column."""

    def __init__(self, segments: List[Any], starts: List[int]) -> None:
        self.segments = segments
        self.starts = starts
        self.observations = [segment.obs_segment for segment in segments]
        self.actions = [segment.action_segment for segment in segments]
        self.timesteps = [segment.timestep_segment for segment in segments]
        self.rewards = [segment.reward_segment for segment in segments]
        self.visits = [segment.child_visit_segment for segment in segments]
        self.lengths = np.fromiter(map(len, self.actions), np.int64, len(segments))

        self._kinds = {(segment.action_space_size, segment.transform2string) for segment in segments}

    @property
    def action_count(self) -> int:
        """How many actions there are to choose from, in any of the segments, if they are plain."""
        (count, _), = self._kinds
        return int(count)

    def is_plain(self) -> bool:
        """Whether this is what nearly all games have: whole numbers for actions, one number for each reward."""
        zero = np.asarray(self.segments[0].zero_obs())
        return (
            all(map(alike, (self.observations, self.actions, self.timesteps, self.rewards)))
            and self.observations[0].shape[1:] == zero.shape[1:] and self.observations[0].dtype.kind in 'biuf'
            and self.actions[0].ndim == self.timesteps[0].ndim == self.rewards[0].ndim == 1
            and self.actions[0].dtype.kind == self.timesteps[0].dtype.kind == 'i'
            and self.rewards[0].dtype.kind in 'iuf'
            and len(self._kinds) == 1 and not any(compressed for _, compressed in self._kinds)
        )
