"""The arithmetic of the update, against numbers worked out by hand."""
import math

import pytest
import torch

from lzero_async.priorzero.ppo import normalised, ppo_terms

LOG2 = math.log(2.0)


def terms(new, rollout, reference, advantages, mask=None, clip_range=0.2):
    new = torch.tensor(new, dtype=torch.float64)
    mask = torch.ones_like(new, dtype=torch.bool) if mask is None else torch.tensor(mask)
    return ppo_terms(
        new, torch.tensor(rollout, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64),
        torch.tensor(advantages, dtype=torch.float64), mask, clip_range,
    )


@pytest.mark.parametrize('log_ratio, advantage, policy, clipped', [
    (0.0, 1.0, -1.0, 0.0),             # unchanged: -1 * 1
    (0.0, -2.0, 2.0, 0.0),
    (math.log(1.1), 1.0, -1.1, 0.0),   # within 1 +- 0.2
    (LOG2, 1.0, -1.2, 1.0),            # too far up already: min(2, 1.2)
    (LOG2, -1.0, 2.0, 1.0),            # too far up, and should go down: min(-2, -1.2)
    (-LOG2, 1.0, -0.5, 1.0),           # too far down, and should go up: min(0.5, 0.8)
    (-LOG2, -1.0, 0.8, 1.0),           # too far down already: min(-0.5, -0.8)
])
def test_one_token(log_ratio, advantage, policy, clipped):
    found = terms([[-1.0 + log_ratio]], [[-1.0]], [[-1.0 + log_ratio]], [advantage])
    assert found.policy.item() == pytest.approx(policy)
    assert found.ratio.item() == pytest.approx(math.exp(log_ratio))
    assert found.clipped.item() == clipped and found.kl.item() == 0.0


@pytest.mark.parametrize('away, kl', [
    (0.0, 0.0),
    (LOG2, 2.0 - LOG2 - 1.0),          # the reference finds it twice as likely
    (-LOG2, 0.5 + LOG2 - 1.0),
])
def test_the_divergence_is_never_negative(away, kl):
    found = terms([[-2.0]], [[-2.0]], [[-2.0 + away]], [0.0])
    assert found.kl.item() == pytest.approx(kl, abs=1e-12) and kl >= 0.0


def test_a_long_action_counts_as_much_as_a_short_one():
    # Ratios 2 and 1, clipped 1.2 and 1: -(1.2 + 1) / 2. Beside it one of a single token, whose padding is no token.
    found = terms(
        [[-1.0 + LOG2, -3.0], [float('nan'), -1.0]], [[-1.0, -3.0], [0.0, -1.0]], [[-1.0, -3.0], [0.0, -1.0]],
        [1.0, 3.0], [[True, True], [False, True]],
    )
    assert found.policy.tolist() == pytest.approx([-1.1, -3.0])
    assert found.ratio.tolist() == pytest.approx([1.5, 1.0])
    assert found.clipped.tolist() == pytest.approx([0.5, 0.0])
    assert found.kl.tolist() == pytest.approx([(0.5 + LOG2 - 1.0) / 2, 0.0])


def test_gradients_stop_where_the_clip_does():
    new = torch.tensor([[LOG2], [LOG2], [0.0]], requires_grad=True)
    zeros, mask = torch.zeros(3, 1), torch.ones(3, 1, dtype=torch.bool)
    ppo_terms(new, zeros, new.detach(), torch.tensor([1.0, -1.0, 1.0]), mask, 0.2).policy.sum().backward()
    # d(-ratio A)/d new = -ratio A where it is not clipped.
    assert new.grad.flatten().tolist() == pytest.approx([0.0, 2.0, -1.0])


def test_the_divergence_pulls_towards_the_reference():
    new = torch.tensor([[-1.0], [-3.0], [-2.0]], requires_grad=True)
    reference, mask = torch.full((3, 1), -2.0), torch.ones(3, 1, dtype=torch.bool)
    ppo_terms(new, new.detach(), reference, torch.zeros(3), mask, 0.2).kl.sum().backward()
    # d/d new = 1 - exp(reference - new): down where it is above, up where it is below, 0 where it is the same.
    assert new.grad.flatten().tolist() == pytest.approx([1 - math.exp(-1.0), 1 - math.e, 0.0])


@pytest.mark.parametrize('given, expected', [
    ([1.0, 3.0], [-1.0, 1.0]),
    ([0.0, 0.0, 6.0], [-(0.5**0.5), -(0.5**0.5), 2**0.5]),   # mean 2, deviation sqrt(8)
    ([5.0, 5.0], [0.0, 0.0]),
    ([7.0], [0.0]),
])
def test_normalised(given, expected):
    assert normalised(torch.tensor(given)).tolist() == pytest.approx(expected)
