"""A game in the real engine: what it says, what can be done, and that asking changes nothing."""
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip('jericho')

import lzero_async
from lzero_async.core.errors import ConfigError
from lzero_async.priorzero import engine
from lzero_async.priorzero.engine import story_path
from lzero_async.priorzero.games import FOLDER, LIGHTHOUSE, TEXTWORLD_GRAMMAR
from lzero_async.priorzero.story import Story, StoryError

CONTENT = (FOLDER / LIGHTHOUSE.rom).read_bytes()
TO_THE_TOWER = LIGHTHOUSE.walkthrough[:18]


def opened(**kwargs):
    return Story(story_path(LIGHTHOUSE.rom), **kwargs)


@pytest.fixture(scope='module')
def story():
    story = opened()
    yield story
    story.close()


def transcript(story, commands, seed=None):
    return [story.reset(seed), *(story.step(command) for command in commands)]


def file_in(folder, name, content):
    (folder / name).write_bytes(content)
    return str(folder / name)


# ---------------------------------------------------------------- playing


def test_the_beginning(story):
    move = story.reset()
    assert (move.reward, move.done, move.score, move.moves) == (0.0, False, 0, 0)
    assert move.text.startswith('The boat that brought you') and 'Landing\nA stone landing' in move.text
    assert '\n\n\n' not in move.text and move.text == move.text.strip()
    assert story.surroundings().inventory == "You're carrying nothing."


def test_rewards_are_right_after_a_search_for_valid_actions():
    story = opened()
    story.step('east')
    story.valid_actions()  # has tried `take can`, which gives a point
    move = story.step('take can')
    assert (move.reward, move.score) == (1.0, 1)
    assert [story.valid_actions() and story.step(command).reward for command in ('drop can', 'take can')] == [0.0, 0.0]


def test_the_score_is_right_at_an_end_that_follows_a_search():
    story = opened()
    for command in ('north', 'north', 'east', 'open cupboard', 'take matches', 'west', 'west'):
        story.step(command)
    story.valid_actions()
    move = story.step('light matches')
    assert (move.done, move.score, move.reward, move.moves, story.won) == (True, 2, 0.0, 8, False)


def test_after_the_end_nothing_is_valid_and_only_reset_goes_on(story):
    transcript(story, ['north', 'west', 'west', 'west'])
    assert story.done and story.valid_actions() == ()
    with pytest.raises(StoryError, match=r"tw-lighthouse\.z5 is over, and was told 'look': reset\(\) comes first"):
        story.step('look')
    assert not story.reset().done and not story.done and story.valid_actions()


def test_an_engine_that_breaks_down_says_where(story, monkeypatch):
    story.reset()
    monkeypatch.setattr(story._engine, '_emulator_halted', lambda: True)
    with pytest.raises(StoryError, match=r"the engine halted in .*tw-lighthouse\.z5 on 'north'"):
        story.step('north')


# ---------------------------------------------------------------- valid actions


def test_asking_what_is_valid_changes_nothing():
    asked, silent = opened(), opened()
    for command in LIGHTHOUSE.walkthrough[:12]:
        before = asked._engine.get_state()
        asked.surroundings()
        after = asked._engine.get_state()
        assert all(np.array_equal(one, other) for one, other in zip(before, after))
        assert asked._engine.get_score() == silent._engine.get_score()
        assert asked.step(command) == silent.step(command)
    assert asked.step('listen') == silent.step('listen'), 'not even chance'


def test_every_valid_action_changes_something(story):
    transcript(story, TO_THE_TOWER)
    state, here = story._engine.get_state(), story._engine.get_world_state_hash()
    for action in story.valid_actions():
        story._engine.step(action)
        assert story._engine.get_world_state_hash() != here, action
        story._engine.set_state(state)


def test_ways_come_first_and_what_puts_things_down_comes_last(story):
    transcript(story, TO_THE_TOWER)
    assert story.valid_actions() == (
        'down', 'south', 'up', 'close door', 'drop all', 'drop can', 'drop key', 'drop matches'
    )


def test_valid_actions_are_searched_for_once_in_each_state(monkeypatch):
    searched = []
    search = engine.valid_actions
    monkeypatch.setattr(engine, 'valid_actions', lambda *args: searched.append(1) or search(*args))
    story = opened()
    first = story.valid_actions()
    assert story.valid_actions() == first and len(searched) == 1
    assert story.reset(7) and story.valid_actions() == first and len(searched) == 1, 'a new game, the same state'
    story.step('listen')
    assert story.valid_actions() == first and len(searched) == 1, 'time passed, and nothing else'
    story.step('east')
    assert story.valid_actions() != first and len(searched) == 2


def test_the_cache_forgets_what_was_not_needed_for_longest(monkeypatch):
    searched = []
    monkeypatch.setattr(engine, 'valid_actions', lambda *args: searched.append(1) or ('look',))
    story = opened(cached_states=2)
    transcript(story, ['north', 'west', 'east', 'south'])  # a place that was visited differs from one that was not
    for way, searches in (
        ('look', 1), ('north', 2), ('south', 2),  # landing and path
        ('north west', 3),                        # the edge takes the place of the path
        ('east south', 3), ('north', 4),
    ):
        for command in way.split():
            story.step(command)
        story.valid_actions()
        assert len(searched) == searches and len(story._cache) <= 2, way


