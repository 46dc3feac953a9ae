"""Log-probabilities of answers' tokens, by a causal language model of transformers."""
from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Iterator, List, Sequence, Tuple

import torch

from .installed import needed

Ids = Tuple[int, ...]


@dataclass(frozen=True)
class Question:
    """A prompt and some answers to it. Neither the prompt nor an answer is empty."""

    prompt: Ids
    answers: Tuple[Ids, ...]


class TokenScorer:
    """Scores many answers to a prompt in one pass over the prompt. Every pass holds at most `max_tokens` tokens."""

    def __init__(self, model: Any, max_tokens: int) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._cache_class = needed('transformers', 'the prior').DynamicCache

    @torch.inference_mode()
    def scores(self, questions: Sequence[Question]) -> List[List[List[float]]]:
        """For each question, for each answer, the log-probability of each token after the prompt and those before."""
        found: List[List[List[float]]] = [[] for _ in questions]
        by_length = sorted(range(len(questions)), key=lambda index: -len(questions[index].prompt))  # padding is little
        for group in _chunks(by_length, lambda index: len(questions[index].prompt), self._max_tokens):
            for index, scores in zip(group, self._group([questions[index] for index in group])):
                found[index] = scores
        return found

    def _group(self, questions: Sequence[Question]) -> List[List[List[float]]]:
        """Of prompts that go through the model together."""
        device = next(self._model.parameters()).device
        ids, mask = padded_left([question.prompt for question in questions], device)
        # A cache without the model's config keeps all positions, also where attention has a window: masks do the rest.
        output = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions(mask), past_key_values=self._cache_class(),
            use_cache=True, **last_logits(self._model, 1),
        )
        first = log_softmax(output.logits[:, -1])
        rows = [(row, answer) for row, question in enumerate(questions) for answer in question.answers]
        scores: List[List[List[float]]] = [[] for _ in questions]
        for chunk in _chunks(rows, lambda row: ids.shape[1] + len(row[1]), self._max_tokens):
            for (row, _), log_probs in zip(chunk, self._answers(output.past_key_values, mask, first, chunk)):
                scores[row].append(log_probs)
        return scores

    def _answers(
        self, cache: Any, mask: torch.Tensor, first: torch.Tensor, rows: Sequence[Tuple[int, Ids]]
    ) -> List[List[float]]:
        """Of some answers, each to the prompt in its row of the cache."""
        chosen = torch.tensor([row for row, _ in rows], device=mask.device)
        answers, answer_mask = padded_right([answer for _, answer in rows], mask.device)
        parts = [first[chosen].gather(1, answers[:, :1])]
        if answers.shape[1] > 1:
            expanded = self._cache_class()
            for layer, (keys, values) in enumerate(_layers(cache)):
                expanded.update(keys.index_select(0, chosen), values.index_select(0, chosen), layer)
            seen = torch.cat([mask[chosen], answer_mask[:, :-1]], dim=1)
            output = self._model(
                input_ids=answers[:, :-1], attention_mask=seen, past_key_values=expanded, use_cache=True,
                position_ids=positions(seen)[:, mask.shape[1]:],
            )
            parts.append(log_softmax(output.logits).gather(2, answers[:, 1:].unsqueeze(2)).squeeze(2))
        table: List[List[float]] = torch.cat(parts, dim=1).tolist()
        return [line[:len(answer)] for line, (_, answer) in zip(table, rows)]


def answer_log_probs(
    model: Any, prompts: Sequence[Ids], answers: Sequence[Ids]
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Of one answer to each prompt, by one pass over both, with gradients: (answers, tokens), and what is a token.

    Tokens are aligned at the end of their rows.
    """
    device = next(model.parameters()).device
    ids, mask = padded_left([prompt + answer for prompt, answer in zip(prompts, answers)], device)
    longest = max(len(answer) for answer in answers)
    output = model(
        input_ids=ids, attention_mask=mask, position_ids=positions(mask), use_cache=False,
        **last_logits(model, longest + 1),
    )
    logits = output.logits[:, -(longest + 1):-1]
    log_probs = log_softmax(logits).gather(2, ids[:, -longest:].unsqueeze(2)).squeeze(2)
    is_token = torch.tensor(
        [[False] * (longest - len(answer)) + [True] * len(answer) for answer in answers], device=device
    )
    return log_probs, is_token


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """In single precision, whatever the model's."""
    return torch.log_softmax(logits.float(), dim=-1)


def positions(mask: torch.Tensor) -> torch.Tensor:
    """Of tokens in their own rows: padding does not count."""
    return (mask.cumsum(dim=1) - 1).clamp(min=0)


def padded_left(rows: Sequence[Ids], device: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, every row ending at the right. Which id pads is of no matter, as the mask hides it."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


def padded_right(rows: Sequence[Ids], device: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    width = max(len(row) for row in rows)
    ids = torch.tensor([list(row) + [0] * (width - len(row)) for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
    return ids, mask


def last_logits(model: Any, count: int) -> Any:
    """The argument that spares the model the logits of all but the last tokens, if it knows one."""
    base = model.get_base_model() if hasattr(model, 'get_base_model') else model
    return {'logits_to_keep': count} if 'logits_to_keep' in inspect.signature(base.forward).parameters else {}


def _layers(cache: Any) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
    return ((layer.keys, layer.values) for layer in cache.layers)


def _chunks(items: Sequence[Any], tokens: Any, most: int) -> Iterator[List[Any]]:
    """In order, as many at a time as fit when padded to the longest; at least one."""
    chunk: List[Any] = []
    longest = 0
    for item in items:
        longest = max(longest, tokens(item))
        if chunk and longest * (len(chunk) + 1) > most:
            yield chunk
            chunk, longest = [], tokens(item)
        chunk.append(item)
    if chunk:
        yield chunk
