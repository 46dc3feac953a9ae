"""How much better than expected: sums by hand."""
import pytest

from lzero_async.priorzero.advantages import n_step_advantages


def test_rewards_and_the_value_after_them():
    # r0 + 0.5 r1 + 0.25 v2 - p0 = 1 + 1 + 0.25 * 8 - 3; then 2 + 0.5 * 4 + 0.25 * 16 - 1
    found = n_step_advantages([1, 2, 4, 0], [9, 9, 8, 16, 32], [3, 1], td_steps=2, discount=0.5)
    assert found == pytest.approx((1 + 1 + 2 - 3, 2 + 2 + 4 - 1))


def test_after_the_end_nothing_follows():
    # Three steps, then the end: v3 does not exist. 1 + 0.5 * 2 + 0.25 v2; 2 + 0.5 * 4; 4
    found = n_step_advantages([1, 2, 4], [9, 9, 8], [0, 0, 0], td_steps=2, discount=0.5)
    assert found == pytest.approx((1 + 1 + 2, 2 + 2, 4))


def test_more_steps_than_there_are():
    assert n_step_advantages([1.0], [5.0], [0.25], td_steps=5, discount=0.9) == pytest.approx((0.75,))
