"""A text game as an environment of LightZero: tokens for the world model, and the words themselves for a prior."""
from __future__ import annotations

import copy
import logging
from collections import deque
from typing import Any, ClassVar, Deque, Dict, List, Mapping, Optional

import gym
import numpy as np
from ding.envs import BaseEnv, BaseEnvTimestep
from ding.utils import ENV_REGISTRY
from easydict import EasyDict

from ..core.checks import integer
from .engine import story_path
from .environment_config import EnvironmentConfig
from .installed import needed
from .story import Move, Story, StoryError
from .text import TextState, Turn
from .tokens import ObservationTokens

logger = logging.getLogger(__name__)

FALLBACK = ('look',)
"""What can be done where nothing has an effect, and after the end: an agent needs one action at least."""


@ENV_REGISTRY.register('priorzero_jericho')  # type: ignore[untyped-decorator]
class PriorZeroJerichoEnv(BaseEnv):  # type: ignore[misc]
    """One game. Action `i` is the command `obs['text'].valid_actions[i]`; `action_mask` says how many there are.

    The game is opened by the first reset, in the process that plays it; the settings are checked before.
    """

    config: ClassVar[Dict[str, Any]] = dict(
        EnvironmentConfig.defaults(), collector_env_num=1, evaluator_env_num=1, n_evaluator_episode=1,
        # Spawned, where there are processes: tokenizers and torch have threads, which do not survive a fork.
        manager=dict(shared_memory=False, context='spawn'),
    )

    @classmethod
    def default_config(cls) -> Any:
        return EasyDict(copy.deepcopy(cls.config), cfg_type=f'{cls.__name__}Dict')

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        self._cfg = EnvironmentConfig.from_mapping(cfg)
        for package in ('jericho', 'transformers'):
            needed(package, f'env_id {self._cfg.env_id!r}')
        self._path = story_path(self._cfg.env_id, self._cfg.game_path)
        self._story: Optional[Story] = None
        self._seed: Optional[int] = None
        self._seeds: Optional[np.random.RandomState] = None
        self._history: Deque[Turn] = deque(maxlen=self._cfg.history_turns)
        self._steps, self._return, self._done, self._cut = 0, 0.0, True, False
        length, actions = self._cfg.max_seq_len, self._cfg.max_action_num
        self.observation_space = gym.spaces.Dict({
            'observation': gym.spaces.Box(0, np.iinfo(np.int32).max, (length,), np.int32),
            'obs_attn_mask': gym.spaces.Box(0, 1, (length,), np.int32),
            'action_mask': gym.spaces.Box(0, 1, (actions,), np.int8),
        })
        self.action_space = gym.spaces.Discrete(actions)
        self.reward_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        """Of the episodes to come: each its own, drawn from `seed`, or with `dynamic_seed=False` all the same."""
        self._seed = integer(0)('seed', seed)
        self._seeds = np.random.RandomState(self._seed % 2 ** 32) if dynamic_seed else None

    def reset(self) -> Dict[str, Any]:
        if self._story is None:
            self._tokens = ObservationTokens(self._cfg.tokenizer_path, self._cfg.max_seq_len)
            self._story = Story(self._path)
        seed = self._seed if self._seeds is None else int(self._seeds.randint(2 ** 31 - 1))
        self._history.clear()
        self._steps, self._return, self._done = 0, 0.0, False
        return self._observe(self._story.reset(seed))

    def step(self, action: Any) -> Any:
        """Raises StoryError if `action` is not the index of a valid action, or the episode has ended."""
        if self._story is None or self._done:
            raise StoryError(f'{self!r} has no episode under way, and was told action {action!r}: reset() comes first')
        command = self._command(action)
        move = self._story.step(command)
        self._history.append(Turn(self._said, command, move.reward))
        self._steps += 1
        self._return += move.reward
        self._done = move.done or self._steps >= self._cfg.max_steps
        info = {'action': command, 'score': move.score, 'moves': move.moves, 'won': self._story.won}
        if self._done:
            info['eval_episode_return'] = self._return
        return BaseEnvTimestep(self._observe(move), move.reward, self._done, info)

    def close(self) -> None:
        if self._story is not None:
            self._story.close()
        self._story, self._done = None, True

    def __repr__(self) -> str:
        return f'PriorZeroJerichoEnv({self._cfg.env_id})'

    @staticmethod
    def create_collector_env_cfg(cfg: Mapping[str, Any]) -> List[Any]:
        return [copy.deepcopy(cfg) for _ in range(cfg['collector_env_num'])]

    @staticmethod
    def create_evaluator_env_cfg(cfg: Mapping[str, Any]) -> List[Any]:
        return [copy.deepcopy(cfg) for _ in range(cfg['evaluator_env_num'])]

    def _command(self, action: Any) -> str:
        index, commands = np.asarray(action), self._text.valid_actions
        if index.size != 1 or index.dtype.kind not in 'iu' or not 0 <= index.item() < len(commands):
            raise StoryError(f'action must be an int from 0 to {len(commands) - 1} here, got {action!r}')
        return commands[int(index.item())]

    def _observe(self, move: Move) -> Dict[str, Any]:
        assert self._story is not None
        here = self._story.surroundings()
        actions = here.valid_actions[:self._cfg.max_action_num]
        if len(actions) < len(here.valid_actions) and not self._cut:
            self._cut = True
            logger.warning(
                '%r: of %d valid actions the first max_action_num (%d) can be chosen, here and wherever there are more',
                self, len(here.valid_actions), len(actions),
            )
        seen = [move.text, *(text for text in (here.room, here.inventory) if text and text not in move.text)]
        self._said = move.text
        self._text = TextState(
            '\n\n'.join(seen), actions or FALLBACK, tuple(self._history), float(move.score), move.moves
        )
        tokens, attention = self._tokens.of(self._text)
        mask = np.zeros(self._cfg.max_action_num, dtype=np.int8)
        mask[:len(self._text.valid_actions)] = 1
        return {
            'observation': tokens, 'obs_attn_mask': attention, 'action_mask': mask, 'to_play': -1,
            'timestep': self._steps, 'text': self._text,
        }
