"""StateScorer: from states to what a prior says of them, whatever computes the log-probabilities."""
from __future__ import annotations

import math
from collections import OrderedDict
from typing import Callable, List, Optional, Sequence

import torch

from .prior_config import PriorConfig
from .prompts import Prompts
from .text import ActionScore, StateScores, TextState
from .token_scores import Question

LogProbs = Callable[[Sequence[Question]], List[List[List[float]]]]


class StateScorer:
    """Asks `log_probs` for what it does not remember. Used by one thread at a time."""

    def __init__(
        self, prompts: Prompts, config: PriorConfig, name: str, context: Optional[int], log_probs: LogProbs
    ) -> None:
        """`context`: the tokens that the model `name` can read, if that is known."""
        self._prompts = prompts
        self._config = config
        self._name = name
        self._context = context
        self._log_probs = log_probs
        self._known: 'OrderedDict[Question, StateScores]' = OrderedDict()

    def score(self, states: Sequence[TextState], version: int) -> List[StateScores]:
        """`version`: of the weights that `log_probs` works with."""
        questions = [self._question(state) for state in states]
        found = {question: self._known[question] for question in questions if question in self._known}
        new = [question for question in dict.fromkeys(questions) if question not in found]
        if new:
            for question, log_probs in zip(new, self._log_probs(new)):
                found[question] = self._scores(question, log_probs, version)
        for question, scores in found.items():
            self._known[question] = scores
            self._known.move_to_end(question)
        while len(self._known) > self._config.cache_size:
            self._known.popitem(last=False)
        return [found[question] for question in questions]

    def decode(self, ids: Sequence[int]) -> str:
        return self._prompts.text_of(ids)

    def forget(self) -> None:
        """To be called whenever the weights change."""
        self._known.clear()

    def _question(self, state: TextState) -> Question:
        if not state.valid_actions:
            raise ValueError('valid_actions must name an action at least, got none')
        question = Question(
            self._prompts.prompt_ids(state), tuple(self._prompts.action_ids(action) for action in state.valid_actions)
        )
        longest = len(question.prompt) + max(len(answer) for answer in question.answers)
        if self._context is not None and longest > self._context:
            raise ValueError(
                f'a prompt and its longest action must fit into the {self._context} tokens of llm {self._name}, got '
                f'{longest} tokens, with {len(state.valid_actions)} valid actions'
            )
        return question

    def _scores(self, question: Question, log_probs: Sequence[Sequence[float]], version: int) -> StateScores:
        means = torch.tensor([math.fsum(tokens) / len(tokens) for tokens in log_probs], dtype=torch.float64)
        if not bool(means.isfinite().all()):
            raise FloatingPointError(
                f'the log-probabilities of llm {self._name} must be finite, got {means.tolist()} at version {version}'
            )
        return StateScores(
            question.prompt,
            tuple(ActionScore(ids, tuple(tokens)) for ids, tokens in zip(question.answers, log_probs)),
            tuple(torch.log_softmax(means / self._config.temperature, dim=0).tolist()),
            version,
        )
