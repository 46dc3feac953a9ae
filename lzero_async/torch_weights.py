"""Weights of torch: how they are copied, checked, placed and loaded. Works with any torch module, LightZero or not."""
from __future__ import annotations

import copy
from typing import Any, Callable, Dict, Hashable, List, Mapping, Optional, Protocol, cast, runtime_checkable

import numpy as np
import torch

from .core import param_sync
from .core.weight_ops import WeightInfo, leaves, load_into, weights_of

COMPILED_PREFIX = '_orig_mod.'  # torch.compile wraps a module, and its name shows in the keys


class HostCopy(Dict[str, Any]):
    """Weights on the host, whose copy from a GPU may still be under way: complete once `arrived` has happened."""

    arrived: Optional[Any] = None


@runtime_checkable
class WeightPlace(Protocol):
    """Where weights can lie, other than on a device: memory that other processes read. A target's `device` may be one.
    """

    def put(self, weights: Any) -> Any:
        """Put them there; returns what leads to them, which is what the target's load_weights gets."""


class TorchWeights:
    """`core.weight_ops.WeightOps` for torch modules, and for objects that give and take dicts of tensors.

    Weights are read to the CPU under the names of the plain module. From CUDA the source waits for a copy on its own
    device only: that copy goes on to pinned memory on a side stream.
    """

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._side_streams: Dict[Any, Any] = {}

    def read(self, source: Any) -> Any:
        weights = _plain_names(weights_of(source))
        if isinstance(weights, Mapping) and any(_is_cuda(tensor) for tensor in weights.values()):
            return self._read_from_cuda(weights)
        return copied(weights)

    def is_settled(self, weights: Any) -> bool:
        arrived = getattr(weights, 'arrived', None)
        return arrived is None or bool(arrived.query())

    def settle(self, weights: Any) -> None:
        arrived = getattr(weights, 'arrived', None)
        if arrived is not None:
            arrived.synchronize()

    def first_non_finite(self, weights: Any) -> Optional[str]:
        return next((name for name, leaf in leaves('', weights) if not _is_finite(leaf)), None)

    def key_of(self, target: Any) -> Hashable:
        return id(target)

    def device_of(self, target: Any) -> Hashable:
        if isinstance(target, torch.nn.Module):
            tensor = next(iter(target.state_dict().values()), None)
            return str(tensor.device) if tensor is not None else 'cpu'
        device: Any = getattr(target, 'device', 'cpu')
        return cast(Hashable, device) if isinstance(device, WeightPlace) else str(device)

    def copy_to(self, weights: Any, device: Hashable) -> Any:
        if isinstance(device, WeightPlace):
            return device.put(weights)
        tensors = [leaf for _, leaf in leaves('', weights) if isinstance(leaf, torch.Tensor)]
        if all(str(tensor.device) == device for tensor in tensors):
            return weights
        return each_leaf(
            weights,
            lambda leaf: leaf.to(str(device), non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf,
        )

    def load(self, target: Any, weights: Any, policy_version: int) -> None:
        if isinstance(target, torch.nn.Module):
            load_module(target, weights)
        else:
            load_into(target, weights, policy_version)

    def describe(self, weights: Any) -> List[WeightInfo]:
        return [
            WeightInfo(name, tuple(getattr(leaf, 'shape', ())), str(getattr(leaf, 'dtype', type(leaf).__name__)))
            for name, leaf in leaves('', weights)
        ]

    def _read_from_cuda(self, weights: Mapping[str, Any]) -> HostCopy:
        device = next(tensor.device for tensor in weights.values() if _is_cuda(tensor))
        on_device = {name: _duplicate(leaf) for name, leaf in weights.items()}
        if device not in self._side_streams:
            self._side_streams[device] = self._cuda.Stream(device)
        side = self._side_streams[device]
        side.wait_stream(self._cuda.current_stream(device))
        host = HostCopy()
        with self._cuda.stream(side):
            for name, leaf in on_device.items():
                if _is_cuda(leaf):
                    host[name] = _pinned_like(leaf).copy_(leaf, non_blocking=True)
                    leaf.record_stream(side)  # its memory is not given to others before the copy is made
                else:
                    host[name] = leaf
            host.arrived = self._cuda.Event()
            host.arrived.record(side)
        return host


class ParameterSynchronizer(param_sync.ParameterSynchronizer):
    """`core.param_sync.ParameterSynchronizer` for torch: workers may be torch modules."""

    default_weight_ops = TorchWeights


UnifiedParameterSynchronizer = AsyncParameterSynchronizer = ParameterSynchronizer


def load_module(module: torch.nn.Module, weights: Mapping[str, Any]) -> None:
    """Load all of the weights. What does not fit is refused before anything is changed."""
    plain = getattr(module, '_orig_mod', module)
    own = plain.state_dict()
    if own.keys() != weights.keys():
        missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
        raise ValueError(f'the weights must have the names of the module, got {missing} missing and {unknown} unknown')
    for name, tensor in own.items():
        if tensor.shape != weights[name].shape:
            raise ValueError(
                f'the weights of {name} must be of shape {tuple(tensor.shape)}, got {tuple(weights[name].shape)}'
            )
    plain.load_state_dict(weights)


def _plain_names(weights: Any) -> Any:
    if not isinstance(weights, Mapping):
        return weights
    return {
        key[len(COMPILED_PREFIX):] if isinstance(key, str) and key.startswith(COMPILED_PREFIX) else key: value
        for key, value in weights.items()
    }


def _is_cuda(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_cuda


def _pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    # torch keeps pinned memory that is let go for the next of its size: a version costs no new allocation.
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def _duplicate(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf)


def copied(value: Any) -> Any:
    """A copy on the CPU of nested dicts and lists of tensors, and of whatever else they hold."""
    return each_leaf(value, _copied_leaf)


def _copied_leaf(leaf: Any) -> Any:
    return leaf.detach().to('cpu', copy=True) if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf)


def _is_finite(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return not (leaf.is_floating_point() or leaf.is_complex()) or bool(leaf.isfinite().all())
    if isinstance(leaf, (float, complex, np.ndarray, np.generic)) and not _holds_objects(leaf):
        return bool(np.isfinite(leaf).all())
    return True


def _holds_objects(leaf: Any) -> bool:
    return getattr(leaf, 'dtype', np.dtype(float)).kind not in 'fcbiu'


def each_leaf(value: Any, fn: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        items = ((key, each_leaf(item, fn)) for key, item in value.items())
        return type(value)(items) if isinstance(value, dict) else dict(items)
    if isinstance(value, (list, tuple)):
        return type(value)(each_leaf(item, fn) for item in value)
    return fn(value)
