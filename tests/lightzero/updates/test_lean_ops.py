"""The lean operations give torch's numbers up to rounding, and torch's random draws."""
import math

import pytest
import torch
import torch.nn.functional as F

from lzero_async.lightzero.updates import lean_ops
from lzero_async.lightzero.updates.lean_ops import Tokens, attend, gelu, kept_by_dropout, softmax

CPU = torch.device('cpu')


def same(one, other, *inputs):
    """Of two results with all gradients."""
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    weights = torch.randn_like(one)
    for got, expected in zip(torch.autograd.grad(one, inputs, weights), torch.autograd.grad(other, inputs, weights)):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=2e-6)


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


# -------------------------------------------------------------------- dropout


@pytest.mark.parametrize('rate', [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize('known', [True, False])
def test_dropout_draws_what_torch_draws(rate, known, monkeypatch):
    monkeypatch.setattr(lean_ops, '_draws_are_known', lambda: known and original())
    torch.manual_seed(3)
    kept = kept_by_dropout((7, 5, 3), rate, CPU)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    x = torch.randn(7, 5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(x * kept, F.dropout(x, rate))
    assert torch.equal(torch.get_rng_state(), after)


original = lean_ops._draws_are_known


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
@pytest.mark.parametrize('heads', [1, 2, 4])
def test_attention(rotary, dropout, heads):
    batch, length, width = 5, 6, 16
    qkv = torch.randn(batch, length, 3 * width, requires_grad=True)
    angles = torch.randn(batch, length, width // heads // 2)
    rotations = torch.polar(torch.ones_like(angles), angles) if rotary else None
    keep = kept_by_dropout((batch, heads, length, length), 0.3, CPU) if dropout else None
    hidden = torch.full((length, length), -math.inf).triu_(1)
    lengths = torch.tensor([6, 1, 4, 6, 2])
    tokens = Tokens.until_last(torch.arange(length) < lengths[:, None])
    got = attend(tokens.packed(qkv), heads, tokens, rotations, hidden, keep)
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
