"""The lean operations give torch's numbers up to rounding, and torch's random draws, with native kernels or without."""
import math

import pytest
import torch
import torch.nn.functional as F

from lzero_async.lightzero.native import kernels
from lzero_async.lightzero.updates import lean_ops
from lzero_async.lightzero.updates.lean_ops import add_norm, attend, gelu, kept_by_dropout, softmax
from lzero_async.lightzero.updates.tokens import Tokens

CPU = torch.device('cpu')


@pytest.fixture(params=['native', 'torch'], autouse=True)
def way(request, monkeypatch):
    """How the operations are done."""
    if request.param == 'torch':
        for name in ('kernels', 'kernels_for'):
            monkeypatch.setattr(lean_ops, name, lambda *_: None)
    elif kernels() is None:
        pytest.skip('there are no kernels here')
    is_known = lean_ops._is_known
    is_known.cache_clear()
    torch.manual_seed(0)
    yield request.param
    is_known.cache_clear()


def same(one, other, *inputs):
    """Of two results, or two tuples of them, with all gradients."""
    one, other = (result if isinstance(result, tuple) else (result,) for result in (one, other))
    weights = [torch.randn_like(result) for result in one]
    for got, expected in zip(one, other):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    for got, expected in zip(torch.autograd.grad(one, inputs, weights), torch.autograd.grad(other, inputs, weights)):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=2e-6)


def uneven(lengths, longest):
    return Tokens.until_last(torch.arange(longest) < torch.tensor(lengths)[:, None])


@pytest.mark.parametrize('operation', [gelu, softmax])
def test_the_kernels_are_used_where_they_can_be(way, operation):
    def module(dtype):
        return type(operation(torch.randn(3, 8, dtype=dtype, requires_grad=True)).grad_fn)._forward_cls.__module__

    name = 'native_ops' if way == 'native' else 'lean_ops'
    assert [module(dtype).split('.')[-1] for dtype in (torch.float32, torch.float64)] == [name, 'lean_ops']


@pytest.mark.parametrize('size', [1e-6, 0.1, 1.0, 10.0, 1000.0])
def test_gelu(size):
    x = (size * torch.randn(40, 30)).requires_grad_()
    same(gelu(x), F.gelu(x, approximate='tanh'), x)


def test_gelu_far_out():
    x = torch.tensor([-1e30, -50.0, 0.0, 50.0, 1e30])
    assert gelu(x)[1:4].tolist() == [0.0, 0.0, 50.0]


@pytest.mark.parametrize('size', [0.1, 10.0, 1000.0])
def test_softmax(size):
    x = (size * torch.randn(40, 3, 8)).requires_grad_()
    same(softmax(x), x.softmax(-1), x)


@pytest.mark.parametrize('operation', [gelu, softmax])
def test_memory_may_be_in_any_order(operation):
    x = torch.randn(8, 5, requires_grad=True)
    same(operation(x.t()).t(), operation(x.t().contiguous()).t(), x)


# -------------------------------------------------------------------- dropout


@pytest.fixture(params=['_draw_natively', '_draw', None])
def drawn_by(request, monkeypatch):
    """Only this is known to draw as torch does, if it does; else torch's own dropout is asked."""
    original = lean_ops._is_known
    monkeypatch.setattr(lean_ops, '_is_known', lambda draw: draw.__name__ == request.param and original(draw))
    return request.param


@pytest.mark.parametrize('rate', [0.1, 0.25, 0.5, 0.9])
def test_dropout_draws_what_torch_draws(rate, drawn_by):
    torch.manual_seed(3)
    kept = kept_by_dropout((7, 5, 3), rate, CPU)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    x = torch.randn(7, 5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(x * kept.factors(), F.dropout(x, rate))
    assert torch.equal(torch.get_rng_state(), after)
    assert kept.mask.dtype == torch.uint8


@pytest.mark.parametrize('rate', [0.1, 0.37])
def test_all_draws_that_follow_are_those_of_torch(rate, drawn_by):
    def draws(dropout):
        torch.manual_seed(3)
        found = []
        for count in (1, 3, 311, 312, 313, 2, 1249, 999, 1):
            found += [dropout((count,)), torch.get_rng_state()]
            found += [torch.rand(1), torch.randn(3)]  # an odd number of the generator's words, and a normal kept back
        return found

    ours = draws(lambda shape: kept_by_dropout(shape, rate, CPU).factors())
    theirs = draws(lambda shape: F.dropout(torch.ones(shape), rate))
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs))


@pytest.mark.parametrize('draw', [lean_ops._draw_natively, lean_ops._draw])
def test_a_way_to_draw_is_known_only_if_it_can_be_used_and_draws_as_torch_does(way, draw, monkeypatch):
    if draw is lean_ops._draw_natively and way == 'torch':
        assert not lean_ops._is_known(draw)
        return
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    noise = torch.empty(99).bernoulli_(0.75, generator=generators[0])
    alike = torch.equal(draw((99,), 0.25, generators[1]), noise.byte())
    assert lean_ops._is_known(draw) == (alike and torch.equal(*(one.get_state() for one in generators)))
    lean_ops._is_known.cache_clear()
    monkeypatch.setattr(lean_ops, '_limit', lambda rate: 1 << 52)
    assert not lean_ops._is_known(draw)


