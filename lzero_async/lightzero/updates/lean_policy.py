"""Makes a policy's updates cheaper, as far as its parts are known."""
from __future__ import annotations

import logging
from typing import Any

from ..then import Then
from . import lean_loss, lean_update
from .lean_optimizer import use_lean_steps
from .lean_world_model import use_lean_training

logger = logging.getLogger(__name__)


def use_lean_updates(policy: Any) -> None:
    """For a policy that learns, before its `learn_mode` is handed out.

    Its updates are those of LightZero up to rounding, with the same random draws. What is not LightZero's own UniZero
    stays as it is: each part is looked at here, once.
    """
    world_model = policy._learn_model.world_model
    of_loss, of_update = lean_loss.why_not(world_model), lean_update.why_not(policy)
    loss = world_model.compute_loss
    use_lean_training(policy)
    if of_loss is None:
        lean = lean_loss.LeanLoss(world_model)
        world_model.compute_loss = loss.of(lean) if isinstance(loss, Then) else lean
    else:
        logger.info('the loss is computed by LightZero: %s', of_loss)
    if of_update is None:
        policy._forward_learn = lean_update.LeanUpdate(policy)
        use_lean_steps(policy._optimizer_world_model)
    else:
        logger.info('updates are made by LightZero: %s', of_update)
