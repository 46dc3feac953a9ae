"""The environment: indices and words agree, whatever the game, the seed, the manager and the length of the texts."""
import contextlib
import copy
import logging
import pickle
import re

import numpy as np
import pytest

pytest.importorskip('jericho')
pytest.importorskip('transformers')

from ding.envs import create_env_manager, get_env_manager_cls, get_vec_env_setting
from ding.utils import ENV_REGISTRY
from easydict import EasyDict

from lzero_async.core.errors import ConfigError
from lzero_async.priorzero.environment import PriorZeroJerichoEnv
from lzero_async.priorzero.games import FOLDER, LIGHTHOUSE
from lzero_async.priorzero.story import StoryError
from lzero_async.priorzero.text import TextState, Turn
from lzero_async.priorzero.tokens import ObservationTokens


@pytest.fixture(scope='module')
def tokenizer_path(tmp_path_factory):
    """WordPieces of all words and letters of the game."""
    from transformers import BertTokenizerFast

    folder = tmp_path_factory.mktemp('tokenizer')
    words = sorted(set(re.findall(r'[a-z]+', (FOLDER / 'lighthouse.inf').read_text().lower())))
    letters = [chr(code) for code in range(33, 127)]
    special = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
    vocabulary = [*special, *letters, *(f'##{letter}' for letter in letters), 'actions', 'taken', 'valid', *words]
    (folder / 'vocab.txt').write_text('\n'.join(dict.fromkeys(vocabulary)))
    BertTokenizerFast(str(folder / 'vocab.txt')).save_pretrained(str(folder))
    return str(folder)


@pytest.fixture
def made(tokenizer_path):
    """Makes environments, and closes them."""
    envs = []

    def make(**settings):
        envs.append(PriorZeroJerichoEnv(EasyDict(tokenizer_path=tokenizer_path, **settings)))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


def do(env, obs, command):
    return env.step(obs['text'].valid_actions.index(command))


def follow(env, commands):
    """(observations, timesteps), from a reset on."""
    observations, timesteps = [env.reset()], []
    for command in commands:
        timesteps.append(do(env, observations[-1], command))
        observations.append(timesteps[-1].obs)
    return observations, timesteps


def told(observations):
    return [(obs['text'], obs['observation'].tolist(), obs['action_mask'].tolist()) for obs in observations]


# ---------------------------------------------------------------- playing


def test_the_walkthrough_by_indices(made, capsys):
    observations, timesteps = follow(made(), LIGHTHOUSE.walkthrough)
    assert [timestep.done for timestep in timesteps] == [False] * 23 + [True]
    assert sum(timestep.reward for timestep in timesteps) == 20
    assert [timestep.info['action'] for timestep in timesteps] == list(LIGHTHOUSE.walkthrough)
    assert timesteps[-1].info == {
        'action': 'light lamp', 'score': 20, 'moves': 24, 'won': True, 'eval_episode_return': 20.0
    }
    assert not any('eval_episode_return' in timestep.info for timestep in timesteps[:-1])
    for number, obs in enumerate(observations):
        text, mask = obs['text'], obs['action_mask']
        assert mask.dtype == np.int8 and mask.tolist() == [1] * len(text.valid_actions) + [0] * (20 - mask.sum())
        assert obs['observation'].dtype == np.int32 and obs['observation'].shape == (256,)
        assert obs['obs_attn_mask'].tolist() == (obs['observation'] != 0).astype(int).tolist()
        assert (obs['to_play'], obs['timestep']) == (-1, number)
        assert text.score == sum(timestep.reward for timestep in timesteps[:number]) and text.moves == number
        assert set(obs) == {'observation', 'obs_attn_mask', 'action_mask', 'to_play', 'timestep', 'text'}
    assert observations[-1]['text'].valid_actions == ('look',), 'an agent needs one action'
    said = capsys.readouterr()
    assert said.out == '' and said.err == ''


def test_a_state_tells_what_was_said_where_one_is_and_what_one_has(made):
    observations, _ = follow(made(), ['east', 'take can'])
    beginning, boathouse, taken = (obs['text'].observation for obs in observations)
    assert beginning.count('Landing') == 1 and beginning.endswith("\n\nYou're carrying nothing.")
    assert boathouse.startswith('Boathouse\nTar') and boathouse.count('Tar') == 1
    assert taken.startswith('Taken.\n\nBoathouse\nTar') and taken.endswith("You're carrying:\nan oil can")


@pytest.mark.parametrize('turns', [0, 2, 5])
def test_history_is_the_last_moves(made, turns):
    observations, _ = follow(made(history_turns=turns), ['east', 'take can', 'west'])
    said = [obs['text'].observation.split("\n\nYou're carrying")[0] for obs in observations[:2]]
    moves = (Turn(said[0], 'east', 0.0), Turn(said[1], 'take can', 1.0), Turn('Taken.', 'west', 0.0))
    assert observations[3]['text'].history == (moves[-turns:] if turns else ())
    assert observations[0]['text'].history == ()


