"""TextSegmentCollector: plays text games and cuts them into segments.

LightZero's own segment collector takes the legal actions of a whole collect from its first step, begins the segment
after an episode's end with the observation of that end, and cannot pad where legal actions vary.
"""
from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from ding.torch_utils import to_ndarray
from lzero.mcts.buffer.game_segment import GameSegment
from lzero.mcts.utils import prepare_observation

from .steps import STEPS, PriorStep
from .text_aside import TextAside

logger = logging.getLogger(__name__)

READY_S = 0.001
"""Between two looks at environments that are being reset."""

Segments = Tuple[List[Any], List[Dict[str, Any]]]
OnStep = Callable[[int, PriorStep], None]


@dataclass
class _Line:
    """A segment that is being played in one environment, and its steps."""

    segment: Any
    steps: List[PriorStep] = field(default_factory=list)


class TextSegmentCollector:
    """Stands in for MuZeroSegmentCollector.

    A collect plays `game_segment_length` steps in every environment. A segment that is full waits for the steps that
    follow it, which its targets need; a collect goes on for a few steps more if a segment of the collect before would
    else still be waiting, or if there would be nothing to hand over. Segments that are not full are gone on with in the
    next collect.
    """

    def __init__(
        self, env: TextAside, policy: Any, mode: Any, policy_cfg: Any, tb_logger: Any, name: str,
        check_wanted: Callable[[], None], on_step: OnStep = lambda env_id, step: None,
    ) -> None:
        """`mode` is the collect mode of `policy`. `on_step` is told of every step.

        `check_wanted` is called before each step, and raises if there should be none.
        """
        self._env = env
        self._policy = policy
        self._mode = mode
        self._cfg = policy_cfg
        self._tb_logger = tb_logger
        self._name = name
        self._check_wanted = check_wanted
        self._on_step = on_step
        self._follow = policy_cfg.num_unroll_steps + policy_cfg.td_steps
        env.launch()
        count = env.env_num
        self._playing: List[Optional[_Line]] = [None] * count
        self._waiting: List[Optional[_Line]] = [None] * count
        self._episode_steps = [0] * count
        self._done: Segments = ([], [])
        self._episodes = 0
        self.envstep = 0

    @property
    def last_game_segments(self) -> List[Any]:
        """What has been begun and is not handed over yet."""
        lines = (*self._waiting, *self._playing)
        return [None if line is None else line.segment for line in lines]

    def reset_policy(self, mode: Any) -> None:
        self._mode = mode
        mode.reset()

    def collect(self, train_iter: int, policy_kwargs: Dict[str, Any]) -> Segments:
        begun_before = {id(segment) for segment in self.last_game_segments if segment is not None}
        played = 0
        while played < self._cfg.game_segment_length or self._any_waits(begun_before) or not self._done[0]:
            self._step(train_iter, **policy_kwargs)
            played += 1
        done, self._done = self._done, ([], [])
        return done

    def _any_waits(self, begun_before: Any) -> bool:
        return any(line is not None and id(line.segment) in begun_before for line in self._waiting)

    # ---------------------------------------------------------------- one step of all environments

    def _step(self, train_iter: int, temperature: float, epsilon: float) -> None:
        observations = self._all_ready()
        env_ids = list(observations)
        for env_id in env_ids:
            if self._playing[env_id] is None:
                self._playing[env_id] = self._begin(observations[env_id]['observation'])
        masks = [to_ndarray(observations[env_id]['action_mask']) for env_id in env_ids]
        timesteps = [to_ndarray(observations[env_id]['timestep']) for env_id in env_ids]
        to_play = [-1] * len(env_ids)
        seen = prepare_observation(
            to_ndarray([self._line(env_id).segment.get_obs() for env_id in env_ids]), self._cfg.model.model_type
        )
        states = self._env.texts(env_ids)
        scores = self._policy.see('collect', states)
        outputs = self._mode.forward(
            torch.from_numpy(seen).to(self._cfg.device), masks, temperature, to_play, epsilon, ready_env_id=env_ids,
            timestep=timesteps,
        )
        own = self._policy.world_model_logits('collect')
        chosen = {
            env_id: PriorStep.chosen(state, score, outputs[env_id], logits)
            for env_id, state, score, logits in zip(env_ids, states, scores, own)
        }
        results = self._env.step({env_id: step.action for env_id, step in chosen.items()})
        ended = False
        for env_id, mask, timestep in zip(env_ids, masks, timesteps):
            ended |= self._take(env_id, chosen[env_id], mask, timestep, results[env_id], train_iter)
        self.envstep += len(env_ids)
        if ended:
            self._mode.reset(env_ids)  # the host cannot begin anew with one environment alone

    def _all_ready(self) -> Dict[int, Any]:
        observations = self._env.ready_obs
        self._check_wanted()
        while len(observations) < self._env.env_num:
            time.sleep(READY_S)
            self._check_wanted()
            observations = self._env.ready_obs
        return dict(sorted(observations.items()))

    def _take(
        self, env_id: int, step: PriorStep, mask: np.ndarray, timestep: np.ndarray, result: Any, train_iter: int
    ) -> bool:
        """Put down what a step has brought. Whether its episode is over."""
        line, reward = self._line(env_id), float(np.asarray(result.reward).reshape(-1)[0])
        step = step.with_reward(reward)
        line.segment.store_search_stats(step.distribution(self._cfg.model.action_space_size), step.searched_value)
        line.segment.append(step.action, to_ndarray(result.obs['observation']), reward, mask, -1, timestep=timestep)
        line.steps.append(step)
        self._on_step(env_id, step)
        self._episode_steps[env_id] += 1
        self._mode.reset(env_id=env_id, current_steps=self._episode_steps[env_id], reset_init_data=False)
        self._hand_over_waiting(env_id, over=bool(result.done))
        if result.done:
            self._finish(line, done=True)
            self._playing[env_id] = None
            self._episode_over(env_id, result.info, train_iter)
        elif line.segment.is_full():
            self._waiting[env_id] = line
            self._playing[env_id] = self._begin(result.obs['observation'])
        return bool(result.done)

    def _line(self, env_id: int) -> _Line:
        line = self._playing[env_id]
        assert line is not None
        return line

    def _begin(self, observation: Any) -> _Line:
        segment = GameSegment(
            self._env.action_space, game_segment_length=self._cfg.game_segment_length, config=self._cfg
        )
        segment.reset([to_ndarray(observation)] * self._cfg.model.frame_stack_num)
        return _Line(segment)

    # ---------------------------------------------------------------- segments that are done

    def _hand_over_waiting(self, env_id: int, over: bool) -> None:
        waiting, following = self._waiting[env_id], self._line(env_id)
        if waiting is None or (len(following.steps) < self._follow and not over and not following.segment.is_full()):
            return
        pad_with(waiting.segment, following.segment, self._follow)
        self._finish(waiting, done=False)
        self._waiting[env_id] = None

    def _finish(self, line: _Line, done: bool) -> None:
        line.segment.game_segment_to_array()
        self._done[0].append(line.segment)
        self._done[1].append({
            'priorities': self._priorities(line.steps),
            'done': done,
            'unroll_plus_td_steps': 0,  # steps without a target: none, since all that is handed over is padded
            STEPS: tuple(line.steps),
        })

    def _priorities(self, steps: Sequence[PriorStep]) -> Optional[np.ndarray]:
        if not self._cfg.use_priority:
            return None
        return np.array([abs(step.predicted_value - step.searched_value) + 1e-6 for step in steps])

    def _episode_over(self, env_id: int, info: Dict[str, Any], train_iter: int) -> None:
        self._episodes += 1
        steps, self._episode_steps[env_id] = self._episode_steps[env_id], 0
        gained = float(info['eval_episode_return'])
        logger.info('%s: episode %d: %g points in %d steps', self._name, self._episodes, gained, steps)
        for curve, value in (('reward', gained), ('episode_steps', float(steps))):
            self._tb_logger.add_scalar(f'{self._name}_iter/{curve}', value, train_iter)
            self._tb_logger.add_scalar(f'{self._name}_step/{curve}', value, self.envstep)


def pad_with(segment: Any, following: Any, steps: int) -> None:
    """Put the first `steps` steps of the next segment of the same episode behind a full one."""
    stack = segment.frame_stack_num
    segment.pad_over(
        following.obs_segment[stack:stack + steps],
        following.reward_segment[:steps - 1],
        following.action_segment[:steps],
        following.root_value_segment[:steps],
        following.child_visit_segment[:steps],
    )
    # The host leaves these out, and then looks for them.
    for name in ('action_mask_segment', 'to_play_segment', 'timestep_segment'):
        getattr(segment, name).extend(getattr(following, name)[:steps])
