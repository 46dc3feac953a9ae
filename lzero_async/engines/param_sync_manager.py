"""ParameterSyncManager: the ParameterSynchronizer as a Ray actor, for workers that are Ray actors, too."""
from __future__ import annotations

from typing import Any, Hashable

import ray

from ..torch_weights import ParameterSynchronizer, TorchWeights, copied

OBJECT_STORE = 'ray-object-store'


class RayWeights(TorchWeights):
    """`core.weight_ops.WeightOps` for workers of which some are Ray actors.

    Those are read and loaded by remote calls, and all get one version from one copy in the object store.
    """

    def read(self, source: Any) -> Any:
        if not _is_actor(source):
            return super().read(source)
        method = source.get_weights if hasattr(source, 'get_weights') else source.state_dict
        return copied(ray.get(method.remote()))

    def key_of(self, target: Any) -> Hashable:
        # A handle is another object each time it comes from elsewhere.
        return target._actor_id if _is_actor(target) else super().key_of(target)

    def device_of(self, target: Any) -> Hashable:
        return OBJECT_STORE if _is_actor(target) else super().device_of(target)

    def copy_to(self, weights: Any, device: Hashable) -> Any:
        return ray.put(weights) if device == OBJECT_STORE else super().copy_to(weights, device)

    def load(self, target: Any, weights: Any, policy_version: int) -> None:
        if not _is_actor(target):
            super().load(target, weights, policy_version)
        elif hasattr(target, 'load_weights'):
            ray.get(target.load_weights.remote(weights, policy_version))
        else:
            ray.get(target.load_state_dict.remote(weights))


class RayParameterSynchronizer(ParameterSynchronizer):
    default_weight_ops = RayWeights

    def __init__(
        self, config: Any = None, trainer_actor: Any = None, rollouter_actor: Any = None, as_ray_actor: bool = True
    ) -> None:
        super().__init__(config, trainer_actor, rollouter_actor, as_ray_actor)


ParameterSyncManager = ray.remote(RayParameterSynchronizer)


def _is_actor(worker: Any) -> bool:
    return isinstance(worker, ray.actor.ActorHandle)
