"""What a Ray actor does: make its role, and answer calls."""
from __future__ import annotations

import sys
from typing import Any, Optional, Sequence

import numpy as np
import ray

from . import wire
from .packing import Packing
from .worker import Call, MakeRole, Raised, Reply, Role, answer

WATCHING = 'watching'


class _RoleActor:
    """One call of its role at a time; `beats` and `leave` are heard meanwhile."""

    def __init__(self, import_paths: Sequence[str]) -> None:
        """`import_paths` are the driver's: what it could import, and what is there on this node, is found here, too."""
        sys.path.extend(path for path in import_paths if path not in sys.path)
        self._role: Optional[Role] = None
        self._beats = 0
        self._leave = False

    def make(self, make_role: MakeRole) -> wire.Encoded:
        try:
            self._role = make_role()
        except Exception as error:
            return wire.encode(Reply(raised=Raised.by(error)))
        return wire.encode(Reply())

    def answer(self, call: Call, weights: Any) -> wire.Encoded:
        """`weights` are the bytes of those to load, if any: Ray has brought them into this node's object store."""
        assert self._role is not None
        self._beats += 1
        if weights is not None:
            packing: Packing = call.args[0]
            # A copy: actors of one node have the same bytes before them, and torch would write to them unhindered.
            call = Call(call.method, (packing.open(np.array(weights)), *call.args[1:]))
        return wire.encode(answer(self._role, call, self._keep_going))

    @ray.method(concurrency_group=WATCHING)  # type: ignore[untyped-decorator]
    def beats(self) -> int:
        return self._beats

    @ray.method(concurrency_group=WATCHING)  # type: ignore[untyped-decorator]
    def leave(self) -> None:
        self._leave = True

    def _keep_going(self) -> bool:
        self._beats += 1
        return not self._leave


RoleActor: Any = ray.remote(concurrency_groups={WATCHING: 1})(_RoleActor)
