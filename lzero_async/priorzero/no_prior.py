"""NoPrior: for searches that go by the world model alone, and no language model to train."""
from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Sequence

from .text import ActionScore, PriorSample, StateScores, TextState


class NoPrior:
    """`text.Prior`, at no cost: every action is as good as another."""

    version = 0

    def score(self, states: Sequence[TextState]) -> List[StateScores]:
        return [
            StateScores(
                prompt_ids=(),
                actions=(ActionScore((), ()),) * len(state.valid_actions),
                log_prior=(-math.log(len(state.valid_actions)),) * len(state.valid_actions),
                version=0,
            )
            for state in states
        ]

    def update(self, samples: Sequence[PriorSample]) -> Dict[str, float]:
        return {}

    def weights(self) -> Dict[str, Any]:
        return {}

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        pass

    def state(self) -> Dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass
