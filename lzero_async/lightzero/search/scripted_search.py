"""The same search with fewer trips through Python.

A UniZero search makes thousands of tiny torch calls per step, and gives up and retakes the GIL around each: beside a
learner it spends its time waiting for the GIL. Here each pass through the transformer, each head and each value
transform is one call into a scripted function, which computes what LightZero computes and holds no GIL meanwhile.
"""
from __future__ import annotations

import logging
import math
from typing import Any, Callable, List, Optional

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .token_step import scalars

logger = logging.getLogger(__name__)


def use_scripted_search(policy: Any, field: str) -> None:
    """Make the searches of a role's policy (`field` is 'collect' or 'eval') use the scripted functions.

    Weights that are loaded later count: the functions work on the module's own parameters.
    """
    world_model = policy._model.world_model
    transformer = world_model.transformer
    if transformer.config.gru_gating:
        logger.info('gru_gating: the transformer is left as it is')
    else:
        transformer.forward = _CachedTransformer(transformer)
    for name in ('head_observations', 'head_rewards', 'head_policy', 'head_value'):
        head = getattr(world_model, name)
        try:
            head.head_module = torch.jit.script(head.head_module)
        except Exception as error:  # what cannot be scripted works as before
            logger.info('%s is left as it is: %s', name, str(error).strip().splitlines()[0])
    search = policy._mcts_collect if field == 'collect' else policy._mcts_eval
    search.inverse_scalar_transform_handle = scripted_inverse(search.inverse_scalar_transform_handle)
    policy.inverse_scalar_transform_handle = scripted_inverse(policy.inverse_scalar_transform_handle)


class _CachedTransformer:
    """Stands in for a Transformer's forward. What is not a cached inference pass goes to the original."""

    def __init__(self, transformer: Any) -> None:
        self._transformer = transformer
        self._original: Callable[..., Tensor] = transformer.forward
        self._weights: List[Tensor] = []
        for block in transformer.blocks:
            attention = block.attn
            for layer in (
                block.ln1, attention.query, attention.key, attention.value, attention.proj, block.ln2,
                block.mlp[0], block.mlp[2],
            ):
                self._weights += [layer.weight, layer.bias]
        self._weights += [transformer.ln_f.weight, transformer.ln_f.bias]
        self._heads: int = transformer.config.num_heads
        self._rotary = bool(transformer.config.rotary_emb)

    def __call__(
        self, sequences: Tensor, past_keys_values: Any = None, valid_context_lengths: Optional[Tensor] = None,
        start_pos: Any = 0,
    ) -> Tensor:
        positions = self._positions(start_pos, sequences) if self._rotary else None
        if (
            past_keys_values is None or valid_context_lengths is not None or torch.is_grad_enabled()
            or self._transformer.training or (self._rotary and positions is None)
        ):
            return self._original(sequences, past_keys_values, valid_context_lengths, start_pos)
        caches = past_keys_values._keys_values
        tokens = sequences.shape[1]
        output: Tensor = cached_pass(
            sequences,
            self._transformer.freqs_cis if self._rotary else None,
            positions,
            self._weights,
            [cache._k_cache._cache for cache in caches],
            [cache._v_cache._cache for cache in caches],
            caches[0]._k_cache._size,
            self._heads,
            self._transformer.blocks[0].attn.mask,
        )
        for cache in caches:
            cache._k_cache._size += tokens
            cache._v_cache._size += tokens
        return output

    def _positions(self, start_pos: Any, sequences: Tensor) -> Optional[Tensor]:
        """The first position of each sequence, in the two forms that searching uses; None for any other."""
        if isinstance(start_pos, (int, np.integer)):
            start_pos = [start_pos] * sequences.shape[0]
        if not isinstance(start_pos, list) or not isinstance(start_pos[0], (int, np.integer)):
            return None
        # The host wraps around at max_seq_len; an action before the first observation is at position -1.
        longest = self._transformer.config.max_seq_len
        return torch.tensor([int(position) % longest for position in start_pos], device=sequences.device)


@torch.jit.script
def cached_pass(
    x: Tensor,
    frequencies: Optional[Tensor],
    positions: Optional[Tensor],
    weights: List[Tensor],
    keys: List[Tensor],
    values: List[Tensor],
    size: int,
    heads: int,
    mask: Tensor,
) -> Tensor:
    """Tokens `x` through all blocks; their keys and values are written into the caches behind the first `size`."""
    batch, tokens, width = x.shape
    per_head = width // heads
    end = size + tokens
    rotation: Optional[Tensor] = None
    if frequencies is not None and positions is not None:
        index = positions.unsqueeze(1) + torch.arange(tokens, device=x.device)
        rotation = frequencies[index].unsqueeze(1)
    hidden = mask[size:end, :end] == 0
    for layer in range(len(keys)):
        w = weights[layer * 16:layer * 16 + 16]
        normed = F.layer_norm(x, [width], w[0], w[1])
        query = F.linear(normed, w[2], w[3]).view(batch, tokens, heads, per_head).transpose(1, 2)
        key = F.linear(normed, w[4], w[5]).view(batch, tokens, heads, per_head).transpose(1, 2)
        value = F.linear(normed, w[6], w[7]).view(batch, tokens, heads, per_head).transpose(1, 2)
        if rotation is not None:
            paired = [batch, heads, tokens, per_head // 2, 2]
            query = torch.view_as_real(torch.view_as_complex(query.reshape(paired)) * rotation).flatten(-2)
            key = torch.view_as_real(torch.view_as_complex(key.reshape(paired)) * rotation).flatten(-2)
        keys[layer][:, :, size:end] = key
        values[layer][:, :, size:end] = value
        scores = (query @ keys[layer][:, :, :end].transpose(-2, -1)) * (1.0 / math.sqrt(per_head))
        scores = torch.softmax(scores.masked_fill(hidden, float('-inf')), dim=-1)
        attended = (scores @ values[layer][:, :, :end]).transpose(1, 2).reshape(batch, tokens, width)
        x = x + F.linear(attended, w[8], w[9])
        normed = F.layer_norm(x, [width], w[10], w[11])
        x = x + F.linear(F.gelu(F.linear(normed, w[12], w[13]), approximate='tanh'), w[14], w[15])
    return F.layer_norm(x, [width], weights[-2], weights[-1])


def scripted_inverse(host: Any) -> Callable[[Tensor], Tensor]:
    """LightZero's InverseScalarTransform as one call."""
    support: Tensor = host.value_support

    def inverse(logits: Tensor) -> Tensor:
        value: Tensor = inverse_categorical(logits, support) if host.categorical_distribution else host(logits)
        return value

    return inverse


def inverse_categorical(logits: Tensor, support: Tensor) -> Tensor:
    numbers: Tensor = scalars(logits.unsqueeze(0), support)
    return numbers.view(-1, 1)