def test_the_world_hash_tells_states_apart(story):
    story.reset()
    hashes = [story._engine.get_world_state_hash()]
    for command in LIGHTHOUSE.walkthrough:
        story.step(command)
        hashes.append(story._engine.get_world_state_hash())
    assert len(set(hashes)) == len(hashes)
    transcript(story, ['east', 'west'])
    seen = story._engine.get_world_state_hash()
    for command in ('east', 'take net', 'drop net', 'west'):
        story.step(command)
    assert story._engine.get_world_state_hash() != seen, 'the net was moved'
    moved = story._engine.get_world_state_hash()
    for command in ('east', 'west', 'look', 'listen'):
        story.step(command)
    assert story._engine.get_world_state_hash() == moved


def test_all_processes_find_the_same():
    """Jericho's choice of names goes through sets of strings, whose order is another in each process."""
    program = (
        'from lzero_async.priorzero.story import Story, engine\n'
        'story = Story(engine.story_path("tw-lighthouse.z5"))\n'
        f'for command in {LIGHTHOUSE.walkthrough[:6]}:\n'
        '    story.step(command); print(story.valid_actions())\n'
        'import sys; print(sorted({"torch", "spacy", "transformers"} & set(sys.modules)))\n'
    )
    said = [
        subprocess.run(
            [sys.executable, '-c', program], cwd=pathlib.Path(lzero_async.__file__).parent.parent, timeout=60,
            stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, 'PYTHONHASHSEED': seed},
        ).stdout
        for seed in ('1', '2')
    ]
    assert said[0] == said[1]
    assert "'take can'" in said[0] and said[0].endswith('[]\n')


def test_the_objects_that_jericho_finds_are_put_in_order(story, monkeypatch):
    """Two names of one thing, as good as each other: the same one is always picked."""
    transcript(story, ['east'])
    found = {
        'A can.': [('tin', 'NOUN', 'LOC'), ('can', 'NOUN', 'LOC')], 'all': [('all', 'NOUN', 'LOC')],
        'A net.': [('net', 'NOUN', 'LOC')],
    }
    names = []
    score = story._engine._score_object_names
    monkeypatch.setattr(story._engine, '_score_object_names', lambda objects: names.append(score(objects)) or names[-1])
    for turned in (False, True):
        order = sorted(found, reverse=turned)
        monkeypatch.setattr(
            story._engine, '_identify_interactive_objects',
            lambda use_object_tree, order=order, turned=turned: {
                key: sorted(found[key], reverse=turned) for key in order
            },
        )
        engine.valid_actions(story._engine)
    assert names == [['can', 'net', 'all']] * 2


# ---------------------------------------------------------------- chance


def test_equal_seeds_give_equal_games(story):
    heard = {seed: transcript(story, ['listen'] * 8, seed) for seed in (None, 0, 1, 2, 2 ** 31, 2 ** 40)}
    other = opened(seed=5)
    for seed, moves in heard.items():
        assert transcript(other, ['listen'] * 8, seed) == moves
    assert len({tuple(move.text for move in moves) for moves in heard.values()}) >= 4


def test_seed_0_is_a_seed(story):
    story.reset(0)
    assert story._engine._seed == 1, 'Jericho would take the time'


# ---------------------------------------------------------------- opening


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"env_id must be a file in game_path \(.*\), got 'zork1\.z5'"):
        story_path('zork1.z5', str(tmp_path))
    with pytest.raises(ConfigError, match=r'env_id must be a file in game_path \(.*games\), got'):
        story_path('zork1.z5')


def test_without_jericho(monkeypatch):
    monkeypatch.setitem(sys.modules, 'jericho', None)
    with pytest.raises(ConfigError, match=r"^env_id 'tw-lighthouse\.z5' needs jericho, .*lzero-async\[priorzero\]'$"):
        opened()


@pytest.mark.parametrize('content', [b'', b'#!/bin/sh', bytes(100), b'\xff' * 100, CONTENT[:-600]])
def test_what_is_not_a_story_is_refused(tmp_path, content):
    """The engine would end the whole process."""
    with pytest.raises(ConfigError, match=r"env_id must be a whole Z-machine story file, got '.*tw-broken\.z5'"):
        Story(file_in(tmp_path, 'tw-broken.z5', content))


def test_a_game_that_jericho_does_not_support_is_refused(tmp_path, recwarn):
    with pytest.raises(ConfigError, match=r"env_id must be a game that Jericho supports, or a file named tw-\*, got"):
        Story(file_in(tmp_path, 'unknown.z5', CONTENT))
    assert not [str(warning.message) for warning in recwarn if 'support' in str(warning.message)]


def test_another_tw_file_is_taken_for_one_of_textworld(tmp_path):
    altered = bytearray(CONTENT)
    altered[18:24] = b'991231'  # the serial number: another file, the same game
    story = Story(file_in(tmp_path, 'tw-other.z5', bytes(altered)))
    assert story.walkthrough == () and story._engine.bindings['grammar'] == ';'.join(TEXTWORLD_GRAMMAR)
    assert story.valid_actions() == ('east', 'north')
    story.step('east')
    assert 'take can' in story.valid_actions() and story.max_score == 20


def test_what_jericho_knows_of_a_game_is_left_alone(tmp_path):
    bindings = {'d41d8cd98f00b204e9800998ecf8427e': 'its own'}
    engine._introduce(bindings, 'tw-game.z5', b'')
    assert bindings == {'d41d8cd98f00b204e9800998ecf8427e': 'its own'}
    engine._introduce(bindings, 'zork1.z5', b'another')
    assert len(bindings) == 1


def test_closing(tmp_path):
    story = opened()
    story.close()
    story.close()
    assert story.done and story.valid_actions() == ()
    with pytest.raises(StoryError):
        story.step('look')
