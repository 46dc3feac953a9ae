"""UniZero's loss in fewer and cheaper passes: that of `WorldModel.compute_loss`, up to rounding."""
from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from lzero.model.common import RepresentationNetworkMLP, SimNorm
from lzero.model.unizero_world_models.slicer import Head
from lzero.model.unizero_world_models.tokenizer import Tokenizer
from lzero.model.unizero_world_models.transformer import Block, SelfAttention, Transformer
from lzero.model.unizero_world_models.utils import LossWithIntermediateLosses
from lzero.model.unizero_world_models.world_model import WorldModel
from torch import Tensor, nn

from . import lean_ops

GROUPED = ('loss_obs', 'loss_rewards', 'loss_value', 'loss_policy', 'orig_policy_loss', 'policy_entropy')
"""The losses that the host also tells for the first, the middle and the last step."""


def why_not(world_model: Any) -> Optional[str]:
    """What of this world model LeanLoss does not know; None if it knows all of it."""
    config = world_model.config
    expected = [(world_model, WorldModel), (world_model.tokenizer, Tokenizer), (world_model.transformer, Transformer)]
    for block in world_model.transformer.blocks:
        expected += [(block, Block), (block.attn, SelfAttention)]
    expected += [(getattr(world_model, name, None), Head) for name in ('head_rewards', 'head_policy', 'head_value')]
    for module, kind in expected:
        if type(module) is not kind:
            return f'{type(module).__name__} in the place of {kind.__name__}'
    if any(_hooks(module) for module in world_model.modules()):
        return 'hooks on its modules'
    for name in ('continuous_action_space', 'analysis_dormant_ratio', 'gru_gating'):
        if config.get(name, False):
            return name
    if world_model.num_observations_tokens != 1:
        return f'{world_model.num_observations_tokens} tokens per observation'
    if world_model.predict_latent_loss_type not in ('mse', 'group_kl'):
        return f'predict_latent_loss_type {world_model.predict_latent_loss_type!r}'
    return None


def _hooks(module: nn.Module) -> bool:
    kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(kinds)


class LeanLoss:
    """Stands in for a world model's `compute_loss`, in training mode.

    It is an object instead of a function, so that a copy of the model works on its own parameters.
    """

    def __init__(self, world_model: Any) -> None:
        self._world_model = world_model

    def __call__(self, batch: Dict[str, Any], target_tokenizer: Any = None, *_: Any, **__: Any) -> Any:
        model = self._world_model
        embeddings = encode(model.tokenizer, batch['observations'])
        sequences = _interleave(model, embeddings, batch['actions'])
        output = _transform(model.transformer, sequences, torch.as_tensor(batch['timestep']).to(sequences.device))
        of_observations, of_actions = output.view(-1, 2 * model.embed_dim).split(model.embed_dim, dim=1)
        with torch.no_grad():
            target = encode(target_tokenizer, batch['observations'])
        losses = _Losses(model, batch)
        losses.add('loss_obs', _latent_loss(model, _next(of_actions, batch), _following(target, batch)))
        losses.add('loss_rewards', _cross_entropy(_run(model.head_rewards, of_actions), batch['rewards']))
        losses.add('loss_value', _cross_entropy(_run(model.head_value, of_observations), batch['target_value']))
        policy = F.log_softmax(_run(model.head_policy, of_observations), dim=1)
        policy_loss = -(policy * batch['target_policy'].flatten(0, 1)).sum(1)
        entropy = -(policy.exp() * policy).sum(1)
        losses.add('loss_policy', policy_loss - model.policy_entropy_weight * entropy)
        losses.add('orig_policy_loss', policy_loss.detach())
        losses.add('policy_entropy', entropy.detach())
        return losses.result(latent_state_l2_norms=embeddings.detach().norm(dim=1).mean())


# -------------------------------------------------------------------- the networks


def encode(tokenizer: Any, observations: Tensor) -> Tensor:
    """(batch, steps, ...) observations as (batch * steps, width) embeddings."""
    observations = observations.flatten(0, 1)
    encoder = tokenizer.encoder
    if type(encoder) is not RepresentationNetworkMLP:
        embeddings: Tensor = encoder(observations)
        return embeddings
    return _sim_norm(encoder.sim_norm, _sequence(encoder.fc_representation, observations))


def _interleave(model: Any, embeddings: Tensor, actions: Tensor) -> Tensor:
    """Embedded observations and actions of each sequence, in turn."""
    observations = embeddings.view(*actions.shape, 1, -1)
    sequences = torch.cat((observations, model.act_embedding_table(actions).unsqueeze(2)), dim=2).flatten(1, 2)
    if not model.config.rotary_emb:
        sequences = sequences + model.pos_emb.weight[:sequences.shape[1]]
    return sequences


