"""PriorStep: one step of a game as it was played, with all that training the prior and reading along needs."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Mapping, Tuple

import numpy as np

from .mixing import log_softmax
from .text import StateScores, TextState

STEPS = 'prior_steps'
"""The key under which a segment's facts hold its steps."""


@dataclass(frozen=True)
class PriorStep:
    """All of it belongs to one action: what was seen before it, why it was chosen, what it brought."""

    state: TextState
    action: int
    scores: StateScores
    world_model_policy: Tuple[float, ...]
    """Probabilities of the valid actions, before they were mixed with the prior."""
    visits: Tuple[int, ...]
    """Of the valid actions, in the search."""
    searched_value: float
    predicted_value: float
    reward: float = 0.0

    @classmethod
    def chosen(
        cls, state: TextState, scores: StateScores, output: Mapping[str, Any], world_model_logits: np.ndarray
    ) -> 'PriorStep':
        """From what the search said; the reward comes later."""
        own = np.exp(log_softmax(np.asarray(world_model_logits[:len(state.valid_actions)], float)))
        return cls(
            state=state,
            action=int(output['action']),
            scores=scores,
            world_model_policy=tuple(own.tolist()),
            visits=tuple(int(count) for count in output['visit_count_distributions']),
            searched_value=float(output['searched_value']),
            predicted_value=float(np.asarray(output['predicted_value']).reshape(-1)[0]),
        )

    def with_reward(self, reward: float) -> 'PriorStep':
        return replace(self, reward=reward)

    @property
    def action_text(self) -> str:
        return self.state.valid_actions[self.action]

    def distribution(self, action_space_size: int) -> Tuple[float, ...]:
        """How often each action was visited, over all that an environment may have."""
        total = sum(self.visits)
        return tuple(count / total for count in self.visits) + (0.0,) * (action_space_size - len(self.visits))
