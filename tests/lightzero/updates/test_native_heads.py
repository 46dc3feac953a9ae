"""A native head gives the losses and gradients that torch gives operation by operation."""
import copy

import pytest
import torch
import torch.nn.functional as F
from lzero.model.common import SimNorm
from native_libraries import LIBRARIES, loaded
from torch import nn

from lzero_async.lightzero.native import NARROW, kernels
from lzero_async.lightzero.updates import native_heads, native_ops
from lzero_async.lightzero.updates.native_heads import GROUPS, SQUARES, can_be_used, cross_entropy, divergence

WIDTH, HIDDEN = 64, 96
ROWS = [1, 127, 128, 129, 300]


@pytest.fixture(params=LIBRARIES)
def native(request, monkeypatch):
    library = loaded(request.param)
    monkeypatch.setattr(native_ops, 'kernels', lambda: library)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def head(outputs, width=WIDTH, hidden=HIDDEN, group=None):
    behind = [] if group is None else [SimNorm(simnorm_dim=group)]
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(approximate='tanh'), nn.Linear(hidden, outputs), *behind)


def plain_cross_entropy(layers, x, targets):
    logarithms = F.log_softmax(layers(x), dim=1)
    return -(logarithms * targets).sum(1), -(logarithms.exp() * logarithms).sum(1)


def plain_divergence(layers, x, targets, kind):
    latent = layers(x)
    if kind == SQUARES:
        return (latent - targets).square().mean(-1)
    groups = (len(x), -1, layers[3].dim)
    latent, targets = latent.view(groups) + 1e-6, targets.view(groups) + 1e-6
    return (targets * (targets.log() - latent.log())).sum(-1).mean(-1)


def same(ours, theirs, layers, x, targets, weights, *settings):
    """All results, and the gradients of their sum with `weights`; None where a result is not used.

    Those of torch are computed in double precision.
    """
    def found(function, layers, x, targets, weights):
        results = function(layers, x, targets, *settings)
        results = results if isinstance(results, tuple) else (results,)
        used = [result for result, weight in zip(results, weights) if weight is not None]
        names, parameters = zip(*layers.named_parameters())
        gradients = torch.autograd.grad(used, (x, *parameters), [weight for weight in weights if weight is not None])
        return {**dict(enumerate(results)), **dict(zip(('x', *names), gradients))}

    double = (copy.deepcopy(layers).double(), x.detach().double().requires_grad_(), targets.double())
    got = found(ours, layers, x, targets, weights)
    expected = found(theirs, *double, [None if weight is None else weight.double() for weight in weights])
    assert got.keys() == expected.keys()
    for name in expected:
        assert got[name].dtype == torch.float32
        torch.testing.assert_close(
            got[name].double(), expected[name], rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f'{name}: {text}'
        )


def weight(rows):
    return torch.randn(rows) / rows ** 0.5  # so that gradients are of one size


# -------------------------------------------------------------------- distributions


@pytest.mark.parametrize('outputs', [2, 32, 33, 101])
@pytest.mark.parametrize('rows', ROWS)
def test_cross_entropy(native, outputs, rows):
    x, targets = torch.randn(rows, WIDTH, requires_grad=True), torch.rand(rows, outputs).softmax(1)
    weights = [weight(rows), weight(rows)]
    same(cross_entropy, plain_cross_entropy, head(outputs), x, targets, weights)


@pytest.mark.parametrize('used', [(True, False), (False, True)])
def test_either_of_losses_and_entropies_may_be_used_alone(native, used):
    x, targets = torch.randn(130, WIDTH, requires_grad=True), torch.rand(130, 33).softmax(1)
    weights = [weight(130) if one else None for one in used]
    same(cross_entropy, plain_cross_entropy, head(33), x, targets, weights)


def test_targets_need_not_sum_to_one(native):
    x, targets = torch.randn(130, WIDTH, requires_grad=True), torch.rand(130, 33)
    targets[3], targets[4] = 0.0, -targets[4]
    assert targets.sum(1).max() > 10
    same(cross_entropy, plain_cross_entropy, head(33), x, targets, [weight(130) / 16, weight(130)])


@pytest.mark.parametrize('half', [0, 1])
@pytest.mark.parametrize('rows', [1, 129])
def test_x_may_be_one_half_of_a_larger_tensor(native, half, rows):
    layers, targets, weights = head(33), torch.rand(rows, 33).softmax(1), [weight(rows), weight(rows)]
    both = torch.randn(2 * rows, WIDTH, requires_grad=True)

    def of_half(function):
        def results(layers, both, targets):
            x = torch.split(both.view(-1, 2 * WIDTH), WIDTH, dim=1)[half]
            assert x.stride() == (2 * WIDTH, 1)
            return function(layers, x, targets)
        return results

    same(of_half(cross_entropy), of_half(plain_cross_entropy), layers, both, targets, weights)


def test_memory_may_be_in_any_order(native):
    layers, turned = head(33), torch.randn(WIDTH, 130, requires_grad=True)
    targets = torch.rand(33, 130).softmax(0).t()
    for layer in (layers[0], layers[2]):
        layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())

    def of_turned(function):
        return lambda layers, turned, targets: function(layers, turned.t(), targets)

    weights = [weight(260)[::2], weight(260)[::2]]
    same(of_turned(cross_entropy), of_turned(plain_cross_entropy), layers, turned, targets, weights)


@pytest.mark.parametrize('size', [1e-3, 30.0, 300.0])
def test_logits_of_any_size(native, size):
    """Where the head is nearly sure the losses are as large as the logits, and are compared relative to that."""
    layers, x, targets = head(33), torch.randn(130, WIDTH), torch.rand(130, 33).softmax(1)
    with torch.no_grad():
        for parameter in layers[2].parameters():
            parameter.mul_(size)
        losses, entropies = cross_entropy(layers, x, targets)
        expected, of_expected = plain_cross_entropy(copy.deepcopy(layers).double(), x.double(), targets.double())
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropies.double(), of_expected, rtol=1e-4, atol=1e-5 * max(size, 1))


