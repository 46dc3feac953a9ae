"""Equal arrays of many segments are kept once, as long as anybody has them."""
import gc
from types import SimpleNamespace

import numpy as np
import pytest

from lzero_async.lightzero.replay.shared_arrays import LARGEST, SharedArrays, share_equal_arrays


def segment(masks=2, improved=()):
    return SimpleNamespace(
        action_mask_segment=np.ones((3, masks), np.int8), to_play_segment=np.full(3, -1),
        improved_policy_probs=np.array(improved), reward_segment=np.ones(3),
    )


def test_equal_ones_become_one_that_cannot_be_written_to():
    shared, one, other = SharedArrays(), segment(), segment()
    for each in (one, other):
        share_equal_arrays(each, shared)
    assert one.action_mask_segment is other.action_mask_segment and one.to_play_segment is other.to_play_segment
    assert one.reward_segment is not other.reward_segment
    with pytest.raises(ValueError):
        one.to_play_segment[0] = 1


def test_unequal_large_and_written_ones_stay_their_own():
    shared = SharedArrays()
    kinds = [segment(), segment(masks=3), segment(masks=LARGEST), segment(masks=LARGEST)]
    kinds += [segment(improved=[0.5]), segment(improved=[0.5])]
    for each in kinds:
        share_equal_arrays(each, shared)
    assert kinds[0].action_mask_segment.shape == (3, 2) and kinds[1].action_mask_segment.shape == (3, 3)
    assert kinds[2].action_mask_segment is not kinds[3].action_mask_segment
    assert kinds[4].improved_policy_probs is not kinds[5].improved_policy_probs


def test_those_that_nobody_has_are_forgotten():
    shared, one = SharedArrays(), segment()
    share_equal_arrays(one, shared)
    assert len(shared) == 3
    del one
    gc.collect()
    assert len(shared) == 0
