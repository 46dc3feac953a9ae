"""PooledInference: UniZero's inference in search, with the keys and values of all nodes in one tensor.

LightZero keeps them in an object for each node, which are looked up, copied, padded, stacked and cut one by one. Which
node is given which keys and values, and what is cut from them when, is the same here, to the last quirk: a state is
looked up by its bytes, the last one written wins, and rows that are shorter than others get zeros at their front.
"""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from .native_simulation import NativeSimulation
from .search_weights import SearchWeights
from .token_step import expand, head_pair, shifted, simulation, token_pass

ROOTS_PER_ENV = 2
"""So many of an environment's last roots are kept."""
Key = bytes


class PooledInference:
    """Of one world model, for searches of up to `env_num` rows. Called from one thread at a time.

    The model's own dictionaries say where states are, so that whoever empties them empties this one.
    """

    def __init__(self, world_model: Any, support: Tensor) -> None:
        config = world_model.config
        self._world_model = world_model
        self._weights = SearchWeights(world_model)
        self._support = support
        self.width: int = config.embed_dim
        self._context: int = world_model.context_length
        self._rotary = bool(config.rotary_emb)
        self._roots = ROOTS_PER_ENV * world_model.env_num
        self._leaves: int = world_model.shared_pool_size
        places = self._roots + self._leaves
        self._pool = torch.zeros(
            config.num_layers, 2, places, config.num_heads, self._context, config.embed_dim // config.num_heads,
            device=support.device,
        )
        self._native = NativeSimulation.where_it_helps(world_model, self._pool, support)
        self._sizes = [0] * places
        """Positions of each place that are filled."""
        self._next_root = [0] * world_model.env_num
        self._next_leaf = 0
        self._seen: Tuple[Any, int, Any] = (None, 0, None)

    # ---------------------------------------------------------------- the root

    def initial(
        self, last_observations: Tensor, last_actions: Sequence[Any], observations: Tensor, timesteps: Sequence[Any]
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """Latent states, policy logits and value logits of `observations`, which follow the last ones by the actions.
        """
        self._refresh()
        last = self._embedded(last_observations)
        states = self._embedded(observations)
        self._seen = (observations, observations._version, states)
        rows = len(states)
        if max(last_actions) == -1:
            kv, size = self._empty(rows), 0
            first = [_number(one) * 2 for one in timesteps] if self._rotary else [0] * rows
        else:
            kv, size = self._of_last_step(last[:rows], timesteps)
            actions = torch.as_tensor(np.array(last_actions[:rows]), device=states.device)
            # Learned positions are those of the longest row here, whatever a row's own.
            before = [_number(one) * 2 - 1 for one in timesteps[:rows]] if self._rotary else [size] * rows
            self._pass(self._weights.embeddings.index_select(0, actions), before, kv, size)
            size += 1
            first = [position + 1 for position in before]
        x = self._pass(states, first, kv, size)
        policy, value = head_pair(x, self._weights.policy_and_value)
        self._store_roots(states, kv, size + 1)
        self._world_model.past_kv_cache_recurrent_infer.clear()
        return states, policy, value

    def _refresh(self) -> None:
        self._weights.refresh()
        if self._native is not None and not self._weights.unchanged:
            self._native.refresh(self._weights.correction)

    def _embedded(self, observations: Tensor) -> Tensor:
        """Their latent states. What was seen last is not encoded again."""
        seen, version, states = self._seen
        if observations is seen and version == observations._version and self._weights.unchanged:
            known: Tensor = states
            return known
        encoded: Tensor = self._world_model.tokenizer.encode_to_obs_embeddings(observations)
        return encoded.flatten(1)

    def _empty(self, rows: int) -> Tensor:
        shape = list(self._pool.shape)
        shape[2] = rows
        return self._pool.new_zeros(shape)

    def _of_last_step(self, last: Tensor, timesteps: Sequence[Any]) -> Tuple[Tensor, int]:
        """Keys and values as the search before left them. A row that is not known begins anew with its last state."""
        roots = self._world_model.past_kv_cache_init_infer_envs
        found: List[Optional[int]] = [roots[row].get(key) for row, key in enumerate(_keys(last))]
        kv = self._pool.index_select(2, self._index([place or 0 for place in found]))
        sizes = [1 if place is None else self._sizes[place] for place in found]
        anew = [row for row, place in enumerate(found) if place is None]
        if anew:
            fresh = self._empty(len(anew))
            positions = [_number(timesteps[row]) * 2 for row in anew] if self._rotary else [0] * len(anew)
            self._pass(last[anew], positions, fresh, 0)
            kv[:, :, anew] = fresh
        return self._aligned(kv, sizes), max(sizes)

    def _store_roots(self, states: Tensor, kv: Tensor, size: int) -> None:
        known = self._world_model.past_kv_cache_init_infer_envs
        cut = self._kept(size)
        places = []
        for row, key in enumerate(_keys(states)):
            place = ROOTS_PER_ENV * row + self._next_root[row]
            self._next_root[row] = (self._next_root[row] + 1) % ROOTS_PER_ENV
            known[row][key] = place
            self._sizes[place] = cut[1]
            places.append(place)
        self._store(kv, cut, self._index(places))

    # ---------------------------------------------------------------- the tree

    def search(self, roots: np.ndarray, timesteps: Sequence[Any]) -> 'PooledTree':
        """A search from roots whose `initial` was the last one asked for."""
        return PooledTree(self, roots, [_number(one) for one in timesteps] if self._rotary else [0] * len(roots))

    def expand(
        self, keys: Sequence[Key], actions: Sequence[int], turns: Sequence[int]
    ) -> Tuple[List[Key], np.ndarray]:
        """The states that `actions` lead to from states with these keys, `turns` steps into the episode.

        Their keys, and row by row the policy's logits, the reward and the value.
        """
        roots, leaves = self._world_model.past_kv_cache_init_infer_envs, self._world_model.past_kv_cache_recurrent_infer
        read: List[int] = []
        for row, key in enumerate(keys):
            place = roots[row].get(key)
            read.append(leaves[key] if place is None else place)
        sizes = [self._sizes[place] for place in read]
        write = self._next_leaves(len(read))
        positions = self._on_circle([turn * 2 + 1 for turn in turns] if self._rotary else sizes)
        kept = [self._kept(size + 2) for size in sizes]
        if self._native is not None:
            keep_from, keep = zip(*kept)
            numbers = self._native(np.array((read, write, actions, positions, sizes, keep_from, keep)).T)
        else:
            numbers = self._expanded(self._index([read, write, actions, positions]), sizes, kept)
        found = _keys_of(numbers, self.width)
        for place, key, (_, keep_) in zip(write, found, kept):
            leaves[key] = place
            self._sizes[place] = keep_
        return found, numbers[:, self.width:]

    def _expanded(self, index: Tensor, sizes: Sequence[int], kept: Sequence[Tuple[int, int]]) -> np.ndarray:
        w, size = self._weights, max(sizes)
        model = (
            w.rotations, w.place, w.embeddings, w.group, self._support, w.transformer, w.reward_and_state,
            w.policy_and_value,
        )
        if min(sizes) == size:
            rows = expand(self._pool, index, size, *kept[0], self._correction(kept[0]), *model)
        else:
            kv = self._aligned(self._pool.index_select(2, index[0]), sizes)
            rows = simulation(kv, size, index[2], index[3], *model)
            self._store_uneven(kv, sizes, kept, index[1])
        numbers: np.ndarray = rows.cpu().numpy()
        return numbers

    def _next_leaves(self, count: int) -> List[int]:
        places = [self._roots + (self._next_leaf + one) % self._leaves for one in range(count)]
        self._next_leaf = (self._next_leaf + count) % self._leaves
        return places

    def _store_uneven(self, kv: Tensor, sizes: Sequence[int], kept: Sequence[Tuple[int, int]], places: Tensor) -> None:
        """Rows of different sizes: each loses the zeros at its front, and is then cut by its own size."""
        longest = max(sizes)
        moved = shifted(kv, self._index([size - longest for size in sizes]))
        for row, cut in enumerate(kept):
            self._store(moved[:, :, row:row + 1], cut, places[row:row + 1])

    # ---------------------------------------------------------------- both

    def _kept(self, size: int) -> Tuple[int, int]:
        """From where and how many of `size` positions are kept: of a full context all but the first two."""
        return (0, size) if size < self._context - 1 else (2, self._context - 3)

    def _correction(self, cut: Tuple[int, int]) -> Optional[Tensor]:
        """What learned positions gain by a cut."""
        return self._weights.correction if cut[0] else None

    def _store(self, kv: Tensor, cut: Tuple[int, int], places: Tensor) -> None:
        """What is kept of some rows' positions, at `places` of the pool."""
        kept, correction = kv.narrow(4, *cut), self._correction(cut)
        if correction is not None:
            kept = kept + correction
        self._pool.narrow(4, 0, cut[1]).index_copy_(2, places, kept)

    def _aligned(self, kv: Tensor, sizes: Sequence[int]) -> Tensor:
        """All rows as long as the longest one, with zeros at the front. They are not masked, as in LightZero."""
        longest = max(sizes)
        if min(sizes) == longest:
            return kv
        aligned: Tensor = shifted(kv, self._index([longest - size for size in sizes]))
        return aligned

    def _pass(self, x: Tensor, positions: Sequence[int], kv: Tensor, size: int) -> Tensor:
        index, rotation = self._index(self._on_circle(positions)), None
        if self._weights.rotations is not None:
            rotation = self._weights.rotations.index_select(1, index)
        if self._weights.place is not None:
            x = x + self._weights.place.index_select(0, index)
        output: Tensor = token_pass(x, rotation, kv, size, self._weights.transformer)
        return output

    def _on_circle(self, positions: Sequence[int]) -> List[int]:
        """Rotary positions begin again after the longest sequence."""
        longest = self._weights.longest
        return list(positions) if longest is None else [position % longest for position in positions]

    def _index(self, numbers: Any) -> Tensor:
        return torch.tensor(numbers, device=self._pool.device)


class PooledTree:
    """The states of one search: those of the roots, and those of one simulation after the other."""

    def __init__(self, inference: PooledInference, roots: np.ndarray, timesteps: Sequence[int]) -> None:
        self._inference = inference
        self._timesteps = timesteps
        self._keys: List[List[Key]] = [_keys_of(roots.reshape(len(roots), -1), inference.width)]

    def expand(
        self, simulations: Sequence[int], rows: Sequence[int], actions: Sequence[int], depths: Sequence[int]
    ) -> Tuple[List[float], List[float], List[List[float]]]:
        """Rewards, values and policy logits of new states, which `actions` lead to from states of the search.

        A state is named by the simulation that found it (0: it is a root) and its row there.
        """
        keys = [self._keys[simulation][row] for simulation, row in zip(simulations, rows)]
        turns = [timestep + depth for timestep, depth in zip(self._timesteps, depths)]
        found, numbers = self._inference.expand(keys, actions, turns)
        self._keys.append(found)
        return numbers[:, -2].tolist(), numbers[:, -1].tolist(), numbers[:, :-2].tolist()


def _keys(states: Tensor) -> List[Key]:
    array = states.detach().cpu().numpy()
    return _keys_of(array, array.shape[1])


def _keys_of(rows: np.ndarray, width: int) -> List[Key]:
    return [row[:width].tobytes() for row in rows]


def _number(timestep: Any) -> int:
    return int(np.asarray(timestep).reshape(-1)[0])
