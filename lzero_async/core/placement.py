"""Place: weights on a device, copied there once per version whoever reads them."""
from __future__ import annotations

import threading
from typing import Any, Hashable, Optional

from .weight_ops import WeightOps
from .weights import WeightSnapshot


class Place:
    """The newest weights that were copied to one device. Any thread may call `put`."""

    def __init__(self) -> None:
        # Guards both, and is held while a copy is made, so that none is made twice.
        self._lock = threading.Lock()
        self._snapshot: Optional[WeightSnapshot] = None
        self._weights: Any = None

    def put(self, snapshot: WeightSnapshot, device: Hashable, ops: WeightOps) -> Any:
        with self._lock:
            if self._snapshot is not None and self._snapshot.policy_version == snapshot.policy_version:
                return self._weights
            weights = ops.copy_to(snapshot.weights, device)
            if self._snapshot is None or self._snapshot.policy_version < snapshot.policy_version:
                self._snapshot, self._weights = snapshot, weights
            return weights
