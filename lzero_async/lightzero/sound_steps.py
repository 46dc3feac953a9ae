"""Environments that return what is not a number are noticed at once, before it gets into a search or a segment."""
from __future__ import annotations

from typing import Any, Callable, Dict

import numpy as np

from ..core.errors import LzeroAsyncError

Step = Callable[[Any], Dict[int, Any]]


class EnvironmentBroken(LzeroAsyncError):
    """An environment returned an observation or a reward that is not finite."""


def checked(step: Step) -> Step:
    """An environment manager's `step`, which raises EnvironmentBroken where one of them is broken."""

    def step_and_check(actions: Any) -> Dict[int, Any]:
        timesteps = step(actions)
        for env_id, timestep in timesteps.items():
            observation = timestep.obs['observation'] if isinstance(timestep.obs, dict) else timestep.obs
            for what, value in (('observation', observation), ('reward', timestep.reward)):
                if not _is_finite(value):
                    raise EnvironmentBroken(f'environment {env_id} returned a {what} that is not finite')
        return timesteps

    return step_and_check


def _is_finite(value: Any) -> bool:
    array = np.asarray(value)
    return array.dtype.kind != 'f' or bool(np.isfinite(array).all())
