"""What a transformer in training spends its time on beside matrix products, done in fewer and faster passes.

On a CPU torch's own kernels for these are slower than they need be: `gelu` and its gradient by their tanh, `softmax`
where it is over a handful of numbers, and `dropout` where it draws. The results are those of torch up to rounding, and
random draws are the same draws. On other devices torch's own are used, where there is one for the purpose.
"""
from __future__ import annotations

import functools
import math
from typing import Any, Callable, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..native import kernels, kernels_for
from . import native_ops
from .tokens import Kept, Tokens

# gelu(x) = x / 2 * (1 + tanh(u)) = x * sigmoid(2 u), where 2 u = SLOPE * (x + CUBIC * x^3)
SLOPE = 2 * math.sqrt(2 / math.pi)
CUBIC = 0.044715

_DRAWN = (1 << 53) - 1
"""The bits that torch makes a uniform number of; it keeps an element if that is less than its probability."""


def gelu(x: Tensor) -> Tensor:
    """GELU with its tanh approximation."""
    if x.device.type != 'cpu':
        return F.gelu(x, approximate='tanh')
    op = _Gelu if kernels_for(x) is None else native_ops.Gelu
    result: Tensor = op.apply(x)  # type: ignore[no-untyped-call]
    return result


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        gate = torch.square(x)
        torch.addcmul(x, gate, x, value=CUBIC, out=gate).mul_(SLOPE).sigmoid_()
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x, gate = ctx.saved_tensors
        # gate + x * SLOPE * (1 + 3 * CUBIC * x^2) * gate * (1 - gate)
        slope = torch.square(x).mul_(3 * CUBIC * SLOPE).add_(SLOPE).mul_(x)
        return slope.addcmul_(slope, gate, value=-1).add_(1).mul_(gate).mul_(grads[0])


def softmax(x: Tensor) -> Tensor:
    """Over a short last dimension."""
    if x.device.type != 'cpu':
        return torch.softmax(x, dim=-1)
    op = _Softmax if kernels_for(x) is None else native_ops.Softmax
    result: Tensor = op.apply(x)  # type: ignore[no-untyped-call]
    return result


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = _turned_softmax(x)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _softmax_gradient(grads[0], ctx.saved_tensors[0])


def _turned_softmax(x: Tensor) -> Tensor:
    """Many short columns side by side suit the processor, many short rows do not: turning them twice is cheaper."""
    if x.device.type != 'cpu':
        return torch.softmax(x, dim=-1)
    columns = x.reshape(-1, x.shape[-1]).t().contiguous()
    return torch.softmax(columns, dim=0).t().contiguous().view_as(x)


def _softmax_gradient(grad: Tensor, result: Tensor) -> Tensor:
    weighted = grad * result
    return weighted.addcmul_(result, weighted.sum(-1, keepdim=True), value=-1)


def add_norm(
    x: Optional[Tensor], y: Tensor, kept: Optional[Kept], tokens: Tokens, norm: nn.LayerNorm
) -> Tuple[Tensor, Tensor]:
    """`x`, if there is one, plus what dropout keeps of `y`, and the layer norm of that.

    Dropout draws for all tokens, as the host's does, also for those that are not there.
    """
    if kernels_for(y) is not None:
        total, normed = native_ops.add_norm(x, y, kept, tokens, norm)
        return total, normed
    if kept is None:
        total = y if x is None else x + y
    else:
        factors = tokens.packed(kept.factors())
        total = y * factors if x is None else torch.addcmul(x, y, factors)
    return total, norm(total)


