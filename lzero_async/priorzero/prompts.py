"""What a language model is asked: the chat prompt of a state, and the tokens of the answers to it."""
from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from ..core.errors import ConfigError
from .text import TextState, Turn

SYSTEM = (
    'You are an expert player of text adventures. Your aim is the highest score. '
    'Reply with one command, copied exactly from the list of possible commands, and nothing else.'
)
QUESTION = 'Which command is best now?'
PLAIN_ANSWER = 'Command:\n'
GAP = ' [...] '
_PROBE = 'probe'


class Prompts:
    """Makes token ids of states and actions, for one tokenizer. The same state always gives the same ids."""

    def __init__(self, tokenizer: Any, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._is_chat = bool(getattr(tokenizer, 'chat_template', None))
        self._has_system = self._is_chat and self._takes_system()
        self.end_id = self._end_of_answer()

    def prompt_ids(self, state: TextState) -> Tuple[int, ...]:
        """Cut to `max_tokens`: the oldest turns go first, then the middle of the observation.

        The instructions and the valid actions are never cut; if they alone need more, the prompt is longer.
        """
        history, observation = list(state.history), state.observation.strip()
        while True:
            ids = self._encode(history, observation, state.valid_actions)
            if len(ids) <= self._max_tokens:
                return ids
            if not history:
                return self._cut(observation, state.valid_actions)
            del history[0]

    def text_of(self, ids: Sequence[int]) -> str:
        """As the language model sees it, for people to read."""
        text: str = self._tokenizer.decode(list(ids))
        return text

    def action_ids(self, action: str) -> Tuple[int, ...]:
        """Of the action as an answer, with the token that ends an answer."""
        return (*self._tokenizer.encode(self._plain(action.strip()), add_special_tokens=False), self.end_id)

    def _cut(self, observation: str, actions: Sequence[str]) -> Tuple[int, ...]:
        """The longest form that fits. The number of tokens hardly ever falls as text is added, so it is bisected."""
        best = self._encode([], without_middle(observation, 0), actions)
        low, high = 0, len(observation)
        while high - low > 1:
            kept = (low + high) // 2
            ids = self._encode([], without_middle(observation, kept), actions)
            if len(ids) <= self._max_tokens:
                best, low = ids, kept
            else:
                high = kept
        return best

    def _encode(self, history: Sequence[Turn], observation: str, actions: Sequence[str]) -> Tuple[int, ...]:
        text = self._plain(request(history, observation, actions))
        if not self._is_chat:
            return self._plain_ids(f'{SYSTEM}\n\n{text}\n{PLAIN_ANSWER}')
        rendered: str = self._tokenizer.apply_chat_template(
            self._messages(text), tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        # The template writes all the special tokens there have to be.
        return tuple(self._tokenizer.encode(rendered, add_special_tokens=False))

    def _plain_ids(self, text: str) -> Tuple[int, ...]:
        ids: List[int] = self._tokenizer.encode(text)
        if ids and ids[-1] == self._tokenizer.eos_token_id:
            del ids[-1]  # what follows is the answer
        return tuple(ids)

    def _messages(self, text: str) -> List[Dict[str, str]]:
        if self._has_system:
            return [{'role': 'system', 'content': SYSTEM}, {'role': 'user', 'content': text}]
        return [{'role': 'user', 'content': f'{SYSTEM}\n\n{text}'}]

    def _plain(self, text: str) -> str:
        """Without the special tokens that a game might write: they would end the message they stand in."""
        for token in self._tokenizer.all_special_tokens:
            text = text.replace(token, '')
        return text

    def _takes_system(self) -> bool:
        """Some templates refuse a system message, and some leave it out."""
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                [{'role': 'system', 'content': SYSTEM}, {'role': 'user', 'content': _PROBE}], tokenize=False
            )
        except Exception:  # a template raises what it likes
            return False
        return SYSTEM in rendered

    def _end_of_answer(self) -> int:
        """The special token that follows an answer in a chat, else the one that ends a text."""
        if self._is_chat:
            rendered: str = self._tokenizer.apply_chat_template(
                [{'role': 'user', 'content': QUESTION}, {'role': 'assistant', 'content': _PROBE}], tokenize=False
            )
            after = self._tokenizer.encode(rendered.rpartition(_PROBE)[2], add_special_tokens=False)
            if after and after[0] in self._tokenizer.all_special_ids:
                return int(after[0])
        end = self._tokenizer.eos_token_id
        if end is None:
            raise ConfigError('llm must have a tokenizer with an end-of-text token, got one without')
        return int(end)


def request(history: Sequence[Turn], observation: str, actions: Sequence[str]) -> str:
    """What the player is told: the turns so far, what there is to see, what can be done."""
    parts = []
    if history:
        parts.append('What happened so far:\n' + '\n'.join(_told(turn) for turn in history))
    parts.append(f'What you see now:\n{observation}')
    parts.append('Possible commands:\n' + '\n'.join(f'- {action}' for action in actions))
    parts.append(QUESTION)
    return '\n\n'.join(parts)


def without_middle(text: str, kept: int) -> str:
    """`kept` characters of the text: its beginning, which says where one is, and its end, which is the newest."""
    if kept >= len(text):
        return text
    if kept <= 0:
        return GAP.strip()
    head = kept - kept // 2
    return text[:head].rstrip() + GAP + text[len(text) - kept // 2:].lstrip()


def _told(turn: Turn) -> str:
    return f'{turn.observation.strip()}\n> {turn.action.strip()} (reward {turn.reward:+g})'
