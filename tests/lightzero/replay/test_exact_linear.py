"""Where linear layers and transformers are done by the exact kernel, their results are torch's to the last bit."""
import types

import pytest
import torch
import torch.nn.functional as F
from lzero.model.unizero_world_models.transformer import Transformer
from native_libraries import LIBRARIES, loaded
from torch import nn

from lzero_async.lightzero.native import NARROW, kernels
from lzero_async.lightzero.replay import exact_linear, exact_transformer
from lzero_async.lightzero.updates import native_ops
from lzero_async.lightzero.updates.lean_world_model import pass_through, rotations_of

ROWS = [1, 7, 8, 160, 2560]
STEPS = 5


@pytest.fixture(autouse=True)
def tried_anew():
    torch.manual_seed(0)
    tried = exact_linear._same_bits
    tried.cache_clear()
    with torch.no_grad():
        yield
    tried.cache_clear()


@pytest.fixture(params=LIBRARIES)
def native(request, monkeypatch):
    library = loaded(request.param)
    monkeypatch.setattr(native_ops, 'kernels', lambda: library)
    if kernels() is None:
        pytest.skip('the kernels are switched off')


def needs_kernels():
    if kernels() is None:
        pytest.skip('there are no kernels here')


def of_many_scales(*shape):
    """From one millionth to a million, so that it is seen in which order they are added."""
    return torch.randn(shape) * 10 ** (12 * torch.rand(shape) - 6)


LAYERS = {
    'of one scale': lambda *shape: torch.randn(shape),
    'small': lambda *shape: 1e-12 * torch.randn(shape),
    'large': lambda *shape: 1e12 * torch.randn(shape),
    'all positive': lambda *shape: torch.rand(shape),
    'each of its own scale': of_many_scales,
    'each row of its own scale': lambda *shape: torch.randn(shape) * of_many_scales(*shape[:-1]).unsqueeze(-1),
    'mostly zeros': lambda *shape: torch.randn(shape) * (torch.rand(shape) < 0.1),
}


# -------------------------------------------------------------------- layers


@pytest.mark.parametrize('rows', ROWS)
@pytest.mark.parametrize('inputs', [4, 64, 128, 129, 256])
@pytest.mark.parametrize('outputs', [32, 64, 256])
def test_where_it_is_exact_the_results_are_those_of_torch(native, rows, inputs, outputs):
    if not exact_linear.is_exact(torch.empty(rows, inputs), torch.empty(outputs, inputs), rows):
        pytest.skip('torch adds in another order here')
    for name, numbers in LAYERS.items():
        x, weight, bias = numbers(rows, inputs), numbers(outputs, inputs), numbers(outputs, 1).flatten()
        assert torch.equal(exact_linear.exact_linear(x, weight, bias), F.linear(x, weight, bias)), name
        ones, none = torch.ones(rows, inputs), torch.zeros(outputs)
        assert torch.equal(exact_linear.exact_linear(ones, weight, none), F.linear(ones, weight, none)), name


@pytest.mark.parametrize('inputs', [4, 64, 128, 129, 256])
@pytest.mark.parametrize('outputs', [32, 64, 256])
def test_rows_do_not_depend_on_how_many_there_are(native, inputs, outputs):
    x, weight, bias = of_many_scales(161, inputs), of_many_scales(outputs, inputs), torch.randn(outputs)
    all_rows = exact_linear.exact_linear(x, weight, bias)
    for rows in ([0], [160], [3, 77], range(7), range(1, 9), range(0, 160, 2), [5, 5, 4]):
        assert torch.equal(exact_linear.exact_linear(x[rows].contiguous(), weight, bias), all_rows[rows])


def test_each_result_is_near_to_that_of_torch(native):
    """Also where its bits are others."""
    for rows, inputs, outputs in ((1, 4, 32), (7, 129, 64), (160, 256, 32), (9, 1000, 96)):
        x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
        torch.testing.assert_close(
            exact_linear.exact_linear(x, weight, bias), F.linear(x, weight, bias), rtol=1e-5, atol=1e-4
        )


def test_all_dimensions_but_the_last_are_rows(native):
    x, weight, bias = torch.randn(4, 3, 2, 64), torch.randn(32, 64), torch.randn(32)
    result = exact_linear.exact_linear(x, weight, bias)
    assert result.shape == (4, 3, 2, 32)
    assert torch.equal(result.view(-1, 32), exact_linear.exact_linear(x.view(-1, 64), weight, bias))


