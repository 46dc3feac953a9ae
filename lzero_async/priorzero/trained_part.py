"""The part of a language model that is trained: which tensors, how they are read and loaded, and the model without."""
from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Dict, Iterator, List, Mapping, Optional, Set

import torch

from ..core.errors import ConfigError
from ..torch_weights import TorchWeights, copied
from .installed import needed
from .prior_config import ALL, LAST_LAYERS, LORA, NONE, PriorConfig


class TrainedPart:
    """Of one model, on which it works in place. What is not in `parameters` never changes."""

    def __init__(self, model: Any, config: PriorConfig, trainable: bool) -> None:
        """`model` is this one's own from now on. `trainable`: with gradients, and with the model as it was loaded."""
        model.requires_grad_(False)
        self.model = _with_adapters(model, config) if config.train == LORA else model
        names = _trained_names(self.model, config)
        self.parameters: Dict[str, torch.nn.Parameter] = {
            name: parameter for name, parameter in self.model.named_parameters() if name in names
        }
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        for parameter in self.parameters.values():
            parameter.requires_grad_(trainable)
        self._reference: Optional[Dict[str, torch.Tensor]] = None
        if trainable and config.train != LORA and config.kl_weight:
            self._reference = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    def weights(self) -> Dict[str, torch.Tensor]:
        """A copy on the CPU."""
        weights: Dict[str, torch.Tensor] = copied(dict(self.parameters))
        return weights

    def check(self, weights: Mapping[str, Any]) -> None:
        """Refuse weights that are not of this part: others by name or shape, no tensors, or not finite."""
        if not isinstance(weights, Mapping) or weights.keys() != self.parameters.keys():
            given = set(weights) if isinstance(weights, Mapping) else set()
            missing, unknown = sorted(self.parameters.keys() - given), sorted(map(str, given - self.parameters.keys()))
            raise ValueError(
                f'the weights of the prior must have the names of its trained part, got {_some(missing)} missing and '
                f'{_some(unknown)} unknown'
            )
        for name, parameter in self.parameters.items():
            tensor = weights[name]
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                got = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
                raise ValueError(f'the weights of {name} must be a tensor of floats, got {got}')
            if tensor.shape != parameter.shape:
                raise ValueError(
                    f'the weights of {name} must be of shape {tuple(parameter.shape)}, got {tuple(tensor.shape)}'
                )
        bad = TorchWeights().first_non_finite(weights)
        if bad is not None:
            raise ValueError(f'the weights of {bad} must be finite, got some that are not')

    def load(self, weights: Mapping[str, Any]) -> None:
        """What does not fit is refused before anything is changed."""
        self.check(weights)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(weights[name])

    def reference(self) -> ContextManager[Any]:
        """Inside, the model is as it was loaded. Only where it is trainable, and with a kl_weight."""
        if hasattr(self.model, 'disable_adapter'):
            adapters_off: ContextManager[Any] = self.model.disable_adapter()
            return adapters_off
        return self._swapped()

    @contextlib.contextmanager
    def _swapped(self) -> Iterator[None]:
        assert self._reference is not None
        trained = {name: parameter.data for name, parameter in self.parameters.items()}
        try:
            for name, parameter in self.parameters.items():
                parameter.data = self._reference[name]
            yield
        finally:
            for name, parameter in self.parameters.items():
                parameter.data = trained[name]


def _with_adapters(model: Any, config: PriorConfig) -> Any:
    """Adapters that change nothing yet. Their first values are the same for the same seed."""
    peft = needed('peft', f'train {LORA}')
    settings = peft.LoraConfig(
        r=config.lora_rank, lora_alpha=config.lora_alpha, lora_dropout=0.0, target_modules='all-linear',
        task_type='CAUSAL_LM',
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return peft.get_peft_model(model, settings).eval()


def _trained_names(model: Any, config: PriorConfig) -> Set[str]:
    if config.train == NONE:
        return set()
    if config.train == LORA:
        return {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if config.train == ALL:
        return {name for name, _ in model.named_parameters()}
    assert config.train == LAST_LAYERS
    modules = _last_modules(model, config.last_layers)
    trained = {id(parameter) for module in modules for parameter in module.parameters()}
    return {name for name, parameter in model.named_parameters() if id(parameter) in trained}


def _last_modules(model: Any, count: int) -> List[torch.nn.Module]:
    """The last layers, and the norm beside the list of layers."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    layers = max(lists, key=len, default=torch.nn.ModuleList())
    if len(layers) < count:
        raise ConfigError(f'last_layers must be <= {len(layers)}, the layers of this model, got {count}')
    parent = next(module for module in model.modules() if any(child is layers for child in module.children()))
    norms = [child for child in parent.children() if 'Norm' in type(child).__name__]
    return [*list(layers)[-count:], *norms]


def _some(names: List[str]) -> str:
    return str(names) if len(names) <= 4 else f'{names[:4]} and {len(names) - 4} more'
