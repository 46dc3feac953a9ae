"""A head of the world model with its loss, as one native call forward and one backward."""
from __future__ import annotations

import ctypes
from typing import Any, Optional, Tuple

import torch
from lzero.model.common import SimNorm
from torch import Tensor, nn

from ..native import COLUMNS, NARROW, kernels_for
from .native_ops import address, check, native

CATEGORIES, GROUPS, SQUARES = range(3)
"""The kinds of losses, see heads.c."""

_FLOATS, _INT = ctypes.c_void_p, ctypes.c_int64


class _Head(ctypes.Structure):
    _fields_ = (
        *((name, _INT) for name in ('kind', 'group', 'rows', 'stride', 'width', 'hidden', 'outputs')),
        *((name, _FLOATS) for name in (
            'x', 'widen', 'widen_bias', 'narrow', 'narrow_bias', 'targets', 'inside', 'results', 'sizes', 'entropies',
        )),
    )


def can_be_used(layers: Any, x: Tensor) -> bool:
    """Two linear layers with GELU between them, of a narrow model; behind them a SimNorm or nothing.

    Outputs may be any number: they are padded.
    """
    kinds = [type(layer) for layer in layers]
    if kinds[:3] != [nn.Linear, nn.GELU, nn.Linear] or kinds[3:] not in ([], [SimNorm]):
        return False
    widen, gelu, narrow = layers[0], layers[1], layers[2]
    fits = widen.in_features % COLUMNS == 0 and widen.out_features % COLUMNS == 0 and widen.in_features <= NARROW
    known = gelu.approximate == 'tanh' and widen.bias is not None and narrow.bias is not None
    return fits and known and kernels_for(x, widen.weight) is not None


def cross_entropy(layers: Any, x: Tensor, targets: Tensor) -> Tuple[Tensor, Tensor]:
    """Of each row the cross entropy of the head's distribution with `targets`, and the entropy of its own."""
    losses, entropies = _losses(layers, x, targets, CATEGORIES, 0)
    return losses, entropies


def divergence(layers: Any, x: Tensor, targets: Tensor, kind: int) -> Tensor:
    """Of each row how far the head's state, which has a SimNorm, is from `targets`."""
    losses, _ = _losses(layers, x, targets, kind, layers[3].dim)
    return losses


def _losses(layers: Any, x: Tensor, targets: Tensor, kind: int, group: int) -> Tuple[Tensor, Tensor]:
    widen, narrow = layers[0], layers[2]
    result: Tuple[Tensor, Tensor] = _HeadLosses.apply(  # type: ignore[no-untyped-call]
        x, widen.weight, widen.bias, narrow.weight, narrow.bias, targets, kind, group
    )
    return result


class _HeadLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tuple[Tensor, Tensor]:
        x, *weights, targets, kind, group = inputs
        if x.stride(1) != 1:
            x = x.contiguous()
        weights, targets = [weight.contiguous() for weight in weights], targets.to(x).contiguous()
        (rows, width), hidden, outputs = x.shape, len(weights[0]), len(weights[2])
        inside, results = x.new_empty(rows, hidden), x.new_empty(rows, outputs + -outputs % COLUMNS)
        losses, sizes, entropies = x.new_empty(rows), x.new_empty(rows), x.new_empty(rows)
        job = _Head(
            kind, group, rows, x.stride(0), width, hidden, outputs,
            *(address(one) for one in (x, *weights, targets, inside, results, sizes, entropies)),
        )
        check(native().head_forward(ctypes.addressof(job), losses.data_ptr()))
        ctx.save_for_backward(x, *weights, targets, inside, results, sizes, entropies)
        ctx.job = job
        ctx.set_materialize_grads(False)
        return losses, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        x, *weights, _, _, results, _, _ = ctx.saved_tensors
        of_losses, of_entropies = (None if grad is None else grad.contiguous() for grad in grads)
        if of_losses is None:
            of_losses = x.new_zeros(len(x))
        of_x, (hidden, width), outputs = x.new_empty(x.shape), weights[0].shape, results.shape[1]
        gradients = [x.new_zeros(shape) for shape in ((hidden, width), hidden, (outputs, hidden), outputs)]
        check(native().head_backward(
            ctypes.addressof(ctx.job), of_losses.data_ptr(), address(of_entropies), of_x.data_ptr(),
            *(address(gradient) for gradient in gradients),
        ))
        of_weights = (gradient[:len(weight)] for gradient, weight in zip(gradients, weights))
        return of_x, *of_weights, None, None, None