def test_what_is_no_number_stays_none(native):
    x, weight, bias = torch.randn(9, 64), torch.randn(32, 64), torch.randn(32)
    x[[1, 8], [3, 4]] = torch.tensor([float('nan'), float('inf')])
    finite = exact_linear.exact_linear(x, weight, bias).isfinite()
    assert finite.any(1).logical_not().nonzero().flatten().tolist() == [1, 8]
    assert finite[[0, 2, 3, 4, 5, 6, 7]].all()


def test_it_is_tried_for_each_size_and_number_of_threads_but_once(monkeypatch):
    needs_kernels()
    tried, original, before = [], exact_linear.exact_linear, torch.get_num_threads()

    def trying(*given):
        tried.append(given[0].shape)
        return original(*given)

    monkeypatch.setattr(exact_linear, 'exact_linear', trying)
    try:
        for threads in (1, 1, 2):
            torch.set_num_threads(threads)
            for rows in (8, 8, 160):
                exact_linear.is_exact(torch.empty(1, 64), torch.empty(32, 64), rows)
    finally:
        torch.set_num_threads(before)
    assert tried == 2 * [(8, 64), (160, 64)]


@pytest.mark.parametrize('wrong', [
    lambda y: y + 1e-7,
    lambda y: y * (1 + 2e-7),
    lambda y: y.index_put((torch.tensor(5), torch.tensor(3)), torch.nextafter(y[5, 3], torch.tensor(9e9))),
    lambda y: y.index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(float('nan'))),
], ids=['a little more', 'a little larger', 'one bit', 'no number'])
def test_a_kernel_that_is_a_little_wrong_is_noticed(monkeypatch, wrong):
    needs_kernels()
    monkeypatch.setattr(exact_linear, 'exact_linear', F.linear)
    assert exact_linear._same_bits(160, 64, 32, 1)
    exact_linear._same_bits.cache_clear()
    monkeypatch.setattr(exact_linear, 'exact_linear', lambda *given: wrong(F.linear(*given)))
    assert not exact_linear._same_bits(160, 64, 32, 1)
    assert not exact_linear.is_exact(torch.empty(160, 64), torch.empty(32, 64), 160)


def test_it_is_for_layers_that_the_kernel_can_do(monkeypatch):
    needs_kernels()
    monkeypatch.setattr(exact_linear, '_same_bits', lambda *_: True)

    def is_exact(inputs, outputs, of_x=torch.float32, of_weight=torch.float32):
        x, weight = torch.empty(8, inputs, dtype=of_x), torch.empty(outputs, inputs, dtype=of_weight)
        return exact_linear.is_exact(x, weight, 8)

    assert is_exact(64, 32) and is_exact(1, 32) and is_exact(4 * NARROW, 96)
    assert not any(is_exact(64, outputs) for outputs in (1, 16, 31, 33, 48, 100))
    assert not is_exact(4 * NARROW + 1, 32)
    assert not is_exact(64, 32, torch.float64, torch.float64)
    assert not is_exact(64, 32, of_x=torch.float64)
    assert not is_exact(64, 32, of_weight=torch.float64)


@pytest.mark.parametrize('name', ['kernels', 'kernels_for'])
def test_without_kernels_nothing_is_exact(monkeypatch, name):
    monkeypatch.setattr(exact_linear, name, lambda *_: None)
    assert not exact_linear.is_exact(torch.empty(8, 64), torch.empty(32, 64), 8)


# -------------------------------------------------------------------- transformers


def transformer(rotary=True, width=64, heads=4, layers=2):
    """Not in training, but with dropout that would be seen."""
    made = Transformer(types.SimpleNamespace(
        tokens_per_block=2, max_blocks=STEPS, max_tokens=2 * STEPS, num_layers=layers, num_heads=heads,
        embed_dim=width, embed_pdrop=0.5, resid_pdrop=0.5, attn_pdrop=0.5, rope_theta=10000.0, max_seq_len=64,
        rotary_emb=rotary, gru_gating=False,
    ))
    for parameter in made.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return made.eval()


