"""Weights as one run of bytes, and back: what lies in shared memory, or in Ray's object store."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Tuple

import torch

from ..torch_weights import each_leaf

ALIGNMENT = 64


@dataclass(frozen=True)
class _Slot:
    """Stands in for a tensor: where its bytes lie."""

    dtype: torch.dtype
    shape: Tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Packing:
    """The weights without the bytes of their tensors. It is small, and travels by pickle."""

    tree: Any
    nbytes: int

    def open(self, buffer: Any) -> Any:
        """The weights, as views of `buffer`, which must be writable and stay as it is while they are in use."""
        flat = torch.frombuffer(buffer, dtype=torch.uint8, count=self.nbytes) if self.nbytes else torch.empty(0)

        def tensor(leaf: Any) -> Any:
            if not isinstance(leaf, _Slot):
                return leaf
            return flat[leaf.offset:leaf.offset + leaf.nbytes].view(leaf.dtype).view(leaf.shape)

        return each_leaf(self.tree, tensor)


def plan(weights: Any) -> 'Tuple[Packing, List[Tuple[int, torch.Tensor]]]':
    """Where each tensor goes: the packing, and pairs of offset and tensor for `fill`."""
    tensors: List[Tuple[int, torch.Tensor]] = []
    end = 0

    def slot(leaf: Any) -> Any:
        nonlocal end
        if not isinstance(leaf, torch.Tensor):
            return leaf
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        nbytes = leaf.numel() * leaf.element_size()
        end = offset + nbytes
        tensors.append((offset, leaf))
        return _Slot(leaf.dtype, tuple(leaf.shape), offset, nbytes)

    tree = each_leaf(weights, slot)
    return Packing(tree, end), tensors


def fill(buffer: Any, nbytes: int, tensors: 'List[Tuple[int, torch.Tensor]]') -> None:
    """Copy the tensors to their places in `buffer`."""
    if not nbytes:
        return
    flat = torch.frombuffer(buffer, dtype=torch.uint8, count=nbytes)
    for offset, tensor in tensors:
        source = tensor.detach().to('cpu').contiguous().view(-1)
        flat[offset:offset + source.numel() * source.element_size()].view(source.dtype).copy_(source)
