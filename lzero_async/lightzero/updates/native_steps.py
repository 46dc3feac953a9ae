"""What an update does with all parameters at once, as native calls: torch makes a call for each of them."""
from __future__ import annotations

import ctypes
import math
from typing import Any, Callable, Dict, Optional, Sequence

import torch
from torch import Tensor

from ..native import kernels_for
from .native_ops import native

_Addresses = ctypes.Array


def can_be_used(tensors: Sequence[Tensor]) -> bool:
    return bool(tensors) and kernels_for(*tensors) is not None and all(tensor.is_contiguous() for tensor in tensors)


def norm(tensors: Sequence[Tensor]) -> float:
    """Of all their numbers."""
    return math.sqrt(native().sum_of_squares(_addresses(tensors), _sizes(tensors), len(tensors)))


def clip(gradients: Sequence[Tensor], most: float) -> float:
    """Like `clip_grad_norm_`. Returns the norm before."""
    before = norm(gradients)
    factor = most / (before + 1e-6)
    if not factor >= 1:  # nor NaN: it shall be seen in the gradients
        native().scale(_addresses(gradients), _sizes(gradients), len(gradients), factor)
        _were_changed(gradients)
    return before


def follow(targets: Sequence[Tensor], learned: Sequence[Tensor], theta: float) -> None:
    native().follow(_addresses(targets), _addresses(learned), _sizes(targets), len(targets), theta)
    _were_changed(targets)


class NativeAdamW(torch.optim.AdamW):
    """torch's AdamW, whose steps are native ones. What it keeps and saves is the same, and so are its hooks.

    An optimizer becomes one by `use_native_steps`.
    """

    def _step(self, closure: Optional[Callable[[], float]] = None) -> Optional[float]:
        assert closure is None
        for group in self.param_groups:
            parameters = [parameter for parameter in group['params'] if parameter.grad is not None]
            states = [self._state_of(parameter) for parameter in parameters]
            gradients = [parameter.grad.contiguous() for parameter in parameters]
            native().adamw_step(
                _addresses(parameters), _addresses(gradients),
                *(_addresses([state[name] for state in states]) for name in ('exp_avg', 'exp_avg_sq', 'step')),
                _sizes(parameters), len(parameters),
                group['lr'], *group['betas'], group['eps'], group['weight_decay'],
            )
            _were_changed(parameters)
        return None

    step: Any = torch.optim.Optimizer.profile_hook_step(_step)
    step.hooked = True

    def _state_of(self, parameter: Tensor) -> Dict[str, Any]:
        state: Dict[str, Any] = self.state[parameter]
        if not state:
            state['step'] = torch.tensor(0.0)
            state['exp_avg'], state['exp_avg_sq'] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state


def use_native_steps(optimizer: Any) -> bool:
    """Whether the steps of `optimizer` are native ones from now on."""
    if type(optimizer) is not torch.optim.AdamW:
        return False
    parameters = [parameter for group in optimizer.param_groups for parameter in group['params']]
    plain = all(
        not group['amsgrad'] and not group['maximize'] and not group['capturable'] and not group['differentiable']
        and isinstance(group['lr'], float) for group in optimizer.param_groups
    )
    patched = 'step' in vars(optimizer)  # by a scheduler of the learning rate, which counts the calls
    if patched or not plain or not can_be_used(parameters):
        return False
    optimizer.__class__ = NativeAdamW
    return True


def _were_changed(tensors: Sequence[Tensor]) -> None:
    """Let torch, and who asks it, know: it saw nothing of it."""
    for tensor in tensors:
        torch.autograd.graph.increment_version(tensor)


def _addresses(tensors: Sequence[Tensor]) -> _Addresses:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


def _sizes(tensors: Sequence[Tensor]) -> _Addresses:
    return (ctypes.c_int64 * len(tensors))(*[tensor.numel() for tensor in tensors])