@pytest.mark.parametrize('rotary', [True, False], ids=['rotary', 'learned positions'])
@pytest.mark.parametrize('count, length', [(1, 2), (3, 2 * STEPS), (16, 2 * STEPS), (256, 2 * STEPS), (7, 6)])
@pytest.mark.parametrize('threads', [1, 2])
def test_a_transformer_gives_its_numbers_for_observations(native, rotary, count, length, threads):
    made, before = transformer(rotary), torch.get_num_threads()
    sequences, positions = torch.randn(count, length, 64), torch.randint(0, 1000, (count,))
    torch.set_num_threads(threads)
    try:
        if not exact_transformer.can_be_used(made, sequences):
            pytest.skip('torch adds in another order here')
        ours = exact_transformer.observations_through(made, sequences, rotations_of(made, sequences, positions))
        theirs = pass_through(made, sequences, positions)
    finally:
        torch.set_num_threads(before)
    assert ours.shape == (count, length // 2, 64)
    assert torch.equal(ours, theirs[:, ::2])


@pytest.mark.parametrize('width, heads, layers', [(32, 1, 1), (32, 2, 3), (96, 3, 1), (128, 2, 2), (224, 7, 1)])
def test_transformers_of_all_sizes(native, width, heads, layers):
    made = transformer(width=width, heads=heads, layers=layers)
    sequences, positions = torch.randn(32, 2 * STEPS, width), torch.randint(0, 1000, (32,))
    if not exact_transformer.can_be_used(made, sequences):
        pytest.skip('torch adds in another order here')
    ours = exact_transformer.observations_through(made, sequences, rotations_of(made, sequences, positions))
    assert torch.equal(ours, pass_through(made, sequences, positions)[:, ::2])


def test_memory_may_be_in_any_order(native):
    made, turned = transformer(), torch.randn(2 * STEPS, 16, 64)
    sequences, positions = turned.transpose(0, 1), torch.randint(0, 1000, (16,))
    if not exact_transformer.can_be_used(made, sequences):
        pytest.skip('torch adds in another order here')
    ours = exact_transformer.observations_through(made, sequences, rotations_of(made, sequences, positions))
    assert torch.equal(ours, pass_through(made, sequences, positions)[:, ::2])


class TestWhetherItCanBeUsed:
    @pytest.fixture(autouse=True)
    def as_if_exact(self, monkeypatch):
        needs_kernels()
        monkeypatch.setattr(exact_linear, '_same_bits', lambda *_: True)
        self.transformer = transformer()

    def can_be_used(self, dtype=torch.float32):
        return exact_transformer.can_be_used(self.transformer, torch.empty(3, 2 * STEPS, 64, dtype=dtype))

    def test_not_in_training(self):
        assert self.can_be_used()
        self.transformer.train()
        assert not self.can_be_used()
        self.transformer.eval()
        assert self.can_be_used()

    def test_not_where_others_look_on(self):
        for module in (self.transformer, self.transformer.ln_f, self.transformer.blocks[1].attn.key):
            for hooked in (module.register_forward_hook, module.register_forward_pre_hook):
                hook = hooked(lambda *_: None)
                assert not self.can_be_used()
                hook.remove()
        assert self.can_be_used()

    def test_not_with_other_blocks(self):
        block = self.transformer.blocks[1]
        for module in (block, block.attn):
            kind = type(module)
            module.__class__ = type('Own', (kind,), {})
            assert not self.can_be_used()
            module.__class__ = kind
        assert self.can_be_used()
        block.gru_gating = True
        assert not self.can_be_used()

    @pytest.mark.parametrize('mlp', [
        lambda wide, gelu, narrow, dropout: (wide, nn.ReLU(), narrow, dropout),
        lambda wide, gelu, narrow, dropout: (wide, gelu, narrow),
        lambda wide, gelu, narrow, dropout: (wide, gelu, narrow, dropout, nn.LayerNorm(64)),
        lambda wide, gelu, narrow, dropout: (wide, gelu, nn.Linear(256, 64, bias=False), dropout),
    ], ids=['ReLU', 'a layer less', 'a layer more', 'no bias'])
    def test_not_with_another_mlp(self, mlp):
        block = self.transformer.blocks[1]
        block.mlp = nn.Sequential(*mlp(*block.mlp)).eval()
        assert not self.can_be_used()

    def test_not_with_other_numbers(self):
        assert not self.can_be_used(torch.float64)
        self.transformer.double()
        assert not self.can_be_used(torch.float64)
        assert not self.can_be_used()

    def test_not_with_an_odd_width(self):
        self.transformer = transformer(width=48)
        assert not exact_transformer.can_be_used(self.transformer, torch.empty(3, 2 * STEPS, 48))

    def test_not_where_the_bits_are_others(self, monkeypatch):
        monkeypatch.setattr(exact_linear, '_same_bits', lambda *_: False)
        assert not self.can_be_used()

    def test_not_where_the_bits_of_one_layer_are_others(self, monkeypatch):
        asked = []
        monkeypatch.setattr(exact_linear, '_same_bits', lambda *sizes: (asked.append(sizes), sizes[1] != 256)[1])
        assert not self.can_be_used()
        assert {sizes[0] for sizes in asked} == {3 * 2 * STEPS}, 'the number of rows that torch would have'

    def test_not_without_kernels(self, monkeypatch):
        monkeypatch.setattr(exact_linear, 'kernels_for', lambda *_: None)
        assert not self.can_be_used()
