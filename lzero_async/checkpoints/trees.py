"""Nested states as one safetensors file: tensors as such, all else as JSON. Reading one runs no code of its own."""
from __future__ import annotations

import json
from typing import Any, Dict, Tuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from .errors import StateDamaged

TREE = 'tree'


def to_bytes(tree: Any) -> bytes:
    """Dicts, lists, tuples, numbers, strings, None, tensors and arrays of numbers. Tensors must not share memory."""
    tensors: Dict[str, torch.Tensor] = {}
    plain = _plain(tree, tensors, 'state')
    content: bytes = save(tensors, {TREE: json.dumps(plain)})
    return content


def from_bytes(content: bytes) -> Any:
    """Raises StateDamaged for anything that `to_bytes` did not make."""
    try:
        tensors = load(content)
        length = int.from_bytes(content[:8], 'little')
        plain = json.loads(json.loads(content[8:8 + length])['__metadata__'][TREE])
        return _tree(plain, tensors)
    except (SafetensorError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise StateDamaged(f'not a state of lzero-async: {type(error).__name__}: {error}') from error


def _plain(tree: Any, tensors: Dict[str, torch.Tensor], path: str) -> Any:
    # A type by itself, not a subclass: numpy's floats, for one, are floats as well.
    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    name = str(len(tensors))
    if isinstance(tree, torch.Tensor):
        tensors[name] = tree.contiguous()
        return {'tensor': name}
    if isinstance(tree, np.ndarray) and tree.dtype.kind in 'biuf':
        tensors[name] = torch.from_numpy(np.ascontiguousarray(tree))
        return {'array': name, 'shape': list(tree.shape)}  # also of one that has no dimension
    if isinstance(tree, dict):
        return {'dict': [
            [_plain(key, tensors, path), _plain(value, tensors, f'{path}.{key}')] for key, value in tree.items()
        ]}
    if isinstance(tree, (list, tuple)):
        items = [_plain(value, tensors, f'{path}[{index}]') for index, value in enumerate(tree)]
        return {'tuple': items} if isinstance(tree, tuple) else items
    if isinstance(tree, np.generic):
        return tree.item()
    raise TypeError(f'{path} must be made of dicts, lists, numbers, strings, tensors and arrays, got {type(tree)}')


def _tree(plain: Any, tensors: Dict[str, torch.Tensor]) -> Any:
    if isinstance(plain, list):
        return [_tree(item, tensors) for item in plain]
    if not isinstance(plain, dict):
        return plain
    kind, value = next(iter(plain.items()))
    if kind == 'tensor':
        return tensors[value]
    if kind == 'array':
        return tensors[value].numpy().reshape(_shape(plain))
    if kind == 'dict':
        return {_key(_tree(key, tensors)): _tree(item, tensors) for key, item in value}
    if kind == 'tuple':
        return tuple(_tree(item, tensors) for item in value)
    raise ValueError(f'unknown kind {kind!r}')


def _shape(plain: Dict[str, Any]) -> Tuple[int, ...]:
    return tuple(int(size) for size in plain['shape'])


def _key(key: Any) -> Any:
    hash(key)
    return key
