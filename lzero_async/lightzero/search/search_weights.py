"""SearchWeights: a world model's weights as `token_step` takes them."""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple

import torch
from torch import Tensor

from .token_step import CAN_PACK, packed

PACKED_FROM = 256
"""The width from which a pass takes as long as reading its weights does, so that it pays to pack them."""
Pack = Callable[[Tensor], Tensor]

class SearchWeights:
    """Weights that are used together lie together, so they are copies: `refresh` takes them anew if they changed."""

    transformer: List[Tensor]
    reward_and_state: List[Tensor]
    policy_and_value: List[Tensor]
    embeddings: Tensor
    """Of actions."""
    place: Optional[Tensor] = None
    """Learned positions, in a model that has them."""
    correction: Optional[Tensor] = None
    """What keys and values gain by moving to the front when a full context loses its first two positions."""

    def __init__(self, world_model: Any) -> None:
        self._world_model = world_model
        self._tensors = [*world_model.parameters(), *world_model.buffers()]
        self._taken: Optional[Tuple[List[int], Any]] = None
        self.unchanged = False
        """Whether the last `refresh` found all as it was before."""
        self.width: int = world_model.config.embed_dim
        self.group: int = world_model.sim_norm.dim
        on_cpu = world_model.transformer.ln_f.weight.device.type == 'cpu'
        rows: int = world_model.env_num
        self._pack: Optional[Pack] = None
        if CAN_PACK and on_cpu and self.width >= PACKED_FROM:
            self._pack = lambda weight: packed(weight, rows)
        rotary = world_model.config.rotary_emb
        self.longest: Optional[int] = world_model.config.max_seq_len if rotary else None
        """How many rotary positions there are."""
        self.rotations = _rotations(world_model.transformer.freqs_cis[:self.longest]) if rotary else None
        """For query, key and value (which is not turned): (3, position, 1, pairs of numbers)."""

    @torch.no_grad()
    def refresh(self) -> None:
        model = self._world_model
        # Written in place by whoever loads weights, which torch counts; the differences are computed anew.
        now = [tensor._version for tensor in self._tensors], getattr(model, 'pos_emb_diff_k', None)
        self.unchanged = self._taken is not None and self._taken[0] == now[0] and self._taken[1] is now[1]
        if self.unchanged:
            return
        self._taken = now
        pack = self._pack
        self.transformer = [tensor for block in model.transformer.blocks for tensor in _of_block(block, pack)]
        self.transformer += [model.transformer.ln_f.weight, model.transformer.ln_f.bias]
        self.reward_and_state = _of_heads(pack, model.head_rewards, model.head_observations)
        self.policy_and_value = _of_heads(pack, model.head_policy, model.head_value)
        self.embeddings = model.act_embedding_table.weight
        if not model.config.rotary_emb:
            self.place = model.pos_emb.weight
            self.correction = _correction(model)


def _of_block(block: Any, pack: Optional[Pack]) -> List[Tensor]:
    attention = block.attn
    layers = (attention.query, attention.key, attention.value)
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    if pack is not None:
        together = [pack(torch.cat(weights)), torch.cat(biases)]
    else:
        together = [torch.stack(weights).transpose(1, 2).contiguous(), torch.stack(biases).unsqueeze(1)]
    return [
        block.ln1.weight,
        block.ln1.bias,
        *together,
        *_of_linear(attention.proj, pack),
        block.ln2.weight,
        block.ln2.bias,
        *_of_linear(block.mlp[0], pack),
        *_of_linear(block.mlp[2], pack),
    ]


def _of_heads(pack: Optional[Pack], *heads: Any) -> List[Tensor]:
    modules = [head.head_module for head in heads]
    hidden = torch.cat([module[0].weight for module in modules])
    return [
        hidden if pack is None else pack(hidden),
        torch.cat([module[0].bias for module in modules]),
        *(tensor for module in modules for tensor in _of_linear(module[2], pack)),
    ]


def _of_linear(layer: Any, pack: Optional[Pack]) -> Tuple[Tensor, Tensor]:
    return layer.weight if pack is None else pack(layer.weight), layer.bias


def _rotations(frequencies: Tensor) -> Tensor:
    """One more than there are: after the last position comes the first."""
    turned = torch.cat((frequencies, frequencies[:1]))
    return torch.stack((turned, turned, torch.ones_like(turned))).unsqueeze(2)


def _correction(model: Any) -> Tensor:
    kept = (2, model.context_length - 1)
    layers = [
        torch.stack((keys[kept], values[kept])) for keys, values in zip(model.pos_emb_diff_k, model.pos_emb_diff_v)
    ]
    return torch.stack(layers)
