"""Arrays that are the same in nearly all segments, kept once for all of them."""
from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import numpy as np

SAME_IN_MOST = ('action_mask_segment', 'to_play_segment', 'improved_policy_probs')
"""Nobody writes to the first two. Gumbel's reanalyzing does write to the third, which is empty for all others."""
LARGEST = 4096
"""Bytes. Looking for an equal one costs a copy."""


class SharedArrays(WeakValueDictionary):  # type: ignore[type-arg]
    """By their type, shape and content. Those that no segment has any more are forgotten."""


def share_equal_arrays(segment: Any, shared: SharedArrays) -> None:
    """Let `segment` have the arrays of other segments where its own are equal. They are made read-only."""
    for name in SAME_IN_MOST:
        array = getattr(segment, name, None)
        if not isinstance(array, np.ndarray) or array.dtype.hasobject or array.nbytes > LARGEST:
            continue
        if name == 'improved_policy_probs' and array.size:
            continue
        key = (array.dtype.str, array.shape, array.tobytes())
        found = shared.setdefault(key, array)
        found.flags.writeable = False
        setattr(segment, name, found)
