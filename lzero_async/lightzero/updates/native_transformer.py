"""A whole transformer in training as one native call forward and one backward."""
from __future__ import annotations

import ctypes
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor

from ..native import COLUMNS, NARROW, kernels_for
from .native_ops import check, native
from .tokens import Kept, Tokens

_FLOATS, _INT = ctypes.c_void_p, ctypes.c_int64


class _Kept(ctypes.Structure):
    _fields_ = (('mask', ctypes.c_void_p), ('scale', ctypes.c_float))


class _Transformer(ctypes.Structure):
    _fields_ = (
        ('sequences', _INT), ('longest', _INT), ('layers', _INT), ('heads', _INT), ('width', _INT), ('inner', _INT),
        ('first', ctypes.c_void_p), ('rows', ctypes.c_void_p), ('rotations', _FLOATS),
        ('weights', ctypes.POINTER(_FLOATS)), ('epsilons', ctypes.POINTER(ctypes.c_float)),
        ('kept', ctypes.POINTER(_Kept)),
        ('inputs', _FLOATS), ('qkv', _FLOATS), ('attention', _FLOATS), ('seen', _FLOATS), ('between', _FLOATS),
        ('hidden', _FLOATS), ('threads', _INT),
    )


def can_be_used(transformer: Any, x: Tensor) -> bool:
    """For models whose weights lie in a processor's cache; wide ones are left to torch, which splits their products."""
    width, inner = x.shape[1], transformer.blocks[0].mlp[0].out_features
    fits = width <= NARROW and width % COLUMNS == 0 and inner % COLUMNS == 0
    return fits and kernels_for(x, transformer.ln_f.weight) is not None


def transform(
    transformer: Any, x: Tensor, tokens: Tokens, rotations: Optional[Tensor], drawn: List[Optional[Kept]]
) -> Tensor:
    """`x` has a row for each token; so has the result. `drawn` is what dropout keeps, from the input to the last MLP.
    """
    weights = [weight for block in transformer.blocks for weight in _of_block(block)]
    norms = [norm for block in transformer.blocks for norm in (block.ln1, block.ln2)] + [transformer.ln_f]
    settings = (transformer.blocks[0].attn.num_heads, [norm.eps for norm in norms])
    result: Tensor = _Transform.apply(  # type: ignore[no-untyped-call]
        x, tokens, rotations, drawn, settings, *weights, transformer.ln_f.weight, transformer.ln_f.bias
    )
    return result


def _of_block(block: Any) -> Tuple[Tensor, ...]:
    attention = block.attn
    layers = (attention.query, attention.key, attention.value)
    return (
        block.ln1.weight, block.ln1.bias,
        torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers]),
        attention.proj.weight, attention.proj.bias,
        block.ln2.weight, block.ln2.bias,
        block.mlp[0].weight, block.mlp[0].bias,
        block.mlp[2].weight, block.mlp[2].bias,
    )


class _Transform(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, tokens: Tokens, rotations: Optional[Tensor], drawn: List[Optional[Kept]],
        settings: Tuple[int, List[float]], *weights: Tensor,
    ) -> Tensor:
        heads, epsilons = settings
        x, weights = x.contiguous(), tuple(weight.contiguous() for weight in weights)
        (sequences, longest), (rows, width), layers = tokens.shape, x.shape, len(weights) // 12
        inner = weights[8].shape[0]
        turns = None if rotations is None else torch.view_as_real(rotations).contiguous()
        kept = [_Kept(None, 1.0) if one is None else _Kept(one.mask.data_ptr(), one.scale) for one in drawn]
        between = {
            'inputs': x.new_empty(layers + 1, rows, width),
            'qkv': x.new_empty(layers, rows, 3 * width),
            'attention': x.new_empty(layers, sequences, heads, longest, longest),
            'seen': x.new_empty(layers, rows, width),
            'between': x.new_empty(layers, rows, width),
            'hidden': x.new_empty(layers, rows, inner),
        }
        job = _Transformer(
            sequences=sequences, longest=longest, layers=layers, heads=heads, width=width, inner=inner,
            first=tokens.first.data_ptr(), rows=tokens.rows.data_ptr(),
            rotations=None if turns is None else turns.data_ptr(),
            weights=(_FLOATS * len(weights))(*(weight.data_ptr() for weight in weights)),
            epsilons=(ctypes.c_float * len(epsilons))(*epsilons),
            kept=(_Kept * len(kept))(*kept),
            threads=torch.get_num_threads(),
            **{name: tensor.data_ptr() for name, tensor in between.items()},
        )
        output = torch.empty_like(x)
        check(native().transformer_forward(ctypes.addressof(job), x.data_ptr(), output.data_ptr()))
        ctx.save_for_backward(*weights)
        ctx.job = job
        ctx.alive = (tokens, turns, drawn, between)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tuple[Optional[Tensor], ...]:
        weights, of_output = ctx.saved_tensors, grads[0].contiguous()
        of_x, gradients = torch.empty_like(of_output), of_output.new_empty(sum(weight.numel() for weight in weights))
        check(native().transformer_backward(
            ctypes.addressof(ctx.job), of_output.data_ptr(), of_x.data_ptr(), gradients.data_ptr()
        ))
        of_weights = torch.split(gradients, [weight.numel() for weight in weights])
        return of_x, None, None, None, None, *(one.view_as(weight) for one, weight in zip(of_weights, weights))