# -------------------------------------------------------------------- states


@pytest.mark.parametrize('kind', [GROUPS, SQUARES], ids=['groups', 'squares'])
@pytest.mark.parametrize('group, outputs', [(8, 64), (8, 40), (4, 32), (16, 64), (5, 35)])
@pytest.mark.parametrize('rows', ROWS)
def test_divergence(native, kind, group, outputs, rows):
    x = torch.randn(rows, WIDTH, requires_grad=True)
    targets = torch.randn(rows, outputs // group, group).softmax(2).flatten(1)
    layers = head(outputs, group=group)
    same(divergence, plain_divergence, layers, x, targets, [weight(rows)], kind)


@pytest.mark.parametrize('kind', [GROUPS, SQUARES], ids=['groups', 'squares'])
@pytest.mark.parametrize('group', [8, 4])
def test_states_that_are_sure(native, kind, group):
    """All of a group in one number, of what is wanted and nearly so of what is said."""
    layers, x = head(64, group=group), torch.randn(130, WIDTH, requires_grad=True)
    with torch.no_grad():
        for parameter in layers[2].parameters():
            parameter.mul_(10.0)
    targets = F.one_hot(torch.randint(0, group, (130, 64 // group)), group).float().flatten(1)
    same(divergence, plain_divergence, layers, x, targets, [weight(130)], kind)


# -------------------------------------------------------------------- both


@pytest.mark.parametrize('width, hidden', [(32, 32), (96, 384), (224, 32)])
def test_heads_of_all_sizes(native, width, hidden):
    x = torch.randn(130, width, requires_grad=True)
    layers, targets = head(33, width, hidden), torch.rand(130, 33).softmax(1)
    same(cross_entropy, plain_cross_entropy, layers, x, targets, [weight(130), weight(130)])
    layers, targets = head(40, width, hidden, group=8), torch.randn(130, 5, 8).softmax(2).flatten(1)
    same(divergence, plain_divergence, layers, x, targets, [weight(130)], GROUPS)


@pytest.mark.parametrize('number', [float('nan'), float('inf')])
@pytest.mark.parametrize('kind', [None, GROUPS, SQUARES], ids=['distribution', 'groups', 'squares'])
def test_what_is_no_number_stays_none(native, kind, number):
    x = torch.randn(130, WIDTH)
    x[[0, 128], [5, 6]] = number
    x.requires_grad_()
    if kind is None:
        results = cross_entropy(head(33), x, torch.rand(130, 33).softmax(1))
    else:
        results = (divergence(head(40, group=8), x, torch.randn(130, 5, 8).softmax(2).flatten(1), kind),)
    for result in results:
        assert result.isfinite().logical_not().nonzero().flatten().tolist() == [0, 128]
        (of_x,) = torch.autograd.grad(result.sum(), x, retain_graph=True)
        assert of_x.isfinite().all(1).logical_not().nonzero().flatten().tolist() == [0, 128]


def test_what_backward_needs_lives_until_then(native):
    layers, x, targets = head(33), torch.randn(130, WIDTH, requires_grad=True), torch.rand(130, 33).softmax(1)
    expected = torch.autograd.grad(cross_entropy(layers, x, targets)[0].sum(), (x, *layers.parameters()))
    losses = cross_entropy(layers, x * 1.0, targets * 1.0)[0].sum()
    overwritten = [torch.full((size,), float('nan')) for size in (130, 130 * 33, 130 * WIDTH, 130 * HIDDEN) * 50]
    found = torch.autograd.grad(losses, (x, *layers.parameters()))
    assert len(overwritten) == 200
    assert all(torch.equal(one, other) for one, other in zip(found, expected))


# -------------------------------------------------------------------- when it is used


def test_it_is_for_heads_of_narrow_models():
    if kernels() is None:
        pytest.skip('there are no kernels here')
    wide = NARROW + -NARROW % native_heads.COLUMNS
    used = {
        'a distribution': (head(33), True),
        'a state': (head(40, group=8), True),
        'wide inside': (head(33, hidden=4 * wide), True),
        'ReLU': (nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 33)), False),
        'exact GELU': (nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 33)), False),
        'another layer behind': (nn.Sequential(*head(33), nn.ReLU()), False),
        'two layers behind': (nn.Sequential(*head(40, group=8), nn.ReLU()), False),
        'a layer less': (head(33)[:2], False),
        'a layer between': (nn.Sequential(*head(33)[:2], nn.Dropout(), nn.Linear(HIDDEN, 33)), False),
        'an odd width': (head(33, width=WIDTH + 16), False),
        'an odd width inside': (head(33, hidden=HIDDEN + 16), False),
        'too wide': (head(33, width=wide), False),
    }
    for layer in (0, 2):
        layers = head(33)
        layers[layer].bias = None
        used[f'no bias of layer {layer}'] = layers, False
    for name, (layers, expected) in used.items():
        assert can_be_used(layers, torch.randn(3, layers[0].in_features)) == expected, name


def test_it_is_for_single_precision():
    layers, x = head(33), torch.randn(3, WIDTH)
    assert can_be_used(layers, x) == (kernels() is not None)
    assert not can_be_used(layers, x.double())
    assert not can_be_used(layers.double(), x)
    assert not can_be_used(layers, x.double())


def test_it_is_for_where_there_are_kernels(monkeypatch):
    monkeypatch.setattr(native_heads, 'kernels_for', lambda *_: None)
    assert not can_be_used(head(33), torch.randn(3, WIDTH))
