"""States go to bytes and come back the same, and nothing but a state comes back."""
import contextlib
import json
import pickle
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from lzero_async.checkpoints.errors import StateDamaged
from lzero_async.checkpoints.trees import from_bytes, to_bytes


def same(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-2 ** 70, 2 ** 70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
)


@given(plain)
def test_plain_values(tree):
    assert same(from_bytes(to_bytes(tree)), tree)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_tensors(dtype):
    tree = {'a': torch.arange(6).reshape(2, 3).to(dtype), 'step': torch.tensor(3).to(dtype), 'none': torch.empty(0)}
    assert same(from_bytes(to_bytes(tree)), tree)


@pytest.mark.parametrize('dtype', [np.float32, np.float64, np.int64, np.int32, np.uint8, np.bool_])
def test_arrays(dtype):
    tree = [np.arange(6).reshape(2, 3).astype(dtype), np.array(1).astype(dtype), np.empty((0, 4), dtype)]
    assert same(from_bytes(to_bytes(tree)), tree)


def test_arrays_that_are_not_in_one_piece():
    tree = {'t': torch.arange(12).reshape(3, 4).T, 'a': np.arange(12).reshape(3, 4)[:, ::2]}
    assert same(from_bytes(to_bytes(tree)), tree)


def test_an_optimizer():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    again = from_bytes(to_bytes(state))
    assert same(again, state)
    optimizer.load_state_dict(again)


@pytest.mark.parametrize(
    'value', [object(), {1, 2}, lambda: 0, np.array([None])], ids=['object', 'set', 'function', 'objects']
)
def test_what_is_not_plain_is_refused_by_its_place(value):
    with pytest.raises(TypeError, match=r'state\.a\[1\]'):
        to_bytes({'a': [0, value]})


class Bomb:
    def __reduce__(self):
        return exec, ('raise SystemExit("executed")',)


def with_metadata(metadata):
    return save({'0': torch.zeros(1)}, metadata)


@pytest.mark.parametrize('content', [
    b'', b'\0' * 7, b'{}', pickle.dumps(Bomb()), struct.pack('<Q', 2 ** 60) + b'{}',
    with_metadata(None), with_metadata({'tree': 'not json'}), with_metadata({'tree': '{"tensor": "7"}'}),
    with_metadata({'tree': '{"call": ["os.system", "true"]}'}), with_metadata({'tree': '{"dict": [[[1], 2]]}'}),
    with_metadata({'tree': json.dumps({'array': '0', 'shape': [2, 2]})}),
], ids=range(11))
def test_what_is_not_a_state_is_refused_and_never_executed(content):
    with pytest.raises(StateDamaged):
        from_bytes(content)


@given(st.data())
def test_bytes_that_were_altered_give_an_error_or_another_value_and_nothing_else(data):
    content = bytearray(to_bytes({'a': [1, 2.5, 'x'], 't': torch.arange(4)}))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(StateDamaged):
        from_bytes(bytes(content))