def test_an_episode_ends_after_max_steps(made):
    env = made(max_steps=3)
    _, timesteps = follow(env, ['east', 'take can', 'west'])
    assert [timestep.done for timestep in timesteps] == [False, False, True]
    assert timesteps[-1].info['eval_episode_return'] == 1.0 and timesteps[-1].info['won'] is False
    with pytest.raises(StoryError, match='has no episode under way, and was told action 0'):
        env.step(0)


def test_a_reset_begins_anew_after_an_end_and_before_one(made):
    env = made()
    first, timesteps = follow(env, ['north', 'west', 'west', 'west'])
    assert timesteps[-1].done and timesteps[-1].info['eval_episode_return'] == 0.0
    again, _ = follow(env, ['north', 'west'])
    assert told(again) == told(first[:3])
    assert told([env.reset()]) == told(first[:1])


@pytest.mark.parametrize('action', [3, -1, 99, True, 0.0, 'east', None, [0, 1], np.array([7])])
def test_an_action_that_is_no_index_is_refused(made, action):
    env = made()
    env.reset()
    with pytest.raises(StoryError, match=r'action must be an int from 0 to 2 here, got '):
        env.step(action)


@pytest.mark.parametrize('action', [0, np.int64(0), np.array(0), np.array([0])])
def test_kinds_of_indices(made, action):
    env = made()
    env.reset()
    assert env.step(action).info['action'] == 'east'


def test_before_a_reset_nothing_can_be_done(made):
    with pytest.raises(StoryError, match=r'PriorZeroJerichoEnv\(tw-lighthouse\.z5\) has no episode under way'):
        made().step(0)


def test_actions_are_cut_at_max_action_num_and_that_is_said_once(made, caplog):
    with caplog.at_level(logging.WARNING):
        observations, _ = follow(made(max_action_num=2), ['east', 'take all'])
    assert [obs['text'].valid_actions for obs in observations[:2]] == [('east', 'north'), ('west', 'take all')]
    assert observations[1]['action_mask'].tolist() == [1, 1]
    assert [record.getMessage() for record in caplog.records] == [
        'PriorZeroJerichoEnv(tw-lighthouse.z5): of 3 valid actions the first max_action_num (2) can be chosen, here '
        'and wherever there are more'
    ]


def test_where_nothing_has_an_effect_one_can_look(made, monkeypatch):
    monkeypatch.setattr('lzero_async.priorzero.engine.valid_actions', lambda engine: ())
    env = made()
    obs = env.reset()
    assert obs['text'].valid_actions == ('look',) and obs['action_mask'].sum() == 1
    timestep = env.step(0)
    assert not timestep.done and timestep.reward == 0.0


def test_an_observation_survives_pickling(made):
    obs, timesteps = follow(made(), ['east'])
    for one in (obs[0], timesteps[0].obs):
        copied = pickle.loads(pickle.dumps(one))
        assert told([copied]) == told([one]) and isinstance(copied['text'], TextState)


# ---------------------------------------------------------------- tokens


def long_state(words_seen, actions):
    return TextState(' '.join(['sea'] * words_seen), tuple(['fill lamp'] * actions))


@pytest.mark.parametrize('seen, actions, kept_seen, kept_actions', [
    # Of 40 tokens 3 are special, `valid actions:` takes 3, each `fill lamp;` 3.
    (3, 2, 3, 2),
    (100, 2, 29, 2),    # 37 - 8
    (3, 100, 3, 11),    # 37 - 3 - 3 = 31: ten actions and a verb
    (100, 100, 18, 6),  # 18 + 19, of which 3 + 16: five actions and a verb
])
def test_neither_what_is_seen_nor_the_actions_are_cut_away(tokenizer_path, seen, actions, kept_seen, kept_actions):
    tokens = ObservationTokens(tokenizer_path, 40)
    ids, attention = tokens.of(long_state(seen, actions))
    words = tokens._tokenizer.convert_ids_to_tokens(ids.tolist())
    assert len(ids) == len(attention) == 40 and words[0] == '[CLS]' and words[1] == 'sea'
    assert (words.count('sea'), words.count('fill')) == (kept_seen, kept_actions)
    used = int(attention.sum())
    assert words[used - 1] == '[SEP]' and set(words[used:]) <= {'[PAD]'}


def test_what_was_said_last_comes_first(made):
    env = made(max_seq_len=16)
    observations, _ = follow(env, ['east', 'take can'])
    words = env._tokens._tokenizer.convert_ids_to_tokens(observations[-1]['observation'].tolist())
    assert words[1:3] == ['taken', '.'] and 'valid' in words


def test_a_tokenizer_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"tokenizer_path must be a folder or name of a tokenizer, got '.*nothing'"):
        ObservationTokens(str(tmp_path / 'nothing'), 16)


