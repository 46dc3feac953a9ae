"""Linear layers on a CPU by a faster kernel, where that gives torch's numbers to the last bit."""
from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from ..native import COLUMNS, NARROW, kernels, kernels_for
from ..updates.native_ops import check, native


def is_exact(x: Tensor, weight: Tensor, rows: int) -> bool:
    """Whether `exact_linear` gives each row the numbers that torch gives it among `rows` rows.

    In which order torch adds depends on its library and the processor, and can depend on the number of rows and
    threads, but on no number that is added: so it is tried, once.
    """
    outputs, inputs = weight.shape
    if outputs % COLUMNS or inputs > 4 * NARROW or kernels_for(x, weight) is None:
        return False
    return _same_bits(rows, inputs, outputs, torch.get_num_threads())


def exact_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`F.linear`; the weights are contiguous."""
    x = x.contiguous()
    y = x.new_empty(*x.shape[:-1], len(weight))
    outputs, inputs = weight.shape
    check(native().exact_linear(
        weight.data_ptr(), bias.data_ptr(), x.data_ptr(), y.data_ptr(), x.numel() // inputs, inputs, outputs
    ))
    return y


@functools.lru_cache(maxsize=1024)
def _same_bits(rows: int, inputs: int, outputs: int, threads: int) -> bool:
    if kernels() is None:
        return False
    drawn = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=drawn) for shape in ((rows, inputs), (outputs, inputs), (outputs,)))
    return torch.equal(exact_linear(x, weight, bias), F.linear(x, weight, bias))
