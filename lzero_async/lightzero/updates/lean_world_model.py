"""UniZero's world model in training, in fewer trips through Python: the same numbers, to the last bit.

What is replaced are three loops: over the steps of a sequence, over the samples of a batch, and over the parameters of
the target network. They hold the GIL, which a thread that makes the next batch wants, too.

This serves every model. With those that it knows `lean_policy` goes further.
"""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .lean_target import SoftUpdate


def use_lean_training(policy: Any) -> None:
    """For a policy that learns. Its models keep their parameters, names and results."""
    for model in (policy._learn_model, policy._target_model):
        make_lean(model.world_model)
    target = policy._target_model
    if target._update_type == 'momentum':
        target.update = SoftUpdate(policy._learn_model, target)


def make_lean(world_model: Any) -> None:
    # Objects instead of functions: a copy of the model then works on its own parameters.
    world_model.compute_loss = _ComputeLoss(world_model)
    world_model.transformer.forward = _LeanTransformer(world_model.transformer)
    if not world_model.continuous_action_space:
        world_model._process_obs_act_combined = _Interleave(world_model)


def first_positions(timesteps: Any) -> List[int]:
    """The position of each sequence's first step: all that the transformer takes from the steps of a batch."""
    first: List[int] = torch.as_tensor(timesteps).reshape(len(timesteps), -1)[:, 0].tolist()
    return first


class _ComputeLoss:
    def __init__(self, world_model: Any) -> None:
        self._original: Callable[..., Any] = world_model.compute_loss

    def __call__(self, batch: Dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return self._original({**batch, 'timestep': first_positions(batch['timestep'])}, *args, **kwargs)


class _Interleave:
    """Stands in for `_process_obs_act_combined`: observations and actions in turn, put together at once."""

    def __init__(self, world_model: Any) -> None:
        self._world_model = world_model

    def __call__(self, embeddings_and_tokens: Dict[str, Any], prev_steps: Any) -> Tuple[Tensor, int]:
        observations, actions = embeddings_and_tokens['obs_embeddings_and_act_tokens']
        if observations.dim() == 3:
            observations = observations.view(
                actions.shape[0], actions.shape[1], self._world_model.num_observations_tokens, -1
            )
        sequences = interleave(self._world_model, observations, actions, prev_steps)
        return sequences, int(sequences.shape[1])


def interleave(world_model: Any, observations: Tensor, action_tokens: Tensor, prev_steps: Any = 0) -> Tensor:
    """Embedded observations and actions of each sequence, in turn."""
    # There may be an action more than observations, which is left out.
    actions = world_model.act_embedding_table(action_tokens[:, :observations.shape[1]])[:, :, :1]
    sequences = torch.cat((observations, actions), dim=2).flatten(1, 2)
    if not world_model.config.rotary_emb:
        steps = torch.arange(sequences.shape[1], device=sequences.device)
        sequences = sequences + world_model.pos_emb(prev_steps + steps)
    return sequences


class _LeanTransformer:
    """Stands in for a Transformer's forward: the rotations of all samples are looked up at once."""

    def __init__(self, transformer: Any) -> None:
        self._transformer = transformer
        self._original: Callable[..., Tensor] = transformer.forward

    def __call__(
        self, sequences: Tensor, past_keys_values: Any = None, valid_context_lengths: Any = None, start_pos: Any = 0
    ) -> Tensor:
        transformer = self._transformer
        lookup = transformer.config.rotary_emb and isinstance(start_pos, list) and isinstance(start_pos[0], int)
        if past_keys_values is not None or valid_context_lengths is not None or not lookup or sequences.shape[1] == 1:
            return self._original(sequences, past_keys_values, valid_context_lengths, start_pos)
        return pass_through(transformer, sequences, torch.as_tensor(start_pos, device=sequences.device))


def pass_through(transformer: Any, sequences: Tensor, positions: Tensor) -> Tensor:
    """Sequences of several tokens through the transformer, each from its own position on, without a cache."""
    rotations = rotations_of(transformer, sequences, positions)
    x = transformer.drop(sequences)
    for block in transformer.blocks:
        x = block(x, None, None, rotations)
    output: Tensor = transformer.ln_f(x)
    return output


def rotations_of(transformer: Any, sequences: Tensor, positions: Tensor) -> Optional[Tensor]:
    if not transformer.config.rotary_emb:
        return None
    steps = torch.arange(sequences.shape[1], device=sequences.device)
    rotations: Tensor = transformer.freqs_cis[positions.remainder(transformer.config.max_seq_len).unsqueeze(1) + steps]
    return rotations