def test_a_tokenizer_that_cannot_pad(tokenizer_path, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(str(tmp_path))
    tokens = AutoTokenizer.from_pretrained(str(tmp_path))
    if tokens.pad_token_id is not None:
        pytest.skip('this transformers gives it one')
    with pytest.raises(ConfigError, match='tokenizer_path must be a tokenizer with a padding token, got'):
        ObservationTokens(str(tmp_path), 16)


# ---------------------------------------------------------------- seeds and managers


def listened(env, episodes=3):
    """What chance brings: `listen` is no valid action, so the game itself is told."""
    heard = []
    for _ in range(episodes):
        env.reset()
        heard.append(tuple(env._story.step('listen').text for _ in range(6)))
    return heard


@pytest.mark.parametrize('dynamic, different', [(True, 3), (False, 1)])
def test_seeds(made, dynamic, different):
    env, other = made(), made()
    env.seed(5, dynamic)
    heard = listened(env)
    assert len(set(heard)) == different
    for again in (env, other):
        again.seed(5, dynamic)
        assert listened(again) == heard
    env.seed(6, dynamic)
    assert listened(env) != heard


def test_without_a_seed_it_is_that_of_the_walkthrough(made):
    assert listened(made(), 1) == listened(made(), 1)


@pytest.mark.parametrize('seed', [-1, 0.5, None])
def test_bad_seeds(made, seed):
    with pytest.raises(ConfigError, match='seed must be'):
        made().seed(seed)


@pytest.mark.parametrize('manager', ['base', 'subprocess'])
def test_in_managers_of_di_engine(tokenizer_path, manager):
    cfg = PriorZeroJerichoEnv.default_config()
    cfg.update(type='priorzero_jericho', tokenizer_path=tokenizer_path, max_steps=2, collector_env_num=2)
    cfg.manager = {**get_env_manager_cls(EasyDict(type=manager)).default_config(), **cfg.manager, 'type': manager}
    env_fn, collector_cfgs, evaluator_cfgs = get_vec_env_setting(copy.deepcopy(cfg))
    assert env_fn is PriorZeroJerichoEnv and (len(collector_cfgs), len(evaluator_cfgs)) == (2, 1)
    envs = create_env_manager(cfg.manager, [lambda one=one: env_fn(one) for one in collector_cfgs])
    try:
        envs.seed(3)
        envs.launch()
        commands, made = ['east', 'take can', 'east', 'take can'], {0: 0, 1: 0}  # each manager resets after two
        while min(made.values()) < len(commands):
            ready = {env: obs for env, obs in envs.ready_obs.items() if made[env] < len(commands)}
            assert [obs['timestep'] for obs in ready.values()] == [made[env] % 2 for env in ready]
            told_to = {env: commands[made[env]] for env in ready}
            steps = envs.step({env: obs['text'].valid_actions.index(told_to[env]) for env, obs in ready.items()})
            for env, step in steps.items():
                assert step.info['action'] == told_to[env] and step.reward == float(told_to[env] == 'take can')
                assert step.info.get('eval_episode_return') == (1.0 if step.done else None)
                made[env] += 1
                assert step.done == (made[env] % 2 == 0)
    finally:
        with contextlib.suppress(ConnectionResetError):  # DI-engine's children may be gone before they have answered
            envs.close()


# ---------------------------------------------------------------- settings


def test_it_is_registered():
    assert ENV_REGISTRY.get('priorzero_jericho') is PriorZeroJerichoEnv
    default = PriorZeroJerichoEnv.default_config()
    assert default.env_id == LIGHTHOUSE.rom and default.max_steps == 100 and default.manager.shared_memory is False


@pytest.mark.parametrize('setting, value, message', [
    ('env_id', 'zork1.z5', r"env_id must be a file in game_path \(.*\), got 'zork1\.z5'"),
    ('env_id', '', "env_id must be a string that is not empty, got ''"),
    ('game_path', 7, 'game_path must be a string that is not empty, got 7'),
    ('game_path', '/nowhere', r"env_id must be a file in game_path \(/nowhere\), got 'tw-lighthouse\.z5'"),
    ('tokenizer_path', None, 'tokenizer_path must be a string that is not empty, got None'),
    ('max_steps', 0, 'max_steps must be >= 1, got 0'),
    ('max_action_num', '20', "max_action_num must be an int >= 1, got '20'"),
    ('max_seq_len', 7, 'max_seq_len must be >= 8, got 7'),
    ('history_turns', -1, 'history_turns must be >= 0, got -1'),
    ('max_step', 3, "env must have no settings but env_id, .*, got 'max_step'"),
    ('manager', {'shared_memory': True}, 'manager.shared_memory must be False, since it does not take texts, got True'),
])
def test_settings_are_checked_before_anything_is_opened(tokenizer_path, setting, value, message):
    with pytest.raises(ConfigError, match=message):
        PriorZeroJerichoEnv(EasyDict({'tokenizer_path': tokenizer_path, setting: value}))


def test_another_folder_of_games(made, tmp_path):
    (tmp_path / 'tw-again.z5').write_bytes((FOLDER / LIGHTHOUSE.rom).read_bytes())
    env = made(env_id='tw-again.z5', game_path=str(tmp_path))
    assert 'ring bell' in env.reset()['text'].valid_actions, 'it is known by its content'
