"""UniZero's inference as functions of tensors: one token through the transformer, and one simulation of a search.

A scripted function is entered once and holds no GIL while it works. It computes what LightZero's modules compute, on
keys and values that lie side by side in one tensor: (layer, key or value, row, head, position, number).
"""
from __future__ import annotations

from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

CAN_PACK = bool(torch._C._has_mkldnn) and hasattr(torch.ops.mkldnn, '_linear_pointwise')
"""Whether weights can be packed for few rows, in the form that oneDNN reads fastest."""
if CAN_PACK:

    @torch.jit.script
    def packed_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, bias, 'none', [], '')
        return output
else:
    packed_linear = torch.jit.script(F.linear)


def packed(weight: Tensor, rows: int) -> Tensor:
    """The weight of a linear layer, for `packed_linear`."""
    reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), rows)
    return reordered


@torch.jit.script
def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    output: Tensor = packed_linear(x, weight, bias) if weight.is_mkldnn else F.linear(x, weight, bias)
    return output


@torch.jit.script
def query_key_value(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(3, row, number). The three layers lie one after the other if they are packed, else one behind the other."""
    if weight.is_mkldnn:
        together: Tensor = packed_linear(x, weight, bias)
        return together.view(x.shape[0], 3, x.shape[1]).transpose(0, 1).contiguous()
    return torch.baddbmm(bias, x.expand(3, x.shape[0], x.shape[1]), weight)


@torch.jit.script
def token_pass(x: Tensor, rotation: Optional[Tensor], kv: Tensor, size: int, weights: List[Tensor]) -> Tensor:
    """One token per row, after the `size` positions that are in `kv`, where its own keys and values are written.

    A row attends to all positions up to its own, also to zeros at its front, as in LightZero.
    """
    rows, width = x.shape
    heads, positions, per_head = kv.shape[3:]
    scale = 1.0 / float(per_head) ** 0.5
    for layer in range(kv.shape[0]):
        w = weights[layer * 12:layer * 12 + 12]
        normed = F.layer_norm(x, [width], w[0], w[1])
        qkv = query_key_value(normed, w[2], w[3])
        if rotation is not None:
            paired = torch.view_as_complex(qkv.view(3, rows, heads, per_head // 2, 2))
            qkv = torch.view_as_real(paired * rotation)
        qkv = qkv.view(3, rows, heads, per_head)
        kv[layer, :, :, :, size] = qkv[1:]
        cached = kv[layer].view(2, rows * heads, positions, per_head)[:, :, :size + 1]
        query = qkv[0].view(rows * heads, 1, per_head)
        scores = torch.baddbmm(query[:, :, :1], query, cached[0].transpose(1, 2), beta=0.0, alpha=scale)
        attended = torch.bmm(torch.softmax(scores, dim=-1), cached[1]).view(rows, width)
        x = x + linear(attended, w[4], w[5])
        normed = F.layer_norm(x, [width], w[6], w[7])
        x = x + linear(F.gelu(linear(normed, w[8], w[9]), approximate='tanh'), w[10], w[11])
    return F.layer_norm(x, [width], weights[-2], weights[-1])


@torch.jit.script
def head_pair(x: Tensor, weights: List[Tensor]) -> Tuple[Tensor, Tensor]:
    """Two heads of the same tokens; their first layers are one."""
    hidden = F.gelu(linear(x, weights[0], weights[1]), approximate='tanh')
    width = x.shape[1]
    return linear(hidden[:, :width], weights[2], weights[3]), linear(hidden[:, width:], weights[4], weights[5])


@torch.jit.script
def scalars(logits: Tensor, support: Tensor) -> Tensor:
    """The numbers that categorical `logits` (quantity, row, category) stand for, with LightZero's transform undone."""
    # LightZero takes logits for probabilities if those of all rows sum to one.
    are_probabilities = ((logits.sum(2) - 1).abs() <= 2e-5).all(1)
    probabilities = torch.where(are_probabilities.view(-1, 1, 1), logits, torch.softmax(logits, dim=2))
    value = (probabilities * support).sum(2)
    epsilon = 0.001
    root = (torch.sqrt(1 + 4 * epsilon * (torch.abs(value) + 1 + epsilon)) - 1) / (2 * epsilon)
    return torch.sign(value) * (root * root - 1)


@torch.jit.script
def simulation(
    kv: Tensor, size: int, actions: Tensor, positions: Tensor, rotations: Optional[Tensor], place: Optional[Tensor],
    embeddings: Tensor, group: int, support: Tensor,
    transformer: List[Tensor], reward_and_state: List[Tensor], policy_and_value: List[Tensor],
) -> Tensor:
    """An action, and the state that it leads to, after what is in `kv`.

    Row by row: the state, the policy's logits, the reward and the value, side by side. `positions` are those of the
    actions: of `rotations` in a model with rotary positions, of `place` in one with learned positions.
    """
    x = embeddings.index_select(0, actions)
    rotation: Optional[Tensor] = None
    if rotations is not None:
        rotation = rotations.index_select(1, positions)
    if place is not None:
        x = x + place.index_select(0, positions)
    reward, state = head_pair(token_pass(x, rotation, kv, size, transformer), reward_and_state)
    rows, width = state.shape
    state = torch.softmax(state.view(rows, width // group, group), dim=2).view(rows, width)
    x = state
    if rotations is not None:
        rotation = rotations.index_select(1, positions + 1)
    if place is not None:
        x = x + place.index_select(0, positions + 1)
    policy, value = head_pair(token_pass(x, rotation, kv, size + 1, transformer), policy_and_value)
    numbers = scalars(torch.stack((reward, value)), support)
    return torch.cat((state, policy, numbers.t()), dim=1)


@torch.jit.script
def expand(
    pool: Tensor, index: Tensor, size: int, keep_from: int, keep: int, correction: Optional[Tensor],
    rotations: Optional[Tensor], place: Optional[Tensor], embeddings: Tensor, group: int, support: Tensor,
    transformer: List[Tensor], reward_and_state: List[Tensor], policy_and_value: List[Tensor],
) -> Tensor:
    """One simulation whose rows have equally many positions in the pool: from their places in it, to new ones.

    `index` holds the places to read, the places to write, the actions and their positions. Of the positions in the end
    `keep` are kept, from `keep_from` on; `correction` is what learned positions gain by that.
    """
    kv = pool.index_select(2, index[0])
    outputs: Tensor = simulation(
        kv, size, index[2], index[3], rotations, place, embeddings, group, support, transformer, reward_and_state,
        policy_and_value,
    )
    kept = kv.narrow(4, keep_from, keep)
    if correction is not None:
        kept = kept + correction
    pool.narrow(4, 0, keep).index_copy_(2, index[1], kept)
    return outputs


@torch.jit.script
def shifted(kv: Tensor, by: Tensor) -> Tensor:
    """Each row moved to the right by its own number of positions, to the left where that is negative; zeros follow."""
    positions = kv.shape[4]
    source = torch.arange(positions, device=kv.device).unsqueeze(0) - by.unsqueeze(1)
    inside = (source >= 0) & (source < positions)
    index = source.clamp(0, positions - 1).view(1, 1, -1, 1, positions, 1).expand_as(kv)
    return kv.gather(4, index) * inside.view(1, 1, -1, 1, positions, 1)
