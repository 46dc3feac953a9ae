"""The native transformer gives what torch gives operation by operation, however many threads there are."""
import types

import pytest
import torch
from lzero.model.unizero_world_models.transformer import Transformer
from native_libraries import LIBRARIES, loaded

from lzero_async.lightzero.native import kernels
from lzero_async.lightzero.updates import lean_ops, lean_transformer, native_ops, native_transformer
from lzero_async.lightzero.updates.tokens import Tokens

CPU = torch.device('cpu')
STEPS = 5
EVEN_AND_UNEVEN = {
    'one pair': [1],
    'one step each': 9 * [1],
    'even': 4 * [STEPS],
    'uneven': [STEPS, 1, 3, 0, STEPS, 2, 4, 1, 1, STEPS, 3],
    'more than are done at once': 20 * [STEPS, 1, 2, 4, 3, 0, STEPS],
}


class Case:
    """A transformer and what goes into it."""

    def __init__(self, lengths, rotary=True, dropout=(0.1, 0.1, 0.1), width=64, heads=4, layers=2):
        torch.manual_seed(0)
        input_rate, attention_rate, output_rate = dropout
        self.transformer = Transformer(types.SimpleNamespace(
            tokens_per_block=2, max_blocks=STEPS, max_tokens=2 * STEPS, num_layers=layers, num_heads=heads,
            embed_dim=width, embed_pdrop=input_rate, resid_pdrop=output_rate, attn_pdrop=attention_rate,
            rope_theta=10000.0, max_seq_len=64, rotary_emb=rotary, gru_gating=False,
        ))
        with torch.no_grad():
            for parameter in self.transformer.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        self.tokens = Tokens.until_last(torch.arange(STEPS) < torch.tensor(lengths)[:, None]).doubled()
        self.x = torch.randn(len(self.tokens.rows), width, requires_grad=True)
        places = torch.randint(0, 64, (len(lengths), 1)) + torch.arange(2 * STEPS)
        self.rotations = self.transformer.freqs_cis[places] if rotary else None
        self.drawn = lean_transformer._draw(self.transformer, (*self.tokens.shape, width), CPU)
        self.weights = torch.randn_like(self.x) / len(self.x) ** 0.5  # so that gradients are of one size

    def results(self, transform):
        """The output, and the gradients of the input and of all parameters."""
        output = transform(self.transformer, self.x, self.tokens, self.rotations, self.drawn)
        names, parameters = zip(*self.transformer.named_parameters())
        found = torch.autograd.grad(output, (self.x, *parameters), self.weights)
        return dict(zip(('output', 'input', *names), (output.detach(), *found)))


@pytest.fixture(params=LIBRARIES)
def native(request, monkeypatch):
    """`native(case)`: the results by the kernels for one kind of processor."""
    library = loaded(request.param)
    monkeypatch.setattr(native_ops, 'kernels', lambda: library)
    return lambda case: case.results(native_transformer.transform)


@pytest.fixture
def plain(monkeypatch):
    """`plain(case)`: the results by torch."""
    for name in ('kernels', 'kernels_for'):
        monkeypatch.setattr(lean_ops, name, lambda *_: None)
    return lambda case: case.results(lean_transformer._transform)


def same(got, expected):
    assert got.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(
            got[name], expected[name], rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f'{name}: {text}'
        )


@pytest.mark.parametrize('lengths', EVEN_AND_UNEVEN.values(), ids=EVEN_AND_UNEVEN.keys())
@pytest.mark.parametrize('rotary', [True, False], ids=['rotary', 'learned positions'])
@pytest.mark.parametrize('rate', [0.1, 0.0])
def test_all_results_are_those_of_torch(native, plain, lengths, rotary, rate):
    case = Case(lengths, rotary, dropout=3 * [rate])
    assert [kept is None for kept in case.drawn] == 7 * [rate == 0]
    same(native(case), plain(case))


@pytest.mark.parametrize('dropout', [(0.5, 0.0, 0.0), (0.0, 0.5, 0.0), (0.0, 0.0, 0.5)])
def test_each_dropout_may_be_there_alone(native, plain, dropout):
    case = Case(EVEN_AND_UNEVEN['uneven'], dropout=dropout)
    same(native(case), plain(case))


@pytest.mark.parametrize('width, heads, layers', [
    (32, 1, 1), (32, 8, 3), (96, 3, 2), (96, 1, 1), (128, 2, 1), (224, 7, 1),
])
def test_models_of_all_sizes(native, plain, width, heads, layers):
    case = Case(EVEN_AND_UNEVEN['uneven'], width=width, heads=heads, layers=layers)
    same(native(case), plain(case))


def test_it_is_what_the_host_computes(native):
    case = Case(4 * [STEPS], rotary=False, dropout=(0.0, 0.0, 0.0))

    def host(transformer, x, tokens, *_):
        return transformer(x.view(*tokens.shape, -1)).flatten(0, 1)

    same(native(case), case.results(host))


@pytest.mark.parametrize('lengths', EVEN_AND_UNEVEN.values(), ids=EVEN_AND_UNEVEN.keys())
def test_results_are_the_same_with_any_number_of_threads(native, lengths):
    case, before = Case(lengths), torch.get_num_threads()

    def by(threads):
        torch.set_num_threads(threads)
        return native(case)

    try:
        alone, *others = [by(threads) for threads in (1, 2, 3, 3, 20)]
    finally:
        torch.set_num_threads(before)
    for other in others:
        assert all(torch.equal(alone[name], other[name]) for name in alone)


def test_the_threads_are_as_many_as_torch_may_use(native, monkeypatch):
    case, before, told = Case([1]), torch.get_num_threads(), []
    job = native_transformer._Transformer
    monkeypatch.setattr(native_transformer, '_Transformer', lambda **all: (told.append(all['threads']), job(**all))[1])
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            native(case)
    finally:
        torch.set_num_threads(before)
    assert told == [1, 2]


def test_what_backward_needs_lives_until_then(native):
    case = Case(EVEN_AND_UNEVEN['uneven'])
    expected = native(case)
    output = native_transformer.transform(
        case.transformer, case.x * 1.0, case.tokens, case.rotations, list(case.drawn)
    )
    case.tokens = case.rotations = case.drawn = None
    overwritten = [torch.full((size,), float('nan')) for size in (10, 1000, 100_000) for _ in range(50)]
    parameters = dict(case.transformer.named_parameters())
    found = torch.autograd.grad(output, parameters.values(), case.weights)
    assert len(overwritten) == 150
    assert all(torch.equal(gradient, expected[name]) for name, gradient in zip(parameters, found))


# -------------------------------------------------------------------- when it is used


@pytest.mark.parametrize('width, heads, used', [
    (64, 4, True), (224, 7, True), (48, 3, False), (16, 2, False), (256, 8, False),
])
def test_it_is_for_narrow_models(width, heads, used):
    if kernels() is None:
        pytest.skip('there are no kernels here')
    case = Case([1], width=width, heads=heads)
    assert native_transformer.can_be_used(case.transformer, case.x) == used


def test_it_is_for_single_precision():
    case = Case([1])
    assert not native_transformer.can_be_used(case.transformer.double(), case.x.double())
    assert not native_transformer.can_be_used(case.transformer, case.x)
