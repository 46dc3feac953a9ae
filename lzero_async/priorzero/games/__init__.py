"""The games that come with lzero-async: written for it, compiled with Inform 6.41 and its library 6.12.6.

`make game` compiles them anew.
"""
from __future__ import annotations

import pathlib
from dataclasses import dataclass
from typing import Tuple

FOLDER = pathlib.Path(__file__).parent


@dataclass(frozen=True)
class Game:
    """What Jericho has to be told of a game before it finds the valid actions."""

    rom: str
    grammar: Tuple[str, ...]
    """Templates of commands. Jericho puts what is in sight in the place of OBJ."""
    walkthrough: Tuple[str, ...] = ()


LIGHTHOUSE = Game(
    'tw-lighthouse.z5',
    grammar=(
        'clean OBJ', 'close OBJ', 'drop OBJ', 'eat OBJ', 'fill OBJ', 'jump', 'light OBJ', 'open OBJ', 'ring OBJ',
        'search OBJ', 'take OBJ', 'take off OBJ', 'touch OBJ', 'unlock OBJ with OBJ', 'wake OBJ', 'wear OBJ',
        'wind OBJ',
    ),
    walkthrough=(
        'east', 'take can', 'west', 'north', 'north', 'west', 'fill can', 'east', 'east', 'open cupboard',
        'take matches', 'up', 'search coat', 'down', 'west', 'unlock door with key', 'open door', 'north', 'up',
        'take cloth', 'up', 'clean lens', 'fill lamp', 'light lamp',
    ),
)

OURS = (LIGHTHOUSE,)

TEXTWORLD_GRAMMAR = (
    'chop OBJ with OBJ', 'close OBJ', 'cook OBJ with OBJ', 'dice OBJ with OBJ', 'drink OBJ', 'drop OBJ', 'eat OBJ',
    'insert OBJ into OBJ', 'lock OBJ with OBJ', 'open OBJ', 'prepare meal', 'put OBJ on OBJ', 'slice OBJ with OBJ',
    'take OBJ', 'unlock OBJ with OBJ',
)
"""What the games that TextWorld makes understand."""
