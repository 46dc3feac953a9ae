"""Story: one game, played in the Jericho engine. What the engine leaves to chance or gets wrong is put right here."""
from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Optional, Tuple

from ..core.errors import LzeroAsyncError
from . import engine

CACHED_STATES = 10_000


class StoryError(LzeroAsyncError):
    """A game was asked for a move that it cannot make, or its engine broke down."""


@dataclass(frozen=True)
class Move:
    """What a command brought."""

    text: str
    reward: float
    done: bool
    score: int
    moves: int


@dataclass(frozen=True)
class Surroundings:
    """What the player finds here. Finding it out costs no move."""

    room: str
    inventory: str
    valid_actions: Tuple[str, ...]
    """Commands that change something, one for each effect, in an order that is always the same. () after the end."""


class Story:
    """A game that stands at its beginning. Used by one thread at a time.

    The engine's own rewards are wrong after a search for valid actions, so they are differences of the score here.
    """

    def __init__(self, path: str, seed: Optional[int] = None, cached_states: int = CACHED_STATES) -> None:
        self._engine = engine.opened(path)
        self._path = path
        self._cached_states = cached_states
        self._cache: OrderedDict[Tuple[str, str, str], Tuple[str, ...]] = OrderedDict()
        self.reset(seed)

    @property
    def max_score(self) -> int:
        return int(self._engine.get_max_score())

    @property
    def walkthrough(self) -> Tuple[str, ...]:
        """Commands that win with the seed None. () if none are known."""
        return tuple(command for command in self._engine.bindings['walkthrough'].split('/') if command)

    @property
    def done(self) -> bool:
        return self._done

    @property
    def won(self) -> bool:
        return bool(self._engine.victory())

    def reset(self, seed: Optional[int] = None) -> Move:
        """Begin anew. Equal seeds and commands give equal games; None is the seed of the walkthrough."""
        # The engine takes 0 for "none given" and -1 for the time.
        self._engine.seed(None if seed is None else 1 + seed % (2 ** 31 - 1))
        text, info = self._engine.reset()
        self._done = False
        self._score = int(info['score'])
        return Move(_tidy(text), 0.0, False, self._score, int(info['moves']))

    def step(self, command: str) -> Move:
        """Raises StoryError if the game is over: only `reset` goes on from there."""
        if self._done:
            raise StoryError(f'{self._path} is over, and was told {command!r}: reset() comes first')
        text, _, done, info = self._engine.step(command)
        if self._engine._emulator_halted():
            raise StoryError(f'the engine halted in {self._path} on {command!r}')
        before, self._score, self._done = self._score, int(info['score']), bool(done)
        return Move(_tidy(text), float(self._score - before), self._done, self._score, int(info['moves']))

    def surroundings(self) -> Surroundings:
        """Leaves the game exactly as it is."""
        if self._done:
            return Surroundings('', '', ())
        room, inventory = self._seen('look'), self._seen('inventory')
        # The hash knows objects, their places and attributes, not a game's variables; some of these show in the texts.
        state = (str(self._engine.get_world_state_hash()), room, inventory)
        if state not in self._cache:
            self._cache[state] = self._find_valid_actions()
            if len(self._cache) > self._cached_states:
                self._cache.popitem(last=False)
        self._cache.move_to_end(state)
        return Surroundings(room, inventory, self._cache[state])

    def valid_actions(self) -> Tuple[str, ...]:
        return self.surroundings().valid_actions

    def close(self) -> None:
        """The story is of no use after it."""
        self._done = True
        self._engine = None

    def _seen(self, command: str) -> str:
        """The answer to a command that is then taken back."""
        state = self._engine.get_state()
        text = self._engine.step(command)[0]
        self._engine.set_state(state)
        return _tidy(text)

    def _find_valid_actions(self) -> Tuple[str, ...]:
        found = engine.valid_actions(self._engine)
        # Of a TextWorld game the engine now has the score of the last command it tried; this gives it the present one.
        self._seen('look')
        return found


def _tidy(text: str) -> str:
    lines = '\n'.join(line.strip() for line in text.splitlines())
    return re.sub(r'\n{3,}', '\n\n', lines).strip()
