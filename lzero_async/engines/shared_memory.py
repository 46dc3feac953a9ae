"""Weights in shared memory: one copy per version, read by all child processes of this machine.

The memory has no name in any file system. It belongs to whoever holds a descriptor of it or has it mapped, and the
system takes it back when the last of them lets go or dies: there is nothing to leak.
"""
from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from dataclasses import dataclass
from typing import Any

from .packing import Packing, fill, plan


@dataclass(frozen=True)
class SharedWeights:
    """Weights in memory behind a descriptor, which is closed when this is no longer used."""

    packing: Packing
    descriptor: int

    @property
    def nbytes(self) -> int:
        return self.packing.nbytes


class SharedMemory:
    """A place for weights, as the synchronizer knows them: `put` is called once per version."""

    def put(self, weights: Any) -> SharedWeights:
        packing, tensors = plan(weights)
        descriptor = _anonymous_file()
        try:
            os.ftruncate(descriptor, max(1, packing.nbytes))
            with mmap.mmap(descriptor, max(1, packing.nbytes)) as memory:
                fill(memory, packing.nbytes, tensors)
        except BaseException:
            os.close(descriptor)
            raise
        shared = SharedWeights(packing, descriptor)
        weakref.finalize(shared, os.close, descriptor)
        return shared


def open_shared(packing: Packing, descriptor: int) -> Any:
    """Map what another process has put there; the mapping lives as long as the weights. Closes `descriptor`."""
    try:
        # A private mapping: it reads the shared pages, and a write would not reach the others.
        memory = mmap.mmap(descriptor, max(1, packing.nbytes), access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)
    return packing.open(memory)


def _anonymous_file() -> int:
    if hasattr(os, 'memfd_create'):
        return os.memfd_create('lzero-async-weights', os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # unlinked from the start
        return os.dup(file.fileno())
