"""UniZero's loss in fewer and cheaper passes: that of `WorldModel.compute_loss`, up to rounding."""
from __future__ import annotations

import copy
from typing import Any, Callable, Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from lzero.model.common import RepresentationNetworkMLP
from lzero.model.unizero_world_models.slicer import Head
from lzero.model.unizero_world_models.tokenizer import Tokenizer
from lzero.model.unizero_world_models.transformer import Block, SelfAttention, Transformer
from lzero.model.unizero_world_models.utils import LossWithIntermediateLosses
from lzero.model.unizero_world_models.world_model import WorldModel
from torch import Tensor, nn

from ..then import Then
from . import native_heads
from .lean_transformer import sequence, sim_norm, transform
from .tokens import Tokens


def why_not(world_model: Any) -> Optional[str]:
    """What of this world model LeanLoss does not know; None if it knows all of it."""
    config = world_model.config
    expected = [(world_model, WorldModel), (world_model.tokenizer, Tokenizer), (world_model.transformer, Transformer)]
    for block in world_model.transformer.blocks:
        expected += [(block, Block), (block.attn, SelfAttention)]
    for name in ('head_rewards', 'head_observations', 'head_policy', 'head_value'):
        head = getattr(world_model, name)
        expected += [(head, Head), (getattr(head, 'head_module', None), nn.Sequential)]
    for module, kind in expected:
        if type(module) is not kind:
            return f'{type(module).__name__} in the place of {kind.__name__}'
    own = vars(world_model)
    patched = 'forward' in own or ('compute_loss' in own and not isinstance(own['compute_loss'], Then))
    if patched or any(has_hooks(module) for module in world_model.modules()):
        return 'functions or hooks of the user'
    for name in ('continuous_action_space', 'analysis_dormant_ratio', 'gru_gating'):
        if getattr(config, name, False):
            return name
    if world_model.num_observations_tokens != 1:
        return f'{world_model.num_observations_tokens} tokens per observation'
    if world_model.predict_latent_loss_type not in ('mse', 'group_kl'):
        return f'predict_latent_loss_type {world_model.predict_latent_loss_type!r}'
    return None


def has_hooks(module: nn.Module) -> bool:
    kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(kinds)


class LeanLoss:
    """Stands in for a world model's `compute_loss`, in training mode.

    It is an object instead of a function, so that a copy of the model works on its own parameters.
    """

    def __init__(self, world_model: Any) -> None:
        self._world_model = world_model
        self.when_busy: Callable[[], None] = lambda: None
        """Called just before the transformer's pass, which is long and holds no GIL. A copy calls nobody."""

    def __deepcopy__(self, memo: Any) -> LeanLoss:
        return LeanLoss(copy.deepcopy(self._world_model, memo))

    def __call__(self, batch: Dict[str, Any], target_tokenizer: Any = None, *_: Any, **__: Any) -> Any:
        model = self._world_model
        # In the host's order, since encoders may draw random numbers, too.
        embeddings = encode(model.tokenizer, batch['observations'])
        # No token looks ahead, and no loss is taken of padding: what comes behind the last valid step counts nowhere.
        steps = Tokens.until_last(batch['mask_padding'])
        output = transform(model, embeddings, batch, steps, self.when_busy)
        with torch.no_grad():
            target = encode(target_tokenizer, batch['observations'])
        of_observations, of_actions = torch.split(output.view(-1, 2 * model.embed_dim), model.embed_dim, dim=1)
        policy_loss, entropy = _cross_entropy(
            model.head_policy, of_observations, steps.packed(batch['target_policy'])
        )
        latent_loss, foretold = _latent_loss(model, of_actions, target, steps)
        losses = StepLosses(model, batch['mask_padding'])
        losses.add({'loss_obs': latent_loss}, foretold)
        losses.add({
            'loss_rewards': _cross_entropy(model.head_rewards, of_actions, steps.packed(batch['rewards']))[0],
            'loss_value': _cross_entropy(model.head_value, of_observations, steps.packed(batch['target_value']))[0],
            'loss_policy': policy_loss - model.policy_entropy_weight * entropy,
            'orig_policy_loss': policy_loss.detach(),
            'policy_entropy': entropy.detach(),
        }, steps.rows)
        return losses.result(latent_state_l2_norms=embeddings.detach().norm(dim=1).mean())


# -------------------------------------------------------------------- the networks


