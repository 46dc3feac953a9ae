"""UniZero's buffer with batches made by numpy instead of loops: the same batches, to the last bit."""
from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np
import torch
from lzero.mcts import UniZeroGameBuffer
from lzero.mcts.utils import prepare_observation
from lzero.policy import inverse_scalar_transform

from ..updates.lean_world_model import first_positions
from .positions import Positions, as_positions
from .priorities import Priorities
from .segment_slices import Drawn, alike, slices
from .shared_arrays import SharedArrays, share_equal_arrays
from .target_values import batch_values, with_last_repeated


@dataclass(frozen=True)
class ValueContext:
    """What reward and value targets are computed from."""

    drawn: Drawn
    td_steps: np.ndarray
    """Of each sample: how far ahead its values are taken from the network."""
    inside: np.ndarray
    """(samples, steps): whether there is an observation that far ahead."""
    observations: np.ndarray
    """(samples, steps - 1, frames, ...). Nobody asks for the last one; those that are not there are zeros."""


@dataclass(frozen=True)
class PolicyContext:
    """Whose visits are the policy targets. Read late: reanalyzing part of the batch changes them."""

    drawn: Drawn
    begin: int
    """The samples before it are reanalyzed."""


class VectorTargetsBuffer(UniZeroGameBuffer):  # type: ignore[misc]
    """What the vector form does not cover (board games, continuous actions, odd shapes) goes to the original.

    What a round costs does not grow with the samples held, but for one pass over their priorities.
    """

    def __init__(self, cfg: Any) -> None:
        self._priorities = Priorities()
        self._positions = Positions()
        self._shared: SharedArrays = SharedArrays()
        super().__init__(cfg)

    # ---------------------------------------------------------------- the host's names for what is kept otherwise

    @property
    def game_pos_priorities(self) -> np.ndarray:
        return self._priorities.handed_out()

    @game_pos_priorities.setter
    def game_pos_priorities(self, values: Any) -> None:
        self._priorities.assign(values)

    @property
    def game_segment_game_pos_look_up(self) -> Positions:
        return self._positions

    @game_segment_game_pos_look_up.setter
    def game_segment_game_pos_look_up(self, pairs: Any) -> None:
        self._positions = as_positions(pairs)

    def _push_game_segment(self, data: Any, meta: Any = None) -> None:
        length = min(len(data.action_segment), self._cfg.game_segment_length)
        valid = length if meta['done'] else length - meta['unroll_plus_td_steps']
        self.num_of_collected_episodes += bool(meta['done'])
        if meta['priorities'] is None:
            highest = self._priorities.highest() if self.game_segment_buffer and len(self._priorities) else 1.0
            priorities = np.concatenate((np.full(max(0, valid), highest), np.zeros(length - valid)))
        else:
            assert length == len(meta['priorities']), ' priorities should be of same length as the game steps'
            priorities = meta['priorities'].copy().reshape(-1)
            priorities[valid:length] = 0.0
        share_equal_arrays(data, self._shared)
        self._priorities.append(priorities)
        self._positions.extend(self.base_idx + len(self.game_segment_buffer), length)
        self.game_segment_buffer.append(data)

    # ---------------------------------------------------------------- drawing

    def _sample_orig_data(self, batch_size: int) -> Tuple[Any, ...]:
        assert self._beta > 0
        if self._cfg.use_priority is False:
            self._priorities.all_become_one()
        held, draw = self.get_num_of_transitions(), self._priorities.weighted_draw(self._alpha)
        places = draw.draw(held, batch_size)
        if self._cfg.reanalyze_outdated is True:
            places.sort()
        weights = (held * draw.probabilities[places]) ** (-self._beta)
        weights /= weights.max()
        numbers, positions = self._positions.find(places)
        for index in np.flatnonzero(positions >= self._cfg.game_segment_length):
            positions[index] = np.random.choice(self._cfg.game_segment_length, 1).item()
        segments = [self.game_segment_buffer[place] for place in (numbers - self.base_idx).tolist()]
        return segments, positions.tolist(), places, weights, [time.time()] * len(places)

    # ---------------------------------------------------------------- the batch

    def _make_batch(self, batch_size: int, reanalyze_ratio: float) -> Tuple[Any, ...]:
        draw = self._sample_orig_data if self.sample_type == 'transition' else self._sample_orig_data_episode
        orig_data = draw(batch_size)
        segments, starts, places, weights, make_time = orig_data
        drawn = Drawn(segments, starts)
        value_context = self._value_context(drawn) if self._covers(drawn) else None
        observations = self._current_observations(drawn) if value_context is not None else None
        if value_context is None or observations is None:
            return self._host_batch(orig_data, reanalyze_ratio)
        actions, bootstrap_actions, masks = self._current_actions(drawn)
        current_batch = [
            observations, actions, bootstrap_actions, masks, places, weights, np.asarray(make_time),
            slices(drawn.timesteps, starts, self._cfg.num_unroll_steps).values.astype(np.int64, copy=False),
        ]
        count = len(places)
        self.reanalyze_num = max(int(count * reanalyze_ratio), 1) if reanalyze_ratio > 0 else 0
        reanalyzed = self._prepare_policy_reanalyzed_context(
            places[:self.reanalyze_num], segments[:self.reanalyze_num], starts[:self.reanalyze_num]
        ) if self.reanalyze_num else None
        played = PolicyContext(drawn, self.reanalyze_num) if self.reanalyze_num < count else None
        return value_context, reanalyzed, played, current_batch

    def _host_batch(self, orig_data: Tuple[Any, ...], reanalyze_ratio: float) -> Tuple[Any, ...]:
        """What the host makes of samples that are drawn already."""
        host: Any = copy.copy(self)
        host._sample_orig_data = host._sample_orig_data_episode = lambda batch_size: orig_data
        context: Tuple[Any, ...] = UniZeroGameBuffer._make_batch(host, len(orig_data[2]), reanalyze_ratio)
        self.reanalyze_num = host.reanalyze_num
        return context

    def _covers(self, drawn: Drawn) -> bool:
        cfg = self._cfg
        return cfg.env_type != 'board_games' and not cfg.use_root_value and drawn.is_plain()

    def _current_actions(self, drawn: Drawn) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Actions from each start on, those from where its values are bootstrapped, and which of the first count."""
        steps, td_steps = self._cfg.num_unroll_steps, self._cfg.td_steps
        found = slices(drawn.actions, drawn.starts, td_steps + steps)
        taken = np.concatenate((found.values[:, :steps], found.values[:, td_steps:]), axis=1).astype(np.int64)
        missing = ~np.concatenate((found.inside[:, :steps], found.inside[:, td_steps:]), axis=1)
        # Where a segment has ended: random ones, in the order in which the host draws them one by one.
        taken[missing] = np.random.randint(0, drawn.action_count, size=np.count_nonzero(missing))
        known = np.minimum(np.minimum(found.counts, steps), self._cfg.game_segment_length - np.array(drawn.starts))
        masks = np.arange(steps + 1) < known[:, None]
        return taken[:, :steps].copy(), taken[:, steps:].copy(), masks.astype(np.float64)

    def _current_observations(self, drawn: Drawn) -> Optional[np.ndarray]:
        width = self._cfg.model.frame_stack_num + self._cfg.num_unroll_steps
        found = slices(drawn.observations, drawn.starts, width)
        if not found.counts.all():
            return None
        for row in np.flatnonzero(found.counts < width):
            found.values[row, found.counts[row]:] = found.values[row, found.counts[row] - 1]
        prepared: np.ndarray = prepare_observation(found.values, self._cfg.model.model_type)
        return prepared

    # ---------------------------------------------------------------- the targets

    def _value_context(self, drawn: Drawn) -> Optional[ValueContext]:
        steps, frames = self._cfg.num_unroll_steps + 1, self._cfg.model.frame_stack_num
        starts = np.array(drawn.starts)
        td_steps = np.clip(self._cfg.td_steps, 1, np.maximum(1, drawn.lengths - starts)).astype(np.int32)
        valid = np.clip(drawn.lengths - starts - td_steps, 0, steps)
        found = slices(drawn.observations, (starts + td_steps).tolist(), steps - 1 + frames)
        if (found.counts < np.where(valid > 0, valid + frames - 1, 0)).any():
            return None
        inside = np.arange(steps) < valid[:, None]
        # Past the end of a segment the host has zeros of another type.
        kinds = ([found.values.dtype] if inside.any() else []) + ([] if inside.all() else [np.dtype(np.float32)])
        shape = (len(starts), steps - 1, frames, *found.values.shape[2:])
        observations = np.empty(shape, np.result_type(*kinds))
        for frame in range(frames):
            observations[:, :, frame] = found.values[:, frame:frame + steps - 1]
        observations[~inside[:, :-1]] = 0
        return ValueContext(drawn, td_steps, inside, observations)

    def _compute_target_reward_value(
        self, reward_value_context: Any, model: Any, batch_action: Any, batch_timestep: Any
    ) -> Tuple[np.ndarray, np.ndarray]:
        context = reward_value_context
        if not isinstance(context, ValueContext):
            original: Tuple[np.ndarray, np.ndarray] = super()._compute_target_reward_value(
                context, model, batch_action, batch_timestep
            )
            return original
        steps = self._cfg.num_unroll_steps + 1
        td_steps = np.repeat(context.td_steps, steps)
        values = self._bootstrap_values(context.observations, model, batch_action, batch_timestep)
        values = values * np.array([self._cfg.discount_factor]) ** td_steps * context.inside.reshape(-1)
        return n_step_targets(
            values, context.drawn.rewards, context.drawn.starts, td_steps, steps, self._cfg.discount_factor
        )

    def _bootstrap_values(
        self, observations: np.ndarray, model: Any, batch_action: Any, batch_timestep: Any
    ) -> np.ndarray:
        prepared = prepare_observation(observations.reshape(-1, *observations.shape[2:]), self._cfg.model.model_type)
        device, scale = self._cfg.device, self._cfg.model.support_scale
        with torch.inference_mode():
            values = with_last_repeated(batch_values(
                model.world_model,
                torch.from_numpy(prepared).to(device),
                torch.from_numpy(batch_action).to(device),
                torch.tensor(first_positions(batch_timestep), device=device),
                inverse=lambda logits: inverse_scalar_transform(logits, scale),
            ))
        numbers: np.ndarray = values.cpu().numpy().reshape(-1)
        return numbers

    def _compute_target_policy_non_reanalyzed(self, policy_non_re_context: Any, policy_shape: Any) -> Any:
        if not isinstance(policy_non_re_context, PolicyContext):
            return super()._compute_target_policy_non_reanalyzed(policy_non_re_context, policy_shape)
        drawn, begin = policy_non_re_context.drawn, policy_non_re_context.begin
        visits, starts = drawn.visits[begin:], drawn.starts[begin:]
        if self._cfg.action_type == 'fixed_action_space' and alike(visits) and (
            visits[0].dtype == np.float64 and visits[0].shape[1:] == (policy_shape,)
        ):
            steps = self._cfg.num_unroll_steps + 1
            found = slices(visits, starts, steps)
            expected = np.clip(drawn.lengths[begin:] - starts, 0, steps)
            if (found.counts >= expected).all():
                # Steps outside of the segment are zero: no loss comes from them.
                found.values[np.arange(steps) >= expected[:, None]] = 0.0
                return found.values
        host_context = self._prepare_policy_non_reanalyzed_context(starts, drawn.segments[begin:], starts)
        return super()._compute_target_policy_non_reanalyzed(host_context, policy_shape)


def n_step_targets(
    values: np.ndarray, rewards: List[np.ndarray], starts: Sequence[int], td_steps: np.ndarray, steps: int,
    discount: float,
) -> Tuple[np.ndarray, np.ndarray]:
    """Rewards and n-step values of `steps` positions from each start. `values` holds the discounted bootstraps.

    The sums are taken in the order of the original loop, since the order decides the last bit.
    """
    values, horizon = values.reshape(-1, steps), td_steps.reshape(-1, steps)
    found = slices(rewards, starts, steps + int(horizon.max()))
    wide, inside = found.values.astype(np.float64), found.inside
    for ahead in range(int(horizon.max())):
        reward, there = wide[:, ahead:ahead + steps], inside[:, ahead:ahead + steps]
        np.add(values, reward * discount ** ahead, out=values, where=there & (ahead < horizon))
    # The host's reward past the end is a float64, whatever the others are.
    return (found.values if inside[:, :steps].all() else wide)[:, :steps].copy(), values
