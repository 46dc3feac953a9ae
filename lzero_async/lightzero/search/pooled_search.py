"""LightZero's tree search over PooledInference: one call of torch for a simulation of all trees."""
from __future__ import annotations

import copy
import logging
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np
import torch
from lzero.mcts import UniZeroMCTSCtree
from lzero.mcts.ctree.ctree_muzero import mz_tree
from torch import Tensor, nn

from .pooled_inference import PooledInference

logger = logging.getLogger(__name__)


def use_pooled_search(policy: Any, field: str) -> bool:
    """Make the searches of a role's policy (`field` is 'collect' or 'eval') pooled ones, if they can be.

    Weights that are loaded later count. Only the policy's own searches are changed: see `why_not`.
    """
    name = f'_mcts_{field}'
    reason = why_not(policy, getattr(policy, name))
    if reason is not None:
        logger.info('the search is not pooled: %s', reason)
        return False
    world_model, search = policy._model.world_model, getattr(policy, name)
    inference = PooledInference(world_model, search.inverse_scalar_transform_handle.value_support)
    world_model.forward_initial_inference = _Initial(world_model, inference)
    setattr(policy, name, PooledSearch(search._cfg, inference))
    return True


def why_not(policy: Any, search: Any) -> Optional[str]:
    """Why the searches of a policy cannot be pooled ones; None if they can be."""
    world_model = policy._model.world_model
    config = world_model.config
    heads = (world_model.head_rewards, world_model.head_observations, world_model.head_policy, world_model.head_value)
    reasons = (
        (type(search) is not UniZeroMCTSCtree, f'it is a {type(search).__name__}'),
        (bool(world_model.continuous_action_space), 'its actions are continuous'),
        (bool(config.gru_gating), 'its transformer has gru_gating'),
        (config.tokens_per_block != 2, f'a step has {config.tokens_per_block} tokens'),
        (world_model.context_length < 4 or world_model.context_length % 2 == 1,
         f'its context_length is {world_model.context_length}'),
        (not policy._cfg.model.categorical_distribution, 'its values are not categorical'),
        (not all(_is_plain(head.head_module) for head in heads), 'it has heads of its own'),
    )
    return next((reason for applies, reason in reasons if applies), None)


def _is_plain(head: Any) -> bool:
    layers: List[Any] = list(head)[:3] if isinstance(head, nn.Sequential) else []
    return [type(layer) for layer in layers] == [nn.Linear, nn.GELU, nn.Linear]


class _Initial:
    """Stands in for the world model's `forward_initial_inference`."""

    def __init__(self, world_model: Any, inference: PooledInference) -> None:
        self._original = world_model.forward_initial_inference
        self._inference = inference

    @torch.no_grad()
    def __call__(self, obs_act_dict: Any, start_pos: Any = 0) -> Tuple[Any, Tensor, Any, Tensor, Tensor]:
        observations = obs_act_dict['current_obs']
        if observations is None:  # values of a batch: nothing to be searched
            original: Tuple[Any, Tensor, Any, Tensor, Tensor] = self._original(obs_act_dict, start_pos)
            return original
        states, policy, value = self._inference.initial(
            obs_act_dict['obs'], obs_act_dict['action'], observations, start_pos
        )
        # The host asks for neither the transformer's outputs nor rewards at a root.
        return None, states.unsqueeze(1), None, policy.unsqueeze(1), value.unsqueeze(1)


class PooledSearch:
    """Stands in for a UniZeroMCTSCtree: its tree and its settings, with all inference of a simulation at once."""

    def __init__(self, cfg: Any, inference: PooledInference) -> None:
        self._cfg = cfg
        self._inference = inference

    @torch.no_grad()
    def search(
        self, roots: Any, model: Any, latent_state_roots: np.ndarray, to_play_batch: Any, timestep: Sequence[Any]
    ) -> None:
        """`model` is the one whose initial inference gave the roots, in evaluation mode since then."""
        cfg = self._cfg
        shared_to_play = cfg.env_type == 'not_board_games'
        extremes = mz_tree.MinMaxStatsList(roots.num)
        extremes.set_delta(cfg.value_delta_max)
        tree = self._inference.search(latent_state_roots, timestep)
        for simulation in range(cfg.num_simulations):
            results = mz_tree.ResultsWrapper(num=roots.num)
            found_by, rows, actions, to_play = mz_tree.batch_traverse(
                roots, cfg.pb_c_base, cfg.pb_c_init, cfg.discount_factor, extremes, results,
                to_play_batch if shared_to_play else copy.deepcopy(to_play_batch),
            )
            rewards, values, policies = tree.expand(found_by, rows, actions, results.get_search_len())
            mz_tree.batch_backpropagate(
                simulation + 1, cfg.discount_factor, rewards, values, policies, extremes, results, to_play
            )
