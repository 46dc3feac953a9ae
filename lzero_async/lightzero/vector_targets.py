"""UniZero's buffer with its targets computed by numpy instead of loops: the same batches, to the last bit."""
from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np
import torch
from lzero.mcts import UniZeroGameBuffer
from lzero.mcts.utils import prepare_observation
from lzero.policy import inverse_scalar_transform

from .lean_world_model import batch_values, first_positions


class VectorTargetsBuffer(UniZeroGameBuffer):  # type: ignore[misc]
    """Cases that the vector form does not cover (board games, varied actions, odd shapes) go to the original."""

    def _prepare_reward_value_context(
        self, batch_index_list: Any, game_segment_list: List[Any], pos_in_game_segment_list: List[int],
        total_transitions: int,
    ) -> List[Any]:
        count, steps = len(game_segment_list), self._cfg.num_unroll_steps + 1
        stack = self._cfg.model.frame_stack_num
        lengths = np.array([len(segment) for segment in game_segment_list])
        starts = np.array(pos_in_game_segment_list)
        td_steps = np.clip(self._cfg.td_steps, 1, np.maximum(1, lengths - starts)).astype(np.int32)
        # Bootstrapped observations past the end of a segment are zeros, and masked.
        valid = np.clip(lengths - starts - td_steps, 0, steps)
        value_mask = (np.arange(steps) < valid[:, None]).astype(np.int64)
        zero = np.asarray(game_segment_list[0].zero_obs())
        seen = [
            np.asarray(segment.get_unroll_obs(start + td, self._cfg.num_unroll_steps)) if inside else zero[:0]
            for segment, start, td, inside in zip(game_segment_list, starts, td_steps, valid)
        ]
        kinds = {observations.dtype for observations, inside in zip(seen, valid) if inside}
        if not value_mask.all():
            kinds.add(zero.dtype)
        value_obs = np.zeros((count, steps, *zero.shape), dtype=np.result_type(*kinds))
        for row, observations, inside in zip(value_obs, seen, valid):
            for frame in range(stack):
                row[:inside, frame] = observations[frame:frame + inside]
        return [
            value_obs.reshape(count * steps, *zero.shape),
            value_mask.reshape(-1),
            pos_in_game_segment_list,
            [segment.reward_segment for segment in game_segment_list],
            [],
            lengths.tolist(),
            np.repeat(td_steps, steps),
            [segment.action_mask_segment for segment in game_segment_list],
            [segment.to_play_segment for segment in game_segment_list],
        ]

    def _compute_target_reward_value(
        self, reward_value_context: List[Any], model: Any, batch_action: Any, batch_timestep: Any
    ) -> Tuple[np.ndarray, np.ndarray]:
        value_obs, value_mask, starts, rewards, _, _, td_steps, _, _ = reward_value_context
        if (
            self._cfg.env_type == 'board_games' or self._cfg.use_root_value
            or any(np.ndim(reward) != 1 for reward in rewards)
        ):
            original: Tuple[np.ndarray, np.ndarray] = super()._compute_target_reward_value(
                reward_value_context, model, batch_action, batch_timestep
            )
            return original
        values = self._bootstrap_values(value_obs, model, batch_action, batch_timestep)
        values = values * np.array([self._cfg.discount_factor]) ** td_steps * value_mask
        return n_step_targets(
            values, rewards, np.array(starts), td_steps, self._cfg.num_unroll_steps + 1, self._cfg.discount_factor
        )

    def _bootstrap_values(self, value_obs: Any, model: Any, batch_action: Any, batch_timestep: Any) -> np.ndarray:
        with torch.no_grad():
            device, scale = self._cfg.device, self._cfg.model.support_scale
            values = batch_values(
                model.world_model,
                torch.from_numpy(prepare_observation(value_obs, self._cfg.model.model_type)).to(device),
                torch.from_numpy(batch_action).to(device),
                torch.tensor(first_positions(batch_timestep), device=device),
                inverse=lambda logits: inverse_scalar_transform(logits, scale),
            )
        numbers: np.ndarray = values.cpu().numpy().reshape(-1)
        return numbers

    def _compute_target_policy_non_reanalyzed(self, policy_non_re_context: Any, policy_shape: Any) -> Any:
        if policy_non_re_context is None or self._cfg.action_type != 'fixed_action_space':
            return super()._compute_target_policy_non_reanalyzed(policy_non_re_context, policy_shape)
        starts, child_visits, lengths, _, _ = policy_non_re_context
        if any(visits.dtype.hasobject for visits in child_visits):
            return super()._compute_target_policy_non_reanalyzed(policy_non_re_context, policy_shape)
        steps = self._cfg.num_unroll_steps + 1
        # Steps outside of the segment stay zero: no loss comes from them.
        targets = np.zeros((len(starts), steps, policy_shape))
        for target, start, visits, length in zip(targets, starts, child_visits, lengths):
            inside = visits[start:min(start + steps, length)]
            target[:len(inside)] = inside
        return targets


def n_step_targets(
    values: np.ndarray, rewards: List[np.ndarray], starts: np.ndarray, td_steps: np.ndarray, steps: int,
    discount: float,
) -> Tuple[np.ndarray, np.ndarray]:
    """Rewards and n-step values of `steps` positions from each start. `values` holds the discounted bootstraps.

    The sums are taken in the order of the original loop, since the order decides the last bit.
    """
    lengths = np.array([len(reward) for reward in rewards])
    padded = np.zeros((len(rewards), int(lengths.max())), dtype=np.result_type(*{reward.dtype for reward in rewards}))
    for row, reward in zip(padded, rewards):
        row[:len(reward)] = reward
    positions = starts[:, None] + np.arange(steps)
    values = values.reshape(positions.shape)
    horizon = td_steps.reshape(positions.shape)

    def reward_at(index: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        inside = index < lengths[:, None]
        return np.take_along_axis(padded, np.where(inside, index, 0), axis=1), inside

    for ahead in range(int(horizon.max())):
        reward, inside = reward_at(positions + ahead)
        np.add(values, reward.astype(np.float64) * discount ** ahead, out=values, where=inside & (ahead < horizon))
    target_rewards, inside = reward_at(positions)
    if not inside.all():
        target_rewards = np.where(inside, target_rewards, 0.0)
    return target_rewards, values
