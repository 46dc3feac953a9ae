"""What the target network thinks the observations of a batch are worth, without all else that it could tell."""
from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from ..updates.lean_world_model import interleave, pass_through


def batch_values(
    world_model: Any, observations: Tensor, actions: Tensor, positions: Tensor, inverse: Callable[[Tensor], Tensor]
) -> Tensor:
    """The values of each step (sequences, steps), as `initial_inference` gives them for one step more than that.

    It does not look at the last observation: the host takes the value of the step before it for that one, too.
    `inverse` makes numbers of the value head's logits.

    Fewer rows can mean other last bits in a matrix product. The encoder of vectors gives the same ones (measured for
    batches of 1 to 512); attention and the last layer of a block's MLP do not, so the tokens of actions, which no value
    needs, go through the last block, too. Encoders of pictures were not measured.
    """
    embeddings = world_model.tokenizer.encode_to_obs_embeddings(observations)
    tokens = embeddings.shape[1]
    embeddings = embeddings.contiguous().view(len(actions), -1, tokens, world_model.obs_per_embdding_dim)
    sequences = interleave(world_model, embeddings, actions.unsqueeze(-1))
    # A step has two tokens, and positions count tokens.
    output = pass_through(world_model.transformer, sequences, positions * 2)
    logits = world_model.head_value(output, num_steps=sequences.shape[1], prev_steps=0)
    return inverse(logits.flatten(0, 1)).view(len(actions), -1)


def with_last_repeated(values: Tensor) -> Tensor:
    return torch.cat((values, values[:, -1:]), dim=1)