def encode(tokenizer: Any, observations: Tensor) -> Tensor:
    """(batch, steps, ...) observations as (batch * steps, width) embeddings."""
    observations = observations.flatten(0, 1)
    encoder = tokenizer.encoder
    if type(encoder) is not RepresentationNetworkMLP:
        embeddings: Tensor = encoder(observations)
        return embeddings
    return sim_norm(encoder.sim_norm, sequence(encoder.fc_representation, observations))


# -------------------------------------------------------------------- the losses


def _latent_loss(model: Any, of_actions: Tensor, target: Tensor, steps: Tokens) -> Tuple[Tensor, Tensor]:
    """Of each step but the first: how well the action before it foretold it. With it the steps, as flat indices."""
    foretold = steps.rows[1:][steps.rows[1:] == steps.rows[:-1] + 1]
    foretold = foretold[foretold.remainder(steps.shape[1]) > 0]
    layers, x = model.head_observations.head_module, of_actions.index_select(0, steps.places[foretold - 1])
    target, squares = target.index_select(0, foretold), model.predict_latent_loss_type == 'mse'
    if native_heads.can_be_used(layers, x) and len(layers) == 4:
        kind = native_heads.SQUARES if squares else native_heads.GROUPS
        return native_heads.divergence(layers, x, target, kind), foretold
    latent = sequence(layers, x)
    if squares:
        return (latent - target).square().mean(-1), foretold
    groups = (-1, model.num_groups, model.group_size)
    latent, target = latent.view(groups) + 1e-6, target.view(groups) + 1e-6
    return (target * (target.log() - latent.log())).sum(-1).mean(-1), foretold


def _cross_entropy(head: Any, x: Tensor, wanted: Tensor) -> Tuple[Tensor, Tensor]:
    """Of each row, and the entropy of what the head says."""
    layers = head.head_module
    if native_heads.can_be_used(layers, x) and len(layers) == 3:
        return native_heads.cross_entropy(layers, x, wanted)
    logarithms = F.log_softmax(sequence(layers, x), dim=1)
    return -(logarithms * wanted).sum(1), -(logarithms.exp() * logarithms).sum(1)


class StepLosses:
    """The losses of each step, and what the host makes of them."""

    def __init__(self, model: Any, mask: Tensor) -> None:
        self._model = model
        valid = mask.float()
        self._counts = valid.sum(0)
        assert self._counts.any(), 'mask_padding is all zeros'
        self._step_of = (valid.unsqueeze(2) * torch.eye(mask.shape[1], device=mask.device)).flatten(0, 1)
        """For each step of all sequences a 1 in the column of its number, if it is valid."""
        self._sums: Dict[str, Tensor] = {}

    def add(self, losses: Dict[str, Tensor], at: Tensor) -> None:
        """`at` is where they belong among the steps of all sequences."""
        sums = torch.stack(tuple(losses.values())) @ self._step_of.index_select(0, at)
        self._sums.update(zip(losses, sums.unbind()))

    def result(self, **told: Tensor) -> Any:
        model, counts = self._model, self._counts
        discounts = model.gamma ** torch.arange(len(counts), device=counts.device)
        # There is no loss of the first observation, which nothing foretells.
        wanted = torch.stack([counts[1:].sum() if name == 'loss_obs' else counts.sum() for name in self._sums])
        sums = torch.stack(tuple(self._sums.values()))
        discounted = dict(zip(self._sums, ((sums * discounts).sum(1) / wanted).unbind()))
        zero = torch.zeros((), device=counts.device)
        return LossWithIntermediateLosses(
            latent_recon_loss_weight=model.latent_recon_loss_weight,
            perceptual_loss_weight=model.perceptual_loss_weight,
            continuous_action_space=False,
            **discounted,
            latent_recon_loss=model.latent_recon_loss,
            perceptual_loss=zero,
            **self._at_some_steps(),
            dormant_ratio_encoder=zero,
            dormant_ratio_world_model=zero,
            **told,
        )

    def _at_some_steps(self) -> Dict[str, Dict[str, Tensor]]:
        """Means over the samples that have the first, the middle and the last step."""
        some: Dict[str, Dict[str, Tensor]] = {f'{place}_step_losses': {} for place in ('first', 'middle', 'last')}
        for name, sums in self._sums.items():
            first = 1 if name == 'loss_obs' else 0
            steps = len(sums) - first
            means = sums.detach() / self._counts
            some['first_step_losses'][name] = means[first]
            some['middle_step_losses'][name] = means[first + steps // 2]
            # The host counts the samples of an observation's last step one step too early.
            some['last_step_losses'][name] = sums[-1].detach() / self._counts[-1 - first]
        return some
