"""NativeSimulation: one simulation of a search as one call of a kernel, which reads the weights as it likes them."""
from __future__ import annotations

import ctypes
from typing import Any, List, Optional

import numpy as np
import torch
from torch import Tensor, nn

from ..native import NARROW, Kernels, kernels_for
from .token_step import scalars

LANES = 16
"""Outputs of a layer that the kernel computes side by side."""

_FLOATS = ctypes.c_void_p
_INT = ctypes.c_int64


class _Linear(ctypes.Structure):
    _fields_ = (('weight', _FLOATS), ('bias', _FLOATS), ('inputs', _INT), ('outputs', _INT))


class _Norm(ctypes.Structure):
    _fields_ = (('weight', _FLOATS), ('bias', _FLOATS), ('epsilon', ctypes.c_float))


class _Block(ctypes.Structure):
    _fields_ = (
        ('first', _Norm), ('query_key_value', _Linear), ('project', _Linear),
        ('second', _Norm), ('widen', _Linear), ('narrow', _Linear),
    )


class _Heads(ctypes.Structure):
    _fields_ = (('hidden', _Linear), ('one', _Linear), ('other', _Linear))


class _Model(ctypes.Structure):
    _fields_ = (
        ('layers', _INT), ('heads', _INT), ('size', _INT), ('context', _INT), ('places', _INT), ('group', _INT),
        ('rotations', _FLOATS), ('positions', _FLOATS), ('correction', _FLOATS), ('embeddings', _FLOATS),
        ('blocks', ctypes.POINTER(_Block)), ('last', _Norm),
        ('reward_and_state', _Heads), ('policy_and_value', _Heads),
    )


class NativeSimulation:
    """Of one world model, on keys and values in `pool`. `refresh` takes weights that have changed."""

    COLUMNS = ('read', 'write', 'action', 'position', 'length', 'keep_from', 'keep')
    """Of each row: where its keys and values are read and written, its action and the position of that, how many
    positions it has, from where and how many it keeps in the end."""

    def __init__(self, world_model: Any, pool: Tensor, support: Tensor, kernels: Kernels) -> None:
        self._world_model = world_model
        self._pool = pool
        self._support = support
        self._kernels = kernels
        self._width: int = world_model.config.embed_dim

    @classmethod
    def where_it_helps(cls, world_model: Any, pool: Tensor, support: Tensor) -> Optional[NativeSimulation]:
        native = kernels_for(pool, world_model.transformer.ln_f.weight)
        if native is None or world_model.config.embed_dim > NARROW:
            return None
        return cls(world_model, pool, support, native)

    @torch.no_grad()
    def refresh(self, correction: Optional[Tensor]) -> None:
        """`correction` is what moved keys and values gain, in a model with learned positions."""
        model, config = self._world_model, self._world_model.config
        weights = _Weights()
        transformer = model.transformer
        blocks = (_Block * config.num_layers)(*(_of_block(weights, block) for block in transformer.blocks))
        rotations = torch.view_as_real(transformer.freqs_cis[:config.max_seq_len]) if config.rotary_emb else None
        if rotations is not None:
            rotations = torch.cat((rotations, rotations[:1]))  # after the last position comes the first
        self._model = _Model(
            layers=config.num_layers, heads=config.num_heads, size=self._width // config.num_heads,
            context=model.context_length, places=self._pool.shape[2], group=model.sim_norm.dim,
            rotations=weights.address(rotations),
            positions=None if config.rotary_emb else weights.address(model.pos_emb.weight),
            correction=weights.address(correction),
            embeddings=weights.address(model.act_embedding_table.weight),
            blocks=blocks,
            last=weights.norm(transformer.ln_f),
            reward_and_state=_of_heads(weights, model.head_rewards, model.head_observations),
            policy_and_value=_of_heads(weights, model.head_policy, model.head_value),
        )
        self._kept = weights, blocks

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Row by row the state, the policy's logits, the reward and the value, side by side."""
        rows, count = np.ascontiguousarray(rows, np.int64), len(rows)
        assert rows.shape[1] == len(self.COLUMNS)
        actions = self._model.policy_and_value.one.outputs
        states, policies = torch.empty(count, self._width), torch.empty(count, actions)
        logits = torch.empty(2, count, self._model.reward_and_state.one.outputs)
        failed = self._kernels.expand_trees(
            ctypes.addressof(self._model), self._pool.data_ptr(), rows.ctypes.data, count,
            states.data_ptr(), policies.data_ptr(), logits.data_ptr(),
        )
        if failed:
            raise MemoryError('there is no memory for a simulation')
        numbers: np.ndarray = torch.cat((states, policies, scalars(logits, self._support).t()), dim=1).numpy()
        return numbers


class _Weights:
    """Copies of weights in the kernel's order. It keeps them for as long as it lives."""

    def __init__(self) -> None:
        self._tensors: List[Tensor] = []

    def address(self, tensor: Optional[Tensor]) -> Optional[int]:
        if tensor is None:
            return None
        copied = tensor.detach().float().clone(memory_format=torch.contiguous_format)
        self._tensors.append(copied)
        return copied.data_ptr()

    def linear(self, weight: Tensor, bias: Tensor) -> _Linear:
        outputs, inputs = weight.shape
        missing = -outputs % LANES
        blocks = nn.functional.pad(weight, (0, 0, 0, missing)).view(-1, LANES, inputs).transpose(1, 2)
        return _Linear(self.address(blocks), self.address(nn.functional.pad(bias, (0, missing))), inputs, outputs)

    def norm(self, layer: nn.LayerNorm) -> _Norm:
        return _Norm(self.address(layer.weight), self.address(layer.bias), layer.eps)


def _of_block(weights: _Weights, block: Any) -> _Block:
    attention = block.attn
    together = (attention.query, attention.key, attention.value)
    return _Block(
        weights.norm(block.ln1),
        weights.linear(torch.cat([layer.weight for layer in together]), torch.cat([layer.bias for layer in together])),
        weights.linear(attention.proj.weight, attention.proj.bias),
        weights.norm(block.ln2),
        weights.linear(block.mlp[0].weight, block.mlp[0].bias),
        weights.linear(block.mlp[2].weight, block.mlp[2].bias),
    )


def _of_heads(weights: _Weights, *heads: Any) -> _Heads:
    one, other = (head.head_module for head in heads)
    return _Heads(
        weights.linear(torch.cat((one[0].weight, other[0].weight)), torch.cat((one[0].bias, other[0].bias))),
        weights.linear(one[2].weight, one[2].bias),
        weights.linear(other[2].weight, other[2].bias),
    )
