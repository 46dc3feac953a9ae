"""Steps of a game as a person reads them."""
from __future__ import annotations

import math
import os
import textwrap
from typing import Any, List, Sequence

from .steps import PriorStep

TOP = 3
WIDTH = 100


def transcript(steps: Sequence[PriorStep]) -> str:
    """An episode: what was seen, what the language model would do, and what the search chose."""
    lines: List[str] = []
    for number, step in enumerate(steps, 1):
        lines += [f'--- step {number}, score {step.state.score:g}', *_wrapped(step.state.observation)]
        ranked = sorted(range(len(step.state.valid_actions)), key=lambda action: -step.scores.log_prior[action])
        opinions = ', '.join(
            f'{step.state.valid_actions[action]} {math.exp(step.scores.log_prior[action]):.2f}'
            for action in ranked[:TOP]
        )
        lines.append(f'  LLM: {opinions}')
        lines.append(
            f'  search: {step.action_text} ({step.visits[step.action]} of {sum(step.visits)} visits)'
            + (f', {step.reward:+g} points' if step.reward else '')
        )
    if lines:
        last = steps[-1]
        lines.append(f'--- the end, score {last.state.score + last.reward:g} after {len(steps)} steps')
    return '\n'.join(lines)


class DebugLog:
    """Prompts, candidates, priors and visit counts of every step, in one file."""

    def __init__(self, path: str, prior: Any) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._file = open(path, 'a', encoding='utf-8', buffering=1)  # noqa: SIM115  kept open, a line at a time
        self._prior = prior

    def write(self, env_id: int, step: PriorStep) -> None:
        rows = [
            f'  {text:<30} prior {math.exp(log_prior):.3f}  world model {own:.3f}  visits {visits}'
            + ('  <- chosen' if action == step.action else '')
            for action, (text, log_prior, own, visits) in enumerate(zip(
                step.state.valid_actions, step.scores.log_prior, step.world_model_policy, step.visits
            ))
        ]
        self._file.write('\n'.join([
            f'=== environment {env_id}, move {step.state.moves}, score {step.state.score:g}, '
            f'prior version {step.scores.version}',
            *(_wrapped(self._prior.decode(step.scores.prompt_ids)) if step.scores.prompt_ids else ()),
            *rows,
            f'  value {step.searched_value:.3f} (predicted {step.predicted_value:.3f}), reward {step.reward:g}',
            '',
        ]))


def _wrapped(text: str) -> List[str]:
    return [
        line for part in text.strip().splitlines() if part.strip()
        for line in textwrap.wrap(part.strip(), WIDTH, initial_indent='  | ', subsequent_indent='  | ')
    ]
