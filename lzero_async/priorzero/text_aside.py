"""TextAside: environments whose observations are numbers to the host, and words to us."""
from __future__ import annotations

from typing import Any, Dict, List, Sequence

from .text import TextState


class TextAside:
    """An environment manager that takes `text` out of what its environments say, and keeps it.

    The host turns all that an observation holds into tensors.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._step = manager.step
        self._texts: Dict[int, TextState] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    @property
    def ready_obs(self) -> Dict[int, Any]:
        observations = self._manager.ready_obs
        self._texts.update({env_id: one['text'] for env_id, one in observations.items()})
        return {env_id: _without_text(one) for env_id, one in observations.items()}

    def texts(self, env_ids: Sequence[int]) -> List[TextState]:
        """Where these environments stood when `ready_obs` was last read, in the order given."""
        return [self._texts[env_id] for env_id in env_ids]

    def step(self, actions: Dict[int, Any]) -> Dict[int, Any]:
        return {
            env_id: timestep._replace(obs=_without_text(timestep.obs))
            for env_id, timestep in self._step(actions).items()
        }


def _without_text(observation: Dict[str, Any]) -> Dict[str, Any]:
    return {name: value for name, value in observation.items() if name != 'text'}
