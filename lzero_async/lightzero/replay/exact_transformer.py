"""A transformer that only looks, by a faster kernel for its layers: LightZero's numbers, to the last bit.

What is not a linear layer is done by torch as LightZero has it done.
"""
from __future__ import annotations

import math
from typing import Any, List, Optional

import torch.nn.functional as F
from lzero.model.unizero_world_models.transformer import Block, SelfAttention, apply_rotary_emb
from torch import Tensor, nn

from ..updates.lean_loss import has_hooks
from .exact_linear import exact_linear, is_exact


def can_be_used(transformer: Any, sequences: Tensor) -> bool:
    """Whether it is LightZero's own, and the kernel gives torch's numbers for it."""
    rows = sequences.shape[0] * sequences.shape[1]
    return (
        not transformer.training
        and not any(has_hooks(module) for module in transformer.modules())
        and all(_is_known(block) for block in transformer.blocks)
        and all(
            layer.bias is not None and is_exact(sequences, layer.weight, rows)
            for block in transformer.blocks for layer in _layers(block)
        )
    )


def observations_through(transformer: Any, sequences: Tensor, rotations: Optional[Tensor]) -> Tensor:
    """Observations and actions, in turn, through the transformer: its output for the observations.

    The kernel's rows do not depend on how many there are, so those of actions can be left out where nobody looks any
    more.
    """
    x, last = sequences, len(transformer.blocks) - 1
    for number, block in enumerate(transformer.blocks):
        seen = _seen(block.attn, block.ln1(x), rotations)
        if number == last:
            x, seen = x[:, ::2], seen[:, ::2]
        x = x + _linear(block.attn.proj, seen)
        x = x + _linear(block.mlp[2], block.mlp[1](_linear(block.mlp[0], block.ln2(x))))
    output: Tensor = transformer.ln_f(x)
    return output


def _seen(attention: Any, x: Tensor, rotations: Optional[Tensor]) -> Tensor:
    """What each token sees, before it is projected."""
    count, length, width = x.shape
    query, key, value = (
        _linear(layer, x).view(count, length, attention.num_heads, -1).transpose(1, 2)
        for layer in (attention.query, attention.key, attention.value)
    )
    if rotations is not None:
        query, key = apply_rotary_emb(query, key, freqs_cis=rotations)
    scores = (query @ key.transpose(-2, -1)) * (1.0 / math.sqrt(key.size(-1)))
    scores = scores.masked_fill(attention.mask[:length, :length] == 0, -math.inf)
    return (F.softmax(scores, dim=-1) @ value).transpose(1, 2).reshape(count, length, width)


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return exact_linear(x, layer.weight, layer.bias)


def _is_known(block: Any) -> bool:
    kinds = [type(layer) for layer in block.mlp]
    return (
        type(block) is Block and not block.gru_gating and type(block.attn) is SelfAttention
        and kinds == [nn.Linear, nn.GELU, nn.Linear, nn.Dropout]
    )


def _layers(block: Any) -> List[nn.Linear]:
    return [block.attn.query, block.attn.key, block.attn.value, block.attn.proj, block.mlp[0], block.mlp[2]]
