"""Policies of the roles, and how weights get out of one and into another."""
from __future__ import annotations

import contextlib
import copy
from typing import Any, ContextManager, Dict, Optional

import torch
from ding.policy import create_policy
from lzero.policy import InverseScalarTransform

from ..core.errors import ConfigError
from ..torch_weights import copied, load_module
from .search.pooled_search import use_pooled_search
from .search.scripted_search import use_scripted_search


def weight_source(policy: Any) -> Any:
    """What a learner's weights are read from: its model, or a policy that publishes more than that.

    Such a policy has `get_weights()` and `load_weights(weights, policy_version)`.
    """
    return policy if hasattr(policy, 'get_weights') else policy._learn_model


def export_learner_state(policy: Any, train_iter: int, env_step: int) -> Dict[str, Any]:
    """All of the learner's state, copied, in the form of a LightZero checkpoint."""
    state: Dict[str, Any] = copied(policy.learn_mode.state_dict())
    state.update(last_iter=train_iter, last_step=env_step)
    return state


class SharedPolicy:
    """The learner's own policy, lent to another role while the learner waits. There is nothing to load."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.policy_cfg = policy.cfg
        self.device: str = policy.cfg.device

    def load_weights(self, weights: Any, policy_version: int) -> None:
        pass


class RolePolicy:
    """A policy of a role's own, on a device of its own, which works with one snapshot at a time.

    LightZero's learn, collect and eval models are one module that also holds the search caches, so roles that work at
    the same time cannot share it.
    """

    def __init__(
        self, policy_cfg: Any, model: Optional[torch.nn.Module], field: str, device: str, accelerate: bool
    ) -> None:
        """`model` is the role's own from now on; without one it is made from the config."""
        self.device = device
        self.policy_cfg = copy.deepcopy(policy_cfg)
        self.policy_cfg.device = device
        self.policy_cfg.cuda = device != 'cpu'
        self.policy_cfg.model.world_model_cfg.device = device
        with on_device(device):
            # The field `learn` would add an optimizer and a target model; all it has that searching needs is this:
            self.policy = create_policy(
                self.policy_cfg, model=None if model is None else _moved(model, device), enable_field=[field]
            )
            self.policy.inverse_scalar_transform_handle = InverseScalarTransform(
                self.policy_cfg.model.support_scale, device, self.policy_cfg.model.categorical_distribution
            )
        if accelerate and not use_pooled_search(self.policy, field):
            use_scripted_search(self.policy, field)

    @classmethod
    def beside(cls, learner_policy: Any, field: str, device: str, accelerate: bool) -> 'RolePolicy':
        """With a copy of the learner's model: faster than making one anew, and true to a model of the user's own."""
        model = learner_policy._model
        return cls(learner_policy.cfg, copy.deepcopy(getattr(model, '_orig_mod', model)), field, device, accelerate)

    def load_weights(self, weights: Any, policy_version: int) -> None:
        """Take over the weights and forget what the old ones left in the caches."""
        if hasattr(self.policy, 'load_weights'):
            self.policy.load_weights(weights, policy_version)
        else:
            load_module(self.policy._model, weights)
        forget_caches(self.policy._model, self.policy_cfg)


def forget_caches(model: Any, policy_cfg: Any) -> None:
    """Let nothing that older weights have computed be used any more."""
    if not policy_cfg.model.world_model_cfg.rotary_emb:
        model.world_model.precompute_pos_emb_diff_kv()
    model.world_model.clear_caches()


def _moved(model: torch.nn.Module, device: str) -> torch.nn.Module:
    moved: torch.nn.Module = model.to(device)
    for module in moved.modules():
        if isinstance(vars(module).get('device'), torch.device):  # a plain attribute: transformers has properties
            setattr(module, 'device', torch.device(device))  # noqa: B010  not a submodule
    return moved


def check_device(name: str, device: str) -> None:
    if device != 'cpu' and not torch.cuda.is_available():
        raise ConfigError(f"{name} must be 'cpu' where torch sees no CUDA device, got {device!r}")
    if ':' in device and int(device.split(':')[1]) >= torch.cuda.device_count():
        raise ConfigError(f'{name} must name one of {torch.cuda.device_count()} CUDA devices, got {device!r}')


def on_device(device: str) -> ContextManager[Any]:
    """Makes a bare 'cuda', which is what LightZero asks for, mean `device` in the calling thread."""
    return torch.cuda.device(device) if device.startswith('cuda:') else contextlib.nullcontext()
