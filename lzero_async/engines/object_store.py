"""Weights in Ray's object store: one copy per version, and one more on each node that reads them."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from .packing import Packing, fill, plan


@dataclass(frozen=True)
class StoredWeights:
    packing: Packing
    reference: Any
    """Of the bytes. Ray gives them up once nobody has it any more."""


class ObjectStore:
    """A place for weights, as the synchronizer knows them: `put` is called once per version."""

    def put(self, weights: Any) -> StoredWeights:
        packing, tensors = plan(weights)
        buffer = np.empty(packing.nbytes, np.uint8)
        fill(buffer, packing.nbytes, tensors)
        return StoredWeights(packing, ray.put(buffer))
