"""The game that comes with the package, played in the real engine."""
import hashlib
import os
import re
import shutil
import subprocess

import pytest

pytest.importorskip('jericho')

from lzero_async.priorzero.engine import story_path
from lzero_async.priorzero.games import FOLDER, LIGHTHOUSE, OURS
from lzero_async.priorzero.story import Story

INCLUDES = '/usr/share/inform6/library'
POINTS = {
    'take can': 1, 'fill can': 3, 'take matches': 2, 'search coat': 2, 'unlock door with key': 3, 'clean lens': 2,
    'fill lamp': 3, 'light lamp': 4,
}


@pytest.fixture(scope='module')
def story():
    story = Story(story_path(LIGHTHOUSE.rom))
    yield story
    story.close()


def play(story, *commands):
    """From the beginning. All moves; a list of commands may be given in one string, with commas."""
    story.reset()
    return [story.step(command.strip()) for line in commands for command in line.split(',')]


UP_TO_THE_LAMP = ', '.join(LIGHTHOUSE.walkthrough[:LIGHTHOUSE.walkthrough.index('clean lens')])


def test_the_walkthrough_wins_and_each_of_its_commands_is_a_valid_action(story):
    story.reset()
    points, rooms = {}, set()
    for command in LIGHTHOUSE.walkthrough:
        assert not story.done
        around = story.surroundings()
        assert command in around.valid_actions
        rooms.add(around.room.splitlines()[0])
        move = story.step(command)
        if move.reward:
            points[command] = move.reward
    assert points == POINTS
    assert (move.score, move.done, story.won, story.max_score) == (20, True, True, 20)
    assert move.moves == len(LIGHTHOUSE.walkthrough) == 24
    assert '*** The End ***' in move.text
    assert len(rooms) == 10, 'the other three are of no use: the cliff edge, the cellar and the gallery'


def test_the_story_knows_its_walkthrough(story):
    assert story.walkthrough == LIGHTHOUSE.walkthrough


@pytest.mark.parametrize('way, score', [
    ('north, west, west, west', 0),
    ('north, west, down, jump', 0),
    (UP_TO_THE_LAMP + ', north, north', 11),
    ('east, take can, west, north, north, east, open cupboard, take matches, west, west, light matches', 3),
    ('north, north, east, open cupboard, take matches, west, west, light drum', 2),
])
def test_ways_to_lose(story, way, score):
    *moves, last = play(story, way)
    assert not any(move.done for move in moves)
    assert last.done and not story.won and '*** You lost! ***' in last.text
    assert (last.score, last.reward, sum(move.reward for move in moves)) == (score, 0, score)


@pytest.mark.parametrize('commands, score', [
    ('east, take can, drop can, take can', 1),
    ('east, take all, drop all, take all', 1),
    ('east, take can, west, north, north, west, fill can, fill can', 4),
    ('north, north, east, open cupboard, take matches from cupboard, drop matches, take matches', 2),
    ('north, north, east, up, take coat, search coat, drop all, take all, search coat', 2),
])
def test_points_are_given_once(story, commands, score):
    assert play(story, commands)[-1].score == score


@pytest.mark.parametrize('left_out, answer', [
    ('clean lens', 'The lens must be clean first'),
    ('fill lamp', 'The lamp is dry'),
    ('take matches', 'You have nothing to light it with'),
])
def test_the_lamp_is_lit_last(story, left_out, answer):
    commands = [command for command in LIGHTHOUSE.walkthrough if command != left_out]
    last = play(story, *commands)[-1]
    assert not last.done and answer in last.text


@pytest.mark.parametrize('commands, answer', [
    ('north, west, west', 'One more step would be your last'),
    ('north, north, north', 'door is in the way'),
    ('north, north, open door', 'locked'),
    ('east, take can, fill can', 'nothing here to fill it with'),
    ('north, north, west, light drum', 'nothing to light it with'),
    ('north, north, east, open cupboard, take matches, light matches', 'There are plenty left'),
    ('north, north, east, up, wake keeper', 'The key is in my coat'),
    (UP_TO_THE_LAMP + ', drop cloth, clean lens', 'You need a cloth'),
    (UP_TO_THE_LAMP + ', pour can into lamp', 'You empty the can into the lamp'),
])
def test_what_the_game_answers(story, commands, answer):
    assert answer in play(story, commands)[-1].text


def test_rooms_tell_all_their_exits(story):
    """Whoever reads knows where to go: no way out goes unmentioned."""
    seen, ways = set(), [[]]
    while ways:
        way = ways.pop()
        play(story, *way) if way else story.reset()
        around = story.surroundings()
        if story.done or around.room in seen:
            continue
        seen.add(around.room)
        for action in around.valid_actions:
            if action in ('north', 'south', 'east', 'west', 'up', 'down'):
                assert re.search(rf'\b{action}\b', around.room, re.IGNORECASE), f'{action} in {around.room}'
                ways.append([*way, action])
    assert len(seen) == 8, 'the tower is locked'


def test_the_file_is_known_by_its_content(story):
    from jericho import defines

    known = defines.BINDINGS_DICT[hashlib.md5((FOLDER / LIGHTHOUSE.rom).read_bytes()).hexdigest()]
    assert known['rom'] == LIGHTHOUSE.rom and known['name'] == 'tw-lighthouse'


@pytest.mark.parametrize('game', OURS, ids=lambda game: game.rom)
def test_the_file_is_what_its_source_compiles_to(game, tmp_path):
    if shutil.which('inform6') is None or not os.path.isdir(INCLUDES):
        pytest.skip('inform6 and its library are not installed')
    shipped = (FOLDER / game.rom).read_bytes()
    source = FOLDER / game.rom.replace('tw-', '').replace('.z5', '.inf')
    built = tmp_path / game.rom
    command = ['inform6', f'+include_path={INCLUDES}', str(source), str(built)]
    done = subprocess.run(command, timeout=60, stdout=subprocess.PIPE, text=True, check=True)
    version = shipped[60:64].decode()  # where the compiler leaves its own
    if f'Inform {version}' not in done.stdout:
        pytest.skip(f'inform6 is not the {version} that made the file: {done.stdout.splitlines()[0]}')
    assert built.read_bytes() == shipped