# -------------------------------------------------------------------- sums and norms


def plain_add_norm(x, y, kept, tokens, norm):
    y = y if kept is None else y * tokens.packed(kept.factors())
    total = y if x is None else x + y
    return total, F.layer_norm(total, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


class Summands:
    def __init__(self, adds, dropout, width=24):
        self.tokens = uneven([6, 1, 4, 0, 6, 2], 6)
        rows = len(self.tokens.rows)
        self.x = torch.randn(rows, width, requires_grad=True) if adds else None
        self.y = (0.5 + torch.randn(rows, width)).requires_grad_()
        self.kept = kept_by_dropout((6, 6, width), 0.3, CPU) if dropout else None
        self.norm = torch.nn.LayerNorm(width, eps=1e-3)
        with torch.no_grad():
            for parameter in self.norm.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))

    def given(self):
        return self.x, self.y, self.kept, self.tokens, self.norm

    def trained(self):
        return [*([] if self.x is None else [self.x]), self.y, self.norm.weight, self.norm.bias]


@pytest.mark.parametrize('adds', [True, False])
@pytest.mark.parametrize('dropout', [True, False])
@pytest.mark.parametrize('width', [9, 16, 96])
def test_add_norm(adds, dropout, width):
    summands = Summands(adds, dropout, width)
    same(add_norm(*summands.given()), plain_add_norm(*summands.given()), *summands.trained())


@pytest.mark.parametrize('adds', [True, False])
@pytest.mark.parametrize('dropout', [True, False])
def test_add_norm_where_only_one_result_is_used(adds, dropout):
    summands = Summands(adds, dropout)
    same(add_norm(*summands.given())[1], plain_add_norm(*summands.given())[1], *summands.trained())
    of_sum = summands.trained()[:-2]
    same(add_norm(*summands.given())[0], plain_add_norm(*summands.given())[0], *of_sum)


def test_add_norm_of_memory_in_any_order():
    summands = Summands(adds=True, dropout=True)
    _, _, *others = summands.given()
    x, y = (torch.randn(24, len(summands.y), requires_grad=True) for _ in range(2))
    same(add_norm(x.t(), y.t(), *others), plain_add_norm(x.t(), y.t(), *others), x, y)


# -------------------------------------------------------------------- attention


def host_attention(qkv, heads, rotations, keep):
    """As LightZero's SelfAttention computes it."""
    batch, length, width = qkv.shape
    query, key, value = (
        part.reshape(batch, length, heads, -1).transpose(1, 2) for part in qkv.split(width // 3, dim=-1)
    )
    if rotations is not None:
        query, key = (
            torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * rotations[:, None]).flatten(-2)
            for x in (query, key)
        )
    scores = (query @ key.transpose(-2, -1)) * (1.0 / math.sqrt(key.size(-1)))
    scores = scores.masked_fill(torch.tril(torch.ones(length, length)) == 0, -math.inf).softmax(-1)
    return ((scores if keep is None else scores * keep) @ value).transpose(1, 2).flatten(2)


@pytest.mark.parametrize('rotary', [True, False])
@pytest.mark.parametrize('dropout', [True, False])
@pytest.mark.parametrize('heads, width, length', [
    (1, 16, 6), (2, 16, 6), (4, 16, 6), (2, 12, 1), (1, 96, 6), (2, 64, 20), (1, 64, 16), (3, 30, 33),
])
def test_attention(rotary, dropout, heads, width, length):
    batch = 5
    qkv = torch.randn(batch, length, 3 * width, requires_grad=True)
    angles = torch.randn(batch, length, width // heads // 2)
    rotations = torch.polar(torch.ones_like(angles), angles) if rotary else None
    kept = kept_by_dropout((batch, heads, length, length), 0.3, CPU) if dropout else None
    tokens = uneven([min(one, length) for one in (6, 1, 4, length, 2)], length)
    got = attend(tokens.packed(qkv), heads, tokens, rotations, kept)
    keep = None if kept is None else kept.factors()
    same(got, tokens.packed(host_attention(qkv, heads, rotations, keep)), qkv)


# -------------------------------------------------------------------- tokens


@pytest.mark.parametrize('wanted, rows', [
    ([[1, 1], [1, 1]], [0, 1, 2, 3]),
    ([[1, 0], [1, 1]], [0, 2, 3]),
    ([[0, 1], [1, 0]], [0, 1, 2]),  # what comes before is looked at
    ([[0, 0], [0, 1]], [2, 3]),
])
def test_tokens_are_packed_up_to_the_last_that_is_wanted(wanted, rows):
    tokens = Tokens.until_last(torch.tensor(wanted, dtype=torch.bool))
    assert tokens.rows.tolist() == rows
    values = torch.randn(2, 2, 3)
    packed = tokens.packed(values)
    assert torch.equal(packed, values.flatten(0, 1)[rows])
    padded = tokens.padded(packed)
    assert torch.equal(tokens.packed(padded), packed)
    assert padded.isfinite().all()
    doubled = tokens.doubled()
    assert doubled.shape == (2, 4)
    assert doubled.rows.tolist() == [token for row in rows for token in (2 * row, 2 * row + 1)]
    twice = torch.randn(len(doubled.rows), 3)
    assert torch.equal(doubled.packed(doubled.padded(twice)), twice)
