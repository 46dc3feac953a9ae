"""AdamW in one pass over the parameters."""
from __future__ import annotations

from typing import Any, Dict

import torch

from . import native_steps


def use_lean_steps(optimizer: Any) -> None:
    """Native steps or, where there are none, those of torch's fused kernel."""
    if not native_steps.use_native_steps(optimizer):
        _use_fused_steps(optimizer)


def _use_fused_steps(optimizer: Any) -> None:
    """Where torch has a fused kernel for it. What the optimizer saves stays what the host's would, and may be loaded.

    The setting is part of what torch saves and loads, so that a checkpoint would carry it into another run, or undo it.
    """
    if type(optimizer) is not torch.optim.AdamW or not _can_be_fused(optimizer):
        return
    before = [{name: group[name] for name in ('fused', 'foreach')} for group in optimizer.param_groups]

    def fuse(_: Any = None) -> None:
        for group in optimizer.param_groups:
            group.update(fused=True, foreach=None)

    def as_before(_: Any, state: Dict[str, Any]) -> None:
        for group, settings in zip(state['param_groups'], before):
            group.update(settings)

    fuse()
    optimizer.register_state_dict_post_hook(as_before)
    optimizer.register_load_state_dict_post_hook(fuse)


def _can_be_fused(optimizer: Any) -> bool:
    """Tried out, since torch finds out with the first step, too."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group['params']]
    for device, dtype in {(parameter.device, parameter.dtype) for parameter in parameters}:
        probe = torch.zeros(1, device=device, dtype=dtype)
        probe.grad = torch.zeros_like(probe)
        try:
            torch.optim.AdamW([probe], fused=True).step()
        except RuntimeError:
            return False
    return True
