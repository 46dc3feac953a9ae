"""One update of a UniZero policy with less beside its loss: what `UniZeroPolicy._forward_learn` does."""
from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import torch
from lzero.policy import phi_transform, scalar_transform
from lzero.policy.unizero import UniZeroPolicy
from torch import Tensor

from . import native_steps
from .lean_target import SoftUpdate

GIGABYTE = 1024 ** 3


def why_not(policy: Any) -> Optional[str]:
    """What of this policy LeanUpdate does not know; None if it knows all of it."""
    cfg = policy._cfg
    if getattr(type(policy), '_forward_learn', None) is not UniZeroPolicy._forward_learn:
        return f'_forward_learn of {type(policy).__name__}'
    for name in ('use_augmentation', 'use_wandb', 'analysis_sim_norm'):
        if cfg.get(name, False):
            return name
    if cfg.model.frame_stack_num != 1 or not cfg.model.self_supervised_learning_loss:
        return 'its way to stack observations'
    return None


class LeanUpdate:
    """Stands in for the `_forward_learn` of `policy`. It tells what the host tells, under the same names."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        shape = policy._cfg.model.observation_shape
        self._observation_shape = (shape,) if isinstance(shape, int) else tuple(shape)

    def __call__(self, data: Tuple[Any, Any, int]) -> Dict[str, float]:
        policy, train_iter = self._policy, data[2]
        for model in (policy._learn_model, policy._target_model):
            if not model.world_model.training:  # a walk through all modules, and they mostly are
                model.train()
        batch, told = self._prepared(data[0], data[1])
        losses = policy._learn_model.world_model.compute_loss(
            batch, policy._target_model.world_model.tokenizer, policy.inverse_scalar_transform_handle
        )
        loss = losses.loss_total / policy.accumulation_steps
        told['weighted_total_loss'] = loss.detach()
        assert math.isfinite(told['weighted_total_loss']), f'the loss is {float(loss)}'
        told['total_grad_norm_before_clip_wm'] = self._step(loss, train_iter)
        if policy._cfg.cos_lr_scheduler or policy._cfg.piecewise_decay_lr_scheduler:
            policy.lr_scheduler.step()
        self._follow()
        _tell_losses(told, losses.intermediate_losses)
        return {**self._settings(), **_numbers(told)}

    def _prepared(self, current: Any, targets: Any) -> Tuple[Dict[str, Tensor], Dict[str, Tensor]]:
        """The batch that compute_loss takes, and what is to be told of it."""
        cfg = self._policy._cfg
        observations, actions, _, mask, _, _, _, timesteps = current
        device = cfg.device
        reward, value = (on_device(target, device).float().view(cfg.batch_size, -1) for target in targets[:2])
        policy = on_device(targets[2], device).float()[:, :-1]
        scalars = torch.stack((reward, value))
        scaled = scalar_transform(scalars)
        support = self._policy.value_support
        categories = phi_transform(support, scaled.flatten(0, 1))[:, :-1].chunk(2)
        valid = on_device(mask, device)[:, :-1] == 1
        entropy = -(policy * torch.log(policy + 1e-9)).sum(-1)
        means, scaled_means = scalars.flatten(1).mean(1), scaled.flatten(1).mean(1)
        told = {
            'target_policy_entropy': (entropy * valid).sum() / valid.sum(),
            'target_reward': means[0],
            'target_value': means[1],
            'transformed_target_reward': scaled_means[0],
            'transformed_target_value': scaled_means[1],
        }
        return {
            'observations': on_device(observations, device).view(cfg.batch_size, -1, *self._observation_shape)[:, :-1],
            'actions': on_device(actions, device).long(),
            'timestep': on_device(timesteps, device).long(),
            'rewards': categories[0],
            'target_value': categories[1],
            'target_policy': policy,
            'mask_padding': valid,
            'ends': torch.zeros(valid.shape, dtype=torch.long, device=valid.device),
        }, told

    def _step(self, loss: Tensor, train_iter: int) -> Tensor:
        """Returns the norm of the gradients before they were clipped."""
        policy = self._policy
        optimizer, accumulated = policy._optimizer_world_model, policy.accumulation_steps
        if train_iter % accumulated == 0:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if (train_iter + 1) % accumulated != 0:
            return torch.zeros(())
        parameters = [parameter for group in optimizer.param_groups for parameter in group['params']]
        norm = _clip(parameters, policy._cfg.grad_clip_value)
        if policy._cfg.multi_gpu:
            policy.sync_gradients(policy._learn_model)
        optimizer.step()
        if accumulated > 1:
            torch.cuda.empty_cache()
        return norm

    def _follow(self) -> None:
        target = self._policy._target_model
        if isinstance(target.update, SoftUpdate):
            target.update.follow()
        else:
            target.update(self._policy._learn_model.state_dict())

    def _settings(self) -> Dict[str, float]:
        policy, allocated, most = self._policy, 0.0, 0.0
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            allocated, most = torch.cuda.memory_allocated() / GIGABYTE, torch.cuda.max_memory_allocated() / GIGABYTE
        return {
            'Current_GPU': allocated,
            'Max_GPU': most,
            'collect_mcts_temperature': policy._collect_mcts_temperature,
            'collect_epsilon': policy._collect_epsilon,
            'cur_lr_world_model': policy._optimizer_world_model.param_groups[0]['lr'],
            'analysis/l2_norm_before': policy.l2_norm_before,
            'analysis/l2_norm_after': policy.l2_norm_after,
            'analysis/grad_norm_before': policy.grad_norm_before,
            'analysis/grad_norm_after': policy.grad_norm_after,
        }


def _clip(parameters: List[Tensor], most: float) -> Tensor:
    """Returns the norm of all gradients before."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if native_steps.can_be_used(gradients):
        return torch.tensor(native_steps.clip(gradients, most))
    return torch.nn.utils.clip_grad_norm_(parameters, most, foreach=True)


def on_device(array: np.ndarray, device: Any) -> Tensor:
    """An array of a batch on the device where it is learned from.

    A copy to a GPU begins from memory that is pinned, and is not waited for: what follows on the GPU is.
    """
    tensor = torch.from_numpy(array)
    if torch.device(device).type == 'cpu':
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def _tell_losses(told: Dict[str, Tensor], losses: Dict[str, Any]) -> None:
    for name, of in (
        ('obs_loss', 'loss_obs'), ('reward_loss', 'loss_rewards'), ('policy_loss', 'loss_policy'),
        ('value_loss', 'loss_value'), ('latent_recon_loss', 'latent_recon_loss'),
        ('perceptual_loss', 'perceptual_loss'), ('orig_policy_loss', 'orig_policy_loss'),
        ('policy_entropy', 'policy_entropy'), ('analysis/dormant_ratio_encoder', 'dormant_ratio_encoder'),
        ('analysis/dormant_ratio_world_model', 'dormant_ratio_world_model'),
        ('analysis/latent_state_l2_norms', 'latent_state_l2_norms'),
    ):
        told[name] = losses[of]
    for step in ('first', 'middle', 'last'):
        for name in ('loss_value', 'loss_policy', 'loss_rewards', 'loss_obs'):
            told[f'analysis/{step}_step_{name}'] = losses[f'{step}_step_losses'][name]


def _numbers(told: Dict[str, Tensor]) -> Dict[str, float]:
    """All at once: on a GPU one wait instead of one for each."""
    first = next(iter(told.values()))
    values: List[float] = torch.stack([value.detach().to(first) for value in told.values()]).tolist()
    return dict(zip(told, values))
