"""UniZero's transformer in training: LightZero's numbers up to rounding, and its random draws."""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from lzero.model.common import SimNorm
from torch import Tensor, nn

from . import lean_ops, native_transformer
from .tokens import Kept, Tokens


def transform(
    model: Any, embeddings: Tensor, batch: Dict[str, Any], steps: Tokens, when_busy: Callable[[], None]
) -> Tensor:
    """Observations and actions of each sequence, in turn, through the transformer: two rows for each of `steps`.

    `when_busy` is called once all is ready for its pass.
    """
    transformer, actions, rotations = model.transformer, batch['actions'], None
    count, length = actions.shape[0], 2 * actions.shape[1]
    x = torch.stack((embeddings.view(*actions.shape, -1), model.act_embedding_table(actions)), dim=2).flatten(1, 2)
    if transformer.config.rotary_emb:
        # A step has two tokens, and positions count tokens.
        first = torch.as_tensor(batch['timestep'], device=x.device).reshape(count, -1)[:, :1] * 2
        places = first.remainder(transformer.config.max_seq_len) + torch.arange(length, device=x.device)
        rotations = transformer.freqs_cis[places]
    else:
        x = x + model.pos_emb.weight[:length]
    tokens = steps.doubled()
    drawn = _draw(transformer, (count, length, x.shape[2]), x.device)
    x = tokens.packed(x)
    when_busy()
    if native_transformer.can_be_used(transformer, x):
        return native_transformer.transform(transformer, x, tokens, rotations, drawn)
    return _transform(transformer, x, tokens, rotations, drawn)


def _draw(transformer: Any, shape: Tuple[int, int, int], device: torch.device) -> List[Optional[Kept]]:
    """What is kept of the input, then of attention, its output and the MLP's of each block; drawn in this order.

    It is drawn for all tokens, as the host does, also for those that are not there.
    """
    count, length, _ = shape
    drawn = [_kept(transformer.drop, shape, device)]
    for block in transformer.blocks:
        attention = block.attn
        drawn += [
            _kept(attention.attn_drop, (count, attention.num_heads, length, length), device),
            _kept(attention.resid_drop, shape, device),
            _kept(block.mlp[3], shape, device),
        ]
    return drawn


def _kept(dropout: nn.Dropout, shape: Tuple[int, ...], device: torch.device) -> Optional[Kept]:
    if not dropout.training or dropout.p == 0:
        return None
    return lean_ops.kept_by_dropout(shape, dropout.p, device)


def _transform(
    transformer: Any, x: Tensor, tokens: Tokens, rotations: Optional[Tensor], drawn: List[Optional[Kept]]
) -> Tensor:
    norms = [*(block.ln1 for block in transformer.blocks), transformer.ln_f]
    x, normed = lean_ops.add_norm(None, x, drawn[0], tokens, norms[0])
    for number, (block, norm) in enumerate(zip(transformer.blocks, norms[1:])):
        of_attention, of_output, of_mlp = drawn[1 + 3 * number:4 + 3 * number]
        qkv = F.linear(normed, *query_key_value(block.attn))
        seen = lean_ops.attend(qkv, block.attn.num_heads, tokens, rotations, of_attention)
        x, normed = lean_ops.add_norm(x, block.attn.proj(seen), of_output, tokens, block.ln2)
        x, normed = lean_ops.add_norm(x, sequence(block.mlp[:3], normed), of_mlp, tokens, norm)
    return normed


def query_key_value(attention: Any) -> Tuple[Tensor, Tensor]:
    """Weight and bias of the three layers as one."""
    layers = (attention.query, attention.key, attention.value)
    return torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])


def sequence(layers: nn.Sequential, x: Tensor) -> Tensor:
    for layer in layers:
        if type(layer) is nn.GELU and layer.approximate == 'tanh':
            x = lean_ops.gelu(x)
        elif type(layer) is SimNorm:
            x = sim_norm(layer, x)
        else:
            x = layer(x)
    return x


def sim_norm(layer: SimNorm, x: Tensor) -> Tensor:
    return lean_ops.softmax(x.view(len(x), -1, layer.dim)).flatten(1)
