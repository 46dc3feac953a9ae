"""The Jericho engine: opening a story file in it, and finding the valid actions. It is an extra."""
from __future__ import annotations

import hashlib
import importlib
import os
import re
import warnings
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from ..core.errors import ConfigError
from .games import FOLDER, OURS, TEXTWORLD_GRAMMAR, Game
from .installed import needed

STORY_VERSIONS = range(3, 9)
WAYS = frozenset((
    'north', 'northeast', 'east', 'southeast', 'south', 'southwest', 'west', 'northwest', 'up', 'down', 'enter', 'exit',
    'ne', 'nw', 'se', 'sw',
))
PUT_DOWN = frozenset(('drop', 'insert', 'put', 'throw'))
NO_OBJECTS = WAYS.union((
    'a', 'all', 'an', 'and', 'are', 'as', 'at', 'but', 'by', 'everything', 'for', 'from', 'here', 'in', 'into', 'is',
    'it', 'its', 'not', 'of', 'off', 'on', 'onto', 'or', 'out', 'that', 'the', 'there', 'this', 'to', 'with', 'you',
    'your',
))


def story_path(env_id: str, game_path: Optional[str] = None) -> str:
    """The story file `env_id` in the folder `game_path`, or among the games that come with this package."""
    folder = str(FOLDER) if game_path is None else game_path
    path = os.path.join(folder, env_id)
    if not os.path.isfile(path):
        raise ConfigError(f'env_id must be a file in game_path ({folder}), got {env_id!r}')
    return path


def opened(path: str) -> Any:
    """A FrotzEnv of the game."""
    jericho = needed('jericho', f'env_id {os.path.basename(path)!r}')
    # Not `import jericho.util`: that name can be ctypes.util, by way of a star import.
    util: Any = importlib.import_module('jericho.util')
    if not hasattr(util, 'spacy_nlp'):
        util.spacy_nlp = _words
    _introduce(importlib.import_module('jericho.defines').BINDINGS_DICT, path, _content(path))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # a game of which they say something is refused
        engine = jericho.FrotzEnv(path)
    if not engine.is_fully_supported or engine.act_gen is None:
        raise ConfigError(f'env_id must be a game that Jericho supports, or a file named tw-*, got {path!r}')
    words = engine.get_dictionary()
    engine.get_dictionary = lambda: words  # else read from the file in every search for valid actions
    return engine


def valid_actions(engine: Any) -> Tuple[str, ...]:
    """As Jericho's `get_valid_actions`, but the same in every process. The game's state is as before; its score is not.

    A list too long for an agent is cut at its end, so ways out come first, and what puts things down comes last.
    """
    util = importlib.import_module('jericho.util')
    objects = engine._identify_interactive_objects(use_object_tree=True)
    # These come from sets of strings. Which names and commands Jericho picks must not depend on their order.
    names = engine._score_object_names(
        {look: sorted(objects[look]) for look in sorted(objects, key=lambda look: (look == 'all', look))}
    )
    commands = engine.act_gen.generate_actions(names)
    # In this process: that of an environment is daemonic, and may not have children.
    effects = engine._filter_candidate_actions(commands, use_ctypes=True, use_parallel=False)
    found = {max(same, key=util.verb_usage_count) for same in effects.values()}
    return tuple(sorted(found, key=lambda action: (_rank(action), action)))


def _rank(action: str) -> int:
    verb = action.split()[0]
    return 0 if action in WAYS else 2 if verb in PUT_DOWN else 1


def _content(path: str) -> bytes:
    """Of a story file. Anything else is refused: the engine would end the process."""
    with open(path, 'rb') as file:
        content = file.read()
    version = content[0] if content else 0
    unit = 2 if version <= 3 else 4 if version <= 5 else 8  # of the length in the header; files may be padded
    length = unit * int.from_bytes(content[26:28], 'big')
    if version not in STORY_VERSIONS or len(content) < max(64, length):
        raise ConfigError(f'env_id must be a whole Z-machine story file, got {path!r}')
    return content


def _introduce(bindings: Dict[str, Any], path: str, content: bytes) -> None:
    """Tell Jericho of a game that it does not know, if its name says that it keeps to TextWorld's conventions."""
    rom = os.path.basename(path)
    if not rom.startswith('tw-'):
        return
    game = next((ours for ours in OURS if (FOLDER / ours.rom).read_bytes() == content), Game(rom, TEXTWORLD_GRAMMAR))
    bindings.setdefault(hashlib.md5(content).hexdigest(), {
        'name': rom.split('.')[0], 'rom': rom, 'seed': 1, 'grammar': ';'.join(game.grammar),
        'walkthrough': '/'.join(game.walkthrough), 'max_word_length': 9, 'minimal_actions': '',
    })


@dataclass(frozen=True)
class _Word:
    text: str
    lower_: str
    pos_: str


def _words(text: str) -> List[_Word]:
    """In place of spaCy's language model: any word may name an object. Jericho then asks the game which do."""
    found = re.findall(r"[A-Za-z]+(?:['-][A-Za-z]+)*", text)
    return [_Word(word, word.lower(), 'X' if word.lower() in NO_OBJECTS else 'NOUN') for word in found]
