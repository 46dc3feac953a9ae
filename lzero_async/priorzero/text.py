"""What an environment says in words, and what a prior says of it. Plain values: they cross processes."""
from __future__ import annotations

from dataclasses import dataclass
from typing import List, Protocol, Sequence, Tuple


@dataclass(frozen=True)
class Turn:
    """One move that was made: what was seen, what was done, what it brought."""

    observation: str
    action: str
    reward: float


@dataclass(frozen=True)
class TextState:
    """Where a game stands, in words. Action `i` of the environment is `valid_actions[i]`."""

    observation: str
    valid_actions: Tuple[str, ...]
    history: Tuple[Turn, ...] = ()
    """The last moves, the oldest first."""
    score: float = 0.0
    moves: int = 0


@dataclass(frozen=True)
class ActionScore:
    """How likely a language model finds one action: its tokens, the end of the answer included, one by one."""

    token_ids: Tuple[int, ...]
    log_probs: Tuple[float, ...]


@dataclass(frozen=True)
class StateScores:
    """What a prior says of one state. `actions` and `log_prior` are in the order of its `valid_actions`."""

    prompt_ids: Tuple[int, ...]
    actions: Tuple[ActionScore, ...]
    log_prior: Tuple[float, ...]
    """Logarithms of a distribution over the valid actions."""
    version: int
    """Of the weights that scored it."""


@dataclass(frozen=True)
class PriorSample:
    """One action that was taken, as the prior's update needs it."""

    prompt_ids: Tuple[int, ...]
    action_ids: Tuple[int, ...]
    log_probs: Tuple[float, ...]
    """Of each of `action_ids`, by the weights that played it."""
    advantage: float
    version: int


class Prior(Protocol):
    """Scores states. Called from one thread at a time."""

    @property
    def version(self) -> int: ...

    def score(self, states: Sequence[TextState]) -> List[StateScores]: ...
