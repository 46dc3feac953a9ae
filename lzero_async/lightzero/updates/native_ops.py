"""The native kernels as operations with gradients. `lean_ops` decides when they are used."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn

from ..native import Kernels, kernels
from .tokens import Kept, Tokens


def native() -> Kernels:
    library = kernels()
    assert library is not None
    return library


def check(failed: int) -> None:
    if failed:
        raise MemoryError('there is no memory for a native kernel')


def address(tensor: Optional[Tensor]) -> Optional[int]:
    return None if tensor is None else tensor.data_ptr()


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        native().gelu_forward(x.data_ptr(), y.data_ptr(), x.numel())
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x, of_y = ctx.saved_tensors[0], grads[0].contiguous()
        of_x = torch.empty_like(x)
        native().gelu_backward(x.data_ptr(), of_y.data_ptr(), of_x.data_ptr(), x.numel())
        return of_x


class Softmax(torch.autograd.Function):
    """Over the last dimension."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        group = x.shape[-1]
        native().softmax_forward(x.data_ptr(), y.data_ptr(), x.numel() // group, group)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        y, of_y = ctx.saved_tensors[0], grads[0].contiguous()
        of_x, group = torch.empty_like(y), y.shape[-1]
        native().softmax_backward(y.data_ptr(), of_y.data_ptr(), of_x.data_ptr(), y.numel() // group, group)
        return of_x


class AddNorm(torch.autograd.Function):
    """`x` and what is kept of `y`, and the layer norm of that."""

    @staticmethod
    def forward(
        ctx: Any, x: Optional[Tensor], y: Tensor, weight: Tensor, bias: Tensor, epsilon: float, kept: Optional[Kept],
        rows: Tensor,
    ) -> Tuple[Tensor, Tensor]:
        count, width = y.shape
        x, y = None if x is None else x.contiguous(), y.contiguous()
        mask, scale = (None, 1.0) if kept is None else (kept.mask, kept.scale)
        total, norm = torch.empty_like(y), torch.empty_like(y)
        means, deviations = y.new_empty(count), y.new_empty(count)
        native().add_norm_forward(
            address(x), y.data_ptr(), address(mask), rows.data_ptr(), scale, weight.data_ptr(), bias.data_ptr(),
            epsilon, total.data_ptr(), norm.data_ptr(), means.data_ptr(), deviations.data_ptr(), count, width,
        )
        ctx.save_for_backward(total, means, deviations, weight, mask, rows)
        ctx.scale, ctx.adds = scale, x is not None
        ctx.set_materialize_grads(False)
        return total, norm

    @staticmethod
    def backward(ctx: Any, *grads: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        total, means, deviations, weight, mask, rows = ctx.saved_tensors
        of_total = None if grads[0] is None else grads[0].contiguous()
        of_norm = torch.zeros_like(total) if grads[1] is None else grads[1].contiguous()
        of_x, of_y = torch.empty_like(total), torch.empty_like(total)
        of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(weight)
        native().add_norm_backward(
            address(of_total), of_norm.data_ptr(), total.data_ptr(), means.data_ptr(), deviations.data_ptr(),
            weight.data_ptr(), address(mask), rows.data_ptr(), ctx.scale, of_x.data_ptr(), of_y.data_ptr(),
            of_weight.data_ptr(), of_bias.data_ptr(), *total.shape,
        )
        return of_x if ctx.adds else None, of_y, of_weight, of_bias, None, None, None


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, heads: int, tokens: Tokens, rotations: Optional[Tensor], kept: Optional[Kept]
    ) -> Tensor:
        qkv = qkv.contiguous()
        (count, longest), width = tokens.shape, qkv.shape[1] // 3
        turns = None if rotations is None else torch.view_as_real(rotations).contiguous()
        mask, scale = (None, 1.0) if kept is None else (kept.mask, kept.scale)
        attention, seen = qkv.new_empty(count, heads, longest, longest), qkv.new_empty(len(qkv), width)
        check(native().attend_forward(
            qkv.data_ptr(), address(turns), address(mask), scale, tokens.first.data_ptr(), attention.data_ptr(),
            seen.data_ptr(), count, longest, heads, width // heads,
        ))
        ctx.save_for_backward(qkv, turns, mask, attention, tokens.first)
        ctx.scale = scale
        return seen

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tuple[Optional[Tensor], ...]:
        qkv, turns, mask, attention, first = ctx.saved_tensors
        of_seen, of_qkv = grads[0].contiguous(), torch.empty_like(qkv)
        count, heads, longest, _ = attention.shape
        check(native().attend_backward(
            qkv.data_ptr(), address(turns), address(mask), ctx.scale, first.data_ptr(), attention.data_ptr(),
            of_seen.data_ptr(), of_qkv.data_ptr(), count, longest, heads, qkv.shape[1] // 3 // heads,
        ))
        return of_qkv, None, None, None, None


def draw_kept(mask: Tensor, limit: int, generator: Optional[torch.Generator] = None) -> None:
    """Fills `mask` with 1 where one of the next draws of 53 bits is less than `limit`, else 0."""
    generator = torch.default_generator if generator is None else generator
    state = generator.get_state()
    native().draw_kept(state.data_ptr(), limit, mask.data_ptr(), mask.numel())
    generator.set_state(state)


def add_norm(x: Optional[Tensor], y: Tensor, kept: Optional[Kept], tokens: Tokens, norm: nn.LayerNorm) -> Any:
    return AddNorm.apply(  # type: ignore[no-untyped-call]
        x, y, norm.weight, norm.bias, norm.eps, kept, tokens.rows
    )
