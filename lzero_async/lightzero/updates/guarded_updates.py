"""GuardedUpdates: an update whose loss or gradients are not finite is left out, and its batch kept to look at."""
from __future__ import annotations

import logging
import math
import os
from typing import Any, Callable, List, Optional, Tuple

import torch

from ...checkpoints import trees
from ...checkpoints.durable import write_file
from ...core.errors import LzeroAsyncError
from ..then import Then
from . import native_steps

logger = logging.getLogger(__name__)

QUARANTINE = 'quarantine'
"""Within the experiment folder."""
MOST_FILES = 100
"""A run that goes wrong for good must not fill the disk."""


class BadUpdate(LzeroAsyncError):
    """The loss or a gradient of an update is not finite."""


class TooManyBadUpdates(LzeroAsyncError):
    """No update was good for a while, also not with the weights of the last saved state."""


class GuardedUpdates:
    """Called from the learner's thread only. Nothing is changed by a bad update: the optimizer makes no step.

    Statistics that layers keep of what passes through them (batch norm) are put back.
    """

    def __init__(self, policy: Any, exp_name: str) -> None:
        self._folder = os.path.join(exp_name, QUARANTINE)
        self._optimizer = policy._optimizer_world_model
        self._buffers: List[Tuple[torch.Tensor, torch.Tensor]] = [
            (buffer, buffer.clone()) for model in (policy._learn_model, policy._target_model)
            for buffer in _running_statistics(model)
        ]
        world_model = policy._learn_model.world_model
        world_model.compute_loss = Then(world_model.compute_loss, _check_loss)
        self._optimizer.register_step_pre_hook(lambda *_: self._check_gradients())
        self.bad_updates = 0
        self.in_a_row = 0

    def update(self, batch: Any, train: Callable[[Any], Any]) -> Optional[Any]:
        """What `train(batch)` returns; None if it was a bad one, which is then counted and its batch written down."""
        for buffer, kept in self._buffers:
            kept.copy_(buffer)
        try:
            result = train(batch)
        except BadUpdate as bad:
            for buffer, kept in self._buffers:
                buffer.copy_(kept)
            self._optimizer.zero_grad()
            self.bad_updates += 1
            self.in_a_row += 1
            self._put_away(batch, bad)
            return None
        self.in_a_row = 0
        return result

    def _check_gradients(self) -> None:
        gradients = [
            parameter.grad for group in self._optimizer.param_groups for parameter in group['params']
            if parameter.grad is not None
        ]
        if not _are_finite(gradients):
            raise BadUpdate('its gradients are not finite')

    def _put_away(self, batch: Any, bad: BadUpdate) -> None:
        name = f'batch_{self.bad_updates:06d}.safetensors'
        logger.error('update left out, %d in a row: %s; its batch is in %s/%s', self.in_a_row, bad, self._folder, name)
        if self.bad_updates > MOST_FILES:
            return
        try:
            os.makedirs(self._folder, exist_ok=True)
            write_file(self._folder, name, trees.to_bytes({'reason': str(bad), 'batch': batch}))
        except (OSError, TypeError, ValueError):
            logger.exception('the batch could not be written to %s', name)


def _are_finite(tensors: List[torch.Tensor]) -> bool:
    if native_steps.can_be_used(tensors):
        return math.isfinite(native_steps.norm(tensors))
    return not tensors or bool(torch.stack(torch._foreach_norm(tensors)).isfinite().all())


def _running_statistics(model: Any) -> List[torch.Tensor]:
    return [buffer for name, buffer in model.named_buffers() if 'running_' in name or 'num_batches' in name]


def _check_loss(losses: Any) -> None:
    if not bool(torch.isfinite(losses.loss_total).all()):
        raise BadUpdate('its loss is not finite')