def _transform(transformer: Any, x: Tensor, timesteps: Tensor) -> Tensor:
    tokens, rotations = x.shape[1], None
    if transformer.config.rotary_emb:
        # A step has two tokens, and positions count tokens.
        first = (timesteps.reshape(len(x), -1)[:, :1] * 2).remainder(transformer.config.max_seq_len)
        rotations = transformer.freqs_cis[first + torch.arange(tokens, device=x.device)]
    hidden = torch.full((tokens, tokens), -math.inf, device=x.device).triu_(1)
    x = _dropped(transformer.drop, x)
    for block in transformer.blocks:
        x = _attended(block, x, rotations, hidden)
        x = _plus_dropped(x, _sequence(block.mlp[:3], block.ln2(x)), block.mlp[3])
    output: Tensor = transformer.ln_f(x)
    return output


def _attended(block: Any, x: Tensor, rotations: Optional[Tensor], hidden: Tensor) -> Tensor:
    attention = block.attn
    layers = (attention.query, attention.key, attention.value)
    weight, bias = (torch.cat([getattr(layer, name) for layer in layers]) for name in ('weight', 'bias'))
    qkv = F.linear(block.ln1(x), weight, bias)
    batch, tokens, _ = x.shape
    keep = _keep(attention.attn_drop, (batch, attention.num_heads, tokens, tokens), x.device)
    seen = lean_ops.attend(qkv, attention.num_heads, rotations, hidden, keep)
    return _plus_dropped(x, attention.proj(seen), attention.resid_drop)


def _keep(dropout: nn.Dropout, shape: Tuple[int, ...], device: torch.device) -> Optional[Tensor]:
    if not dropout.training or dropout.p == 0:
        return None
    return lean_ops.kept_by_dropout(shape, dropout.p, device)


def _dropped(dropout: nn.Dropout, x: Tensor) -> Tensor:
    keep = _keep(dropout, tuple(x.shape), x.device)
    return x if keep is None else x * keep


def _plus_dropped(x: Tensor, y: Tensor, dropout: nn.Dropout) -> Tensor:
    keep = _keep(dropout, tuple(y.shape), y.device)
    return x + y if keep is None else torch.addcmul(x, y, keep)


def _run(head: Any, tokens: Tensor) -> Tensor:
    return _sequence(head.head_module, tokens)


def _sequence(layers: nn.Sequential, x: Tensor) -> Tensor:
    for layer in layers:
        if type(layer) is nn.GELU and layer.approximate == 'tanh':
            x = lean_ops.gelu(x)
        elif type(layer) is SimNorm:
            x = _sim_norm(layer, x)
        else:
            x = layer(x)
    return x


def _sim_norm(layer: SimNorm, x: Tensor) -> Tensor:
    return lean_ops.softmax(x.unflatten(-1, (-1, layer.dim))).flatten(-2)


# -------------------------------------------------------------------- the losses


def _next(of_actions: Tensor, batch: Dict[str, Any]) -> Tensor:
    """The tokens that foretell an observation which is in the batch: not those of the last actions."""
    return of_actions.unflatten(0, batch['actions'].shape)[:, :-1].flatten(0, 1)


def _following(target: Tensor, batch: Dict[str, Any]) -> Tensor:
    return target.unflatten(0, batch['actions'].shape)[:, 1:].flatten(0, 1)


def _latent_loss(model: Any, tokens: Tensor, target: Tensor) -> Tensor:
    latent = _run(model.head_observations, tokens)
    if model.predict_latent_loss_type == 'mse':
        return (latent - target).square().mean(-1)
    groups = (-1, model.num_groups, model.group_size)
    latent, target = latent.view(groups) + 1e-6, target.view(groups) + 1e-6
    return (target * (target.log() - latent.log())).sum(-1).mean(-1)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return -(F.log_softmax(logits, dim=1) * labels.flatten(0, 1)).sum(1)


class _Losses:
    """The losses of each step, and what the host makes of them."""

    def __init__(self, model: Any, batch: Dict[str, Any]) -> None:
        self._model = model
        self._steps = batch['actions'].shape[1]
        self._mask = batch['mask_padding'].float()
        self._names: List[str] = []
        self._of_step: List[Tensor] = []

    def add(self, name: str, losses: Tensor) -> None:
        """That of observations begins with the second step."""
        self._names.append(name)
        steps = self._steps - 1 if name == 'loss_obs' else self._steps
        self._of_step.append(losses.view(-1, steps) * self._mask[:, -steps:])

    def result(self, **told: Tensor) -> Any:
        model, mask = self._model, self._mask
        self._counts = counts = mask.sum(0)
        assert counts.any(), 'mask_padding is all zeros'
        discounts = model.gamma ** torch.arange(self._steps, device=mask.device)
        self._sums = sums = [losses.sum(0) for losses in self._of_step]
        discounted = {
            name: (of_step * discounts[-len(of_step):]).sum() / counts[-len(of_step):].sum()
            for name, of_step in zip(self._names, sums)
        }
        zero = torch.zeros((), device=mask.device)
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
        for name, sums in zip(self._names, self._sums):
            steps = len(sums)
            # Each loss is masked already. The host looks for the last observation's mask one step too early.
            counts = self._counts[1:] if name == 'loss_obs' else self._counts
            last = self._counts[steps - 1] if name == 'loss_obs' else counts[-1]
            means = sums.detach() / counts
            some['first_step_losses'][name] = means[0]
            some['middle_step_losses'][name] = means[steps // 2]
            some['last_step_losses'][name] = sums[-1].detach() / last
        return some
