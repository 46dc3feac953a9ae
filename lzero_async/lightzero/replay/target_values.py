"""What the target network thinks the observations of a batch are worth, without all else that it could tell."""
from __future__ import annotations

from typing import Any, Callable

import torch
from lzero.model.unizero_world_models.slicer import Head
from torch import Tensor

from ..updates.lean_world_model import interleave, pass_through, rotations_of
from . import exact_transformer


def batch_values(
    world_model: Any, observations: Tensor, actions: Tensor, positions: Tensor, inverse: Callable[[Tensor], Tensor]
) -> Tensor:
    """The values of each step (sequences, steps), as `initial_inference` gives them for one step more than that.

    It does not look at the last observation: the host takes the value of the step before it for that one, too.
    `inverse` makes numbers of the value head's logits.

    With torch's kernels fewer rows can mean other last bits in a matrix product. The encoder of vectors gives the same
    ones (measured for batches of 1 to 512); attention and the last layer of a block's MLP do not, so the tokens of
    actions, which no value needs, then go through the last block, too. Encoders of pictures were not measured.
    """
    embeddings = world_model.tokenizer.encode_to_obs_embeddings(observations)
    tokens = embeddings.shape[1]
    embeddings = embeddings.contiguous().view(len(actions), -1, tokens, world_model.obs_per_embdding_dim)
    sequences = interleave(world_model, embeddings, actions.unsqueeze(-1))
    transformer, head = world_model.transformer, world_model.head_value
    positions = positions * 2  # a step has two tokens, and positions count tokens
    if tokens == 1 and type(head) is Head and exact_transformer.can_be_used(transformer, sequences):
        rotations = rotations_of(transformer, sequences, positions)
        logits = head.head_module(exact_transformer.observations_through(transformer, sequences, rotations))
    else:
        output = pass_through(transformer, sequences, positions)
        logits = head(output, num_steps=sequences.shape[1], prev_steps=0)
    return inverse(logits.flatten(0, 1)).view(len(actions), -1)


def with_last_repeated(values: Tensor) -> Tensor:
    return torch.cat((values, values[:, -1:]), dim=1)
