"""The arithmetic of the prior's update: clipped PPO on the tokens of actions, and a divergence from a reference.

For a token with log-probabilities `new`, `rollout` and `reference`, and the advantage A of its action:

    ratio  = exp(new - rollout)
    policy = -min(ratio * A, clip(ratio, 1 - clip_range, 1 + clip_range) * A)
    kl     = exp(reference - new) - (reference - new) - 1        (never negative, 0 where both agree)

An action counts by the mean over its tokens, as it does in the prior: a long one weighs no more than a short one.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch

SAME = 1e-8  # a standard deviation below this tells no advantages apart


@dataclass(frozen=True)
class Terms:
    """Of each action of a batch, the mean over its tokens."""

    policy: torch.Tensor
    kl: torch.Tensor
    ratio: torch.Tensor
    clipped: torch.Tensor
    """The part of the tokens whose ratio is outside of the clip range."""


def ppo_terms(
    new: torch.Tensor, rollout: torch.Tensor, reference: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor,
    clip_range: float,
) -> Terms:
    """Log-probabilities and `mask` are of shape (actions, tokens), the mask is False where a token is padding."""
    ratio = torch.exp(torch.where(mask, new - rollout, 0.0))
    gain = advantages.unsqueeze(1)
    policy = -torch.minimum(ratio * gain, ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * gain)
    away = torch.where(mask, reference - new, 0.0)
    return Terms(
        policy=_mean(policy, mask),
        kl=_mean(torch.expm1(away) - away, mask),
        ratio=_mean(ratio.detach(), mask),
        clipped=_mean(((ratio.detach() - 1.0).abs() > clip_range).to(new.dtype), mask),
    )


def normalised(advantages: torch.Tensor) -> torch.Tensor:
    """Mean 0 and standard deviation 1; where all are about the same, mean 0 only."""
    centred = advantages - advantages.mean()
    deviation = centred.square().mean().sqrt()
    return centred / deviation if bool(deviation > SAME) else centred


def _mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, values, 0.0).sum(dim=1) / mask.sum(dim=1)
