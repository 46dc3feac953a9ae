"""packing: weights as one run of bytes, and back."""
import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch

from lzero_async.engines.packing import ALIGNMENT, fill, plan

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
]


def packed(weights):
    packing, tensors = plan(weights)
    buffer = bytearray(max(1, packing.nbytes))
    fill(buffer, packing.nbytes, tensors)
    return pickle.loads(pickle.dumps(packing)), buffer


def there_and_back(weights):
    packing, buffer = packed(weights)
    return packing.open(buffer)


def some(dtype, *shape):
    return torch.arange(2, 2 + int(np.prod(shape))).reshape(shape).to(dtype)


def same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for key in ours:
            same(ours[key], theirs[key])
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs):
            same(one, other)
    else:
        assert ours == theirs
    return True


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
def test_every_dtype_comes_back(dtype):
    weights = {'odd': some(torch.uint8, 3), 'matrix': some(dtype, 3, 5), 'scalar': some(dtype, 1)[0]}
    assert same(there_and_back(weights), weights)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('shape', [(0,), (0, 3), (3, 0, 2)], ids=str)
def test_empty_tensors_come_back(dtype, shape):
    empty = torch.empty(shape, dtype=dtype)
    for weights in ({'empty': empty}, {'odd': some(torch.uint8, 5), 'empty': empty, 'after': some(dtype, 2)}):
        assert same(there_and_back(weights), weights)


def test_weights_without_tensors_come_back():
    for weights in ({}, {'version': 3, 'name': 'text', 'nothing': None}, []):
        packing, _ = packed(weights)
        assert packing.nbytes == 0
        assert same(there_and_back(weights), weights)


def test_nested_dicts_and_lists_come_back_in_their_order_and_type():
    weights = OrderedDict(
        z=some(torch.float32, 2), a=[some(torch.int64, 3), {'deep': (some(torch.bool, 2), 1.5, 'text')}], m={},
    )
    assert same(there_and_back(weights), weights)


def test_values_that_are_no_numbers_survive():
    weights = {'w': torch.tensor([float('nan'), float('inf'), -0.0])}
    back = there_and_back(weights)['w']
    assert back.view(torch.int32).tolist() == weights['w'].view(torch.int32).tolist()


def test_tensors_that_are_not_contiguous_or_want_gradients_come_back():
    matrix = some(torch.float32, 4, 6)
    weights = {
        'transposed': matrix.t(), 'sliced': matrix[:, ::2], 'expanded': some(torch.float32, 1).expand(5),
        'parameter': torch.nn.Parameter(matrix.clone()),
    }
    back = there_and_back(weights)
    for name, tensor in weights.items():
        assert torch.equal(back[name], tensor.detach()) and not back[name].requires_grad


def test_every_tensor_begins_at_an_aligned_place_and_none_overlaps():
    weights = {str(index): some(dtype, index + 1) for index, dtype in enumerate(DTYPES * 3)}
    packing, tensors = plan(weights)
    ends = 0
    for offset, tensor in tensors:
        assert offset % ALIGNMENT == 0 and offset >= ends
        ends = offset + tensor.numel() * tensor.element_size()
    assert packing.nbytes == ends
    assert same(there_and_back(weights), weights)


def test_the_packing_is_small_and_holds_no_bytes_of_tensors():
    packing, _ = plan({'w': torch.zeros(1_000_000)})
    assert packing.nbytes == 4_000_000
    assert len(pickle.dumps(packing)) < 1000


def test_what_is_opened_are_views_of_the_buffer():
    packing, buffer = packed({'a': torch.zeros(4), 'b': torch.zeros(2, dtype=torch.int64)})
    one, other = packing.open(buffer), packing.open(buffer)
    one['a'][1] = 5
    assert other['a'].tolist() == [0, 5, 0, 0] and one['b'].tolist() == [0, 0]


def test_a_filled_buffer_does_not_follow_the_weights():
    weights = {'w': torch.zeros(3)}
    packing, buffer = packed(weights)
    weights['w'].fill_(1)
    assert not packing.open(buffer)['w'].any()


def test_a_module_takes_what_was_packed():
    source = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.LSTM(4, 4))
    target = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.LSTM(4, 4))
    target.load_state_dict(there_and_back(source.state_dict()))
    assert same(dict(target.state_dict()), dict(source.state_dict()))