def attend(
    qkv: Tensor, heads: int, tokens: Tokens, rotations: Optional[Tensor], kept: Optional[Kept]
) -> Tensor:
    """Attention of each token to those before it in its sequence, and to itself.

    Arguments:
        - qkv: (rows, 3 * width), queries, keys and values side by side
        - rotations: complex (batch, tokens, width / heads / 2), for rotary positions
        - kept: (batch, heads, tokens, tokens), of the attention
    """
    op = _Attend if kernels_for(qkv) is None else native_ops.Attend
    result: Tensor = op.apply(qkv, heads, tokens, rotations, kept)  # type: ignore[no-untyped-call]
    return result


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, heads: int, tokens: Tokens, rotations: Optional[Tensor], kept_: Optional[Kept]
    ) -> Tensor:
        by_head = tokens.padded(qkv).view(*tokens.shape, 3, heads, -1).permute(2, 0, 3, 1, 4).contiguous()
        if rotations is not None:
            _rotate_(by_head, rotations)
        query, key, value = by_head.flatten(1, 2)
        ctx.tokens, ctx.scale = tokens, 1.0 / math.sqrt(query.shape[-1])
        keep = None if kept_ is None else kept_.factors()
        hidden = torch.full((tokens.shape[1],) * 2, -math.inf, device=qkv.device).triu_(1)
        attention = _turned_softmax(torch.bmm(query, key.transpose(1, 2)).mul_(ctx.scale).add_(hidden))
        kept = attention if keep is None else attention * keep.view_as(attention)
        ctx.save_for_backward(by_head, rotations, attention, kept, keep)
        seen = torch.bmm(kept, value).view_as(by_head[0])
        return tokens.packed(seen.transpose(1, 2).flatten(2))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tuple[Optional[Tensor], ...]:
        by_head, rotations, attention, kept, keep = ctx.saved_tensors
        heads = by_head.shape[2]
        query, key, value = by_head.flatten(1, 2)
        grad = ctx.tokens.padded(grads[0]).mul_(ctx.tokens.there)
        grad = grad.view(*ctx.tokens.shape, heads, -1).transpose(1, 2).flatten(0, 1)
        of_kept = torch.bmm(grad, value.transpose(1, 2))
        of_attention = of_kept if keep is None else of_kept.mul_(keep.view_as(of_kept))
        of_scores = _softmax_gradient(of_attention, attention).mul_(ctx.scale)
        of_heads = torch.empty_like(by_head)
        of_query, of_key, of_value = of_heads.flatten(1, 2)
        torch.bmm(of_scores, key, out=of_query)
        torch.bmm(of_scores.transpose(1, 2), query, out=of_key)
        torch.bmm(kept.transpose(1, 2), grad, out=of_value)
        if rotations is not None:
            _rotate_(of_heads, rotations.conj())
        return ctx.tokens.packed(of_heads.permute(1, 3, 0, 2, 4).flatten(2)), None, None, None, None


def _rotate_(by_head: Tensor, rotations: Tensor) -> None:
    """Queries and keys, in place."""
    torch.view_as_complex(by_head[:2].view(*by_head[:2].shape[:-1], -1, 2)).mul_(rotations.unsqueeze(1))


def kept_by_dropout(shape: Sequence[int], rate: float, device: torch.device) -> Kept:
    """What `F.dropout` keeps of a tensor of this shape, drawn as it draws it."""
    scale = float(torch.ones(()).div_(1 - rate)) if rate < 1 else 0.0
    for draw in (_draw_natively, _draw):
        if device.type == 'cpu' and _is_known(draw):
            return Kept(draw(shape, rate, None), scale)
    return Kept(F.dropout(torch.ones(*shape, device=device), rate).bool().byte(), scale)


def _draw(shape: Sequence[int], rate: float, generator: Optional[torch.Generator]) -> Tensor:
    drawn = torch.empty(*shape, dtype=torch.int64).random_(generator=generator).bitwise_and_(_DRAWN)
    return drawn.lt_(_limit(rate)).byte()


def _draw_natively(shape: Sequence[int], rate: float, generator: Optional[torch.Generator]) -> Tensor:
    mask = torch.empty(*shape, dtype=torch.uint8)
    native_ops.draw_kept(mask, _limit(rate), generator)
    return mask


def _limit(rate: float) -> int:
    return math.ceil((1 - rate) * (_DRAWN + 1))


@functools.lru_cache(maxsize=None)
def _is_known(draw: Callable[[Sequence[int], float, Optional[torch.Generator]], Tensor]) -> bool:
    """Whether torch draws here as `draw` does: with MKL on Intel's processors it does not."""
    if draw is _draw_natively and kernels() is None:
        return False
    for rate in (0.1, 0.5):
        ours, host = (torch.Generator().manual_seed(0) for _ in range(2))
        for size in (1, 999, 0, 312, 313):
            noise = torch.empty(size).bernoulli_(1 - rate, generator=host)
            same = torch.equal(draw((size,), rate, ours), noise.byte())
            if not same or not torch.equal(ours.get_state(), host.get_state()):
                return False
    return True
