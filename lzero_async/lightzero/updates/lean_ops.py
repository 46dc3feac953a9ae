"""What a transformer in training spends its time on beside matrix products, done in fewer and faster passes.

On a CPU torch's own kernels for these are slower than they need be: `gelu` and its gradient by their tanh, `softmax`
where it is over a handful of numbers, and `dropout` where it draws. The results are those of torch up to rounding, and
random draws are the same draws. On other devices torch's own are used, where there is one for the purpose.
"""
from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

# gelu(x) = x / 2 * (1 + tanh(u)) = x * sigmoid(2 u), where 2 u = SLOPE * (x + CUBIC * x^3)
SLOPE = 2 * math.sqrt(2 / math.pi)
CUBIC = 0.044715

_DRAWN = (1 << 53) - 1
"""The bits that torch makes a uniform number of; it keeps an element if that is less than its probability."""


def gelu(x: Tensor) -> Tensor:
    """GELU with its tanh approximation."""
    if x.device.type != 'cpu':
        return F.gelu(x, approximate='tanh')
    result: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
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
    result: Tensor = _Softmax.apply(x)  # type: ignore[no-untyped-call]
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


@dataclass(frozen=True)
class Tokens:
    """Which tokens of (batch, tokens) there are: sequences may end early, and are then packed row behind row."""

    shape: Tuple[int, int]
    rows: Tensor
    """The tokens that are there, as indices into the flattened (batch, tokens)."""
    places: Tensor
    """For each of (batch, tokens) its row, or for one that is not there any other."""
    there: Tensor
    """(batch, tokens, 1): 1.0 where there is a token, else 0.0."""

    @classmethod
    def until_last(cls, wanted: Tensor) -> Tokens:
        """Of each sequence those up to the last one that is wanted."""
        there = wanted.flip(1).cummax(1).values.flip(1)
        count, length = wanted.shape
        rows, places = there.flatten().nonzero().flatten(), (there.flatten().cumsum(0) - 1).clamp_(min=0)
        return cls((count, length), rows, places, there.unsqueeze(2).float())

    def doubled(self) -> Tokens:
        """Two tokens for each."""
        rows, places = (torch.stack((2 * index, 2 * index + 1), dim=1).flatten() for index in (self.rows, self.places))
        return Tokens((self.shape[0], 2 * self.shape[1]), rows, places, self.there.repeat_interleave(2, dim=1))

    def packed(self, padded: Tensor) -> Tensor:
        return padded.flatten(0, 1).index_select(0, self.rows)

    def padded(self, packed: Tensor) -> Tensor:
        """What stands where there is no token is of no meaning."""
        return packed.index_select(0, self.places).view(*self.shape, -1)


def attend(
    qkv: Tensor, heads: int, tokens: Tokens, rotations: Optional[Tensor], hidden: Tensor, keep: Optional[Tensor]
) -> Tensor:
    """Attention of each sequence to itself. No token may look at one that is not there.

    Arguments:
        - qkv: (rows, 3 * width), queries, keys and values side by side
        - rotations: complex (batch, tokens, width / heads / 2), for rotary positions
        - hidden: (tokens, tokens), -inf where a token must not look, else 0
        - keep: (batch, heads, tokens, tokens), what dropout multiplies the attention by
    """
    result: Tensor = _Attend.apply(qkv, heads, tokens, rotations, hidden, keep)  # type: ignore[no-untyped-call]
    return result


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, heads: int, tokens: Tokens, rotations: Optional[Tensor], hidden: Tensor,
        keep: Optional[Tensor],
    ) -> Tensor:
        by_head = tokens.padded(qkv).view(*tokens.shape, 3, heads, -1).permute(2, 0, 3, 1, 4).contiguous()
        if rotations is not None:
            _rotate_(by_head, rotations)
        query, key, value = by_head.flatten(1, 2)
        ctx.tokens, ctx.scale = tokens, 1.0 / math.sqrt(query.shape[-1])
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
        return ctx.tokens.packed(of_heads.permute(1, 3, 0, 2, 4).flatten(2)), None, None, None, None, None


def _rotate_(by_head: Tensor, rotations: Tensor) -> None:
    """Queries and keys, in place."""
    torch.view_as_complex(by_head[:2].view(*by_head[:2].shape[:-1], -1, 2)).mul_(rotations.unsqueeze(1))


def kept_by_dropout(shape: Sequence[int], rate: float, device: torch.device) -> Tensor:
    """What `F.dropout` multiplies a tensor of this shape by, drawn as it draws it."""
    if device.type != 'cpu' or not _draws_are_known():
        return F.dropout(torch.ones(*shape, device=device), rate)
    return _kept(shape, rate, None)


def _kept(shape: Sequence[int], rate: float, generator: Optional[torch.Generator]) -> Tensor:
    drawn = torch.empty(*shape, dtype=torch.int64).random_(generator=generator).bitwise_and_(_DRAWN)
    return drawn.lt_(math.ceil((1 - rate) * (_DRAWN + 1))).float().div_(1 - rate)


@functools.lru_cache(maxsize=None)
def _draws_are_known() -> bool:
    """Whether torch draws here as `_kept` does: with MKL on Intel's processors it does not."""
    for rate in (0.1, 0.5):
        ours, host = (torch.Generator().manual_seed(0) for _ in range(2))
        noise = torch.empty(999).bernoulli_(1 - rate, generator=host).div_(1 - rate)
        if not torch.equal(_kept((999,), rate, ours), noise) or not torch.equal(ours.get_state(), host.get_state()):
            return False
    return True
