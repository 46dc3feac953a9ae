"""The target network's update, all of its parameters at once: the same numbers, to the last bit."""
from __future__ import annotations

from typing import Any, Callable

import torch

from . import native_steps


class SoftUpdate:
    """Stands in for the `update` of a target network that follows `learn_model` a little with each update."""

    def __init__(self, learn_model: Any, target: Any) -> None:
        self._original: Callable[..., None] = target.update
        self._theta: float = target._update_kwargs['theta']
        learned = dict(learn_model.named_parameters())
        self._pairs = [(parameter, learned[name]) for name, parameter in target.named_parameters()]

    def __call__(self, state_dict: Any, direct: bool = False) -> None:
        if direct:
            self._original(state_dict, direct)
        else:
            self.follow()

    def follow(self) -> None:
        """What the host does with the weights of `learn_model`, which are there already."""
        targets, learned = zip(*self._pairs)
        if native_steps.can_be_used([*targets, *learned]):
            native_steps.follow(targets, learned, self._theta)
            return
        with torch.no_grad():
            torch._foreach_mul_(targets, 1 - self._theta)
            torch._foreach_add_(targets, torch._foreach_mul(learned, self._theta))
