"""WeightOps: all that touches the weights themselves, kept behind one Protocol so that the rest knows no tensors."""
from __future__ import annotations

import cmath
import copy
import numbers
from typing import Any, Hashable, List, Mapping, NamedTuple, Optional, Protocol, Tuple

from .errors import ConfigError


class WeightInfo(NamedTuple):
    name: str
    shape: Tuple[int, ...]
    dtype: str


class WeightOps(Protocol):
    """Called from any thread. `torch_weights.TorchWeights` is the one for torch."""

    def read(self, source: Any) -> Any:
        """A copy of the weights of `source` that its later updates do not touch. It may still be under way."""

    def is_settled(self, weights: Any) -> bool:
        """Whether such a copy is complete."""

    def settle(self, weights: Any) -> None:
        """Wait until it is."""

    def first_non_finite(self, weights: Any) -> Optional[str]:
        """The name of a weight that is not finite, if there is one."""

    def key_of(self, target: Any) -> Hashable:
        """The same for the same target, however often it is given."""

    def device_of(self, target: Any) -> Hashable: ...

    def copy_to(self, weights: Any, device: Hashable) -> Any:
        """The weights on `device`; the same object if they are there already."""

    def load(self, target: Any, weights: Any, policy_version: int) -> None:
        """Put all of the weights into `target`, or raise and leave it as it was."""

    def describe(self, weights: Any) -> List[WeightInfo]: ...


class PlainWeights:
    """Weights that are plain Python: nested dicts, lists and numbers."""

    def read(self, source: Any) -> Any:
        return copy.deepcopy(weights_of(source))

    def is_settled(self, weights: Any) -> bool:
        return True

    def settle(self, weights: Any) -> None:
        pass

    def first_non_finite(self, weights: Any) -> Optional[str]:
        return next((name for name, value in leaves('', weights) if not _is_finite(value)), None)

    def key_of(self, target: Any) -> Hashable:
        return id(target)

    def device_of(self, target: Any) -> Hashable:
        return 'cpu'

    def copy_to(self, weights: Any, device: Hashable) -> Any:
        return weights

    def load(self, target: Any, weights: Any, policy_version: int) -> None:
        # The target may keep what it gets, and change it.
        load_into(target, copy.deepcopy(weights), policy_version)

    def describe(self, weights: Any) -> List[WeightInfo]:
        return [WeightInfo(name, (), type(value).__name__) for name, value in leaves('', weights)]


def _is_finite(value: Any) -> bool:
    if isinstance(value, numbers.Rational) or not isinstance(value, numbers.Complex):
        return True
    return cmath.isfinite(complex(value))


def weights_of(source: Any) -> Any:
    """What a source of weights gives: `get_weights()`, or `state_dict()`."""
    return source.get_weights() if hasattr(source, 'get_weights') else source.state_dict()


def load_into(target: Any, weights: Any, policy_version: int) -> None:
    """Hand over to a target: `load_weights(weights, policy_version)`, or `load_state_dict(weights)`."""
    if hasattr(target, 'load_weights'):
        target.load_weights(weights, policy_version)
    else:
        target.load_state_dict(weights)


def check_source(name: str, source: Any) -> None:
    if not hasattr(source, 'get_weights') and not hasattr(source, 'state_dict'):
        raise ConfigError(f'{name} must have get_weights() or state_dict(), got {type(source).__name__} without')


def check_target(name: str, target: Any) -> None:
    if not hasattr(target, 'load_weights') and not hasattr(target, 'load_state_dict'):
        raise ConfigError(
            f'{name} must have load_weights(weights, policy_version) or load_state_dict(weights), '
            f'got {type(target).__name__} without'
        )


def leaves(name: str, value: Any) -> List[Tuple[str, Any]]:
    """All that nested dicts and lists hold, each under its path."""
    if isinstance(value, Mapping):
        return [leaf for key, item in value.items() for leaf in leaves(f'{name}.{key}' if name else str(key), item)]
    if isinstance(value, (list, tuple)):
        return [leaf for index, item in enumerate(value) for leaf in leaves(f'{name}[{index}]', item)]
    return [(name or 'weights', value)]
