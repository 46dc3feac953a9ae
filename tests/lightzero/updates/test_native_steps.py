"""What is done natively with all parameters at once is what torch does with them."""
import copy

import pytest
import torch
from native_libraries import LIBRARIES, loaded

from lzero_async.lightzero.native import kernels
from lzero_async.lightzero.updates import native_ops, native_steps
from lzero_async.lightzero.updates.native_steps import NativeAdamW, use_native_steps

SHAPES = [(), (1,), (7,), (16, 3), (0,), (64, 64), (4097,), (3, 5, 2), (9000,)]
NAN, INFINITY = float('nan'), float('inf')


@pytest.fixture(params=LIBRARIES)
def native(request, monkeypatch):
    library = loaded(request.param)
    monkeypatch.setattr(native_ops, 'kernels', lambda: library)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def needs_kernels():
    if kernels() is None:
        pytest.skip('there are no kernels here')


def tensors(scale=1.0):
    return [scale * torch.randn(shape) for shape in SHAPES]


# -------------------------------------------------------------------- norms


def clipped(gradients, most):
    """The norm before and the gradients after, by torch."""
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters, most)
    return norm, [parameter.grad for parameter in parameters]


@pytest.mark.parametrize('scale', [1e-12, 1e-3, 1.0, 1e6, 1e12])
def test_norm(native, scale):
    gradients = tensors(scale)
    expected = torch.cat([gradient.double().flatten() for gradient in gradients]).norm()
    assert native_steps.norm(gradients) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize('most', [1e-3, 0.5, 20.0, 1e6])
def test_clip(native, most):
    gradients = tensors()
    before = copy.deepcopy(gradients)
    norm, expected = clipped(gradients, most)
    assert native_steps.clip(gradients, most) == pytest.approx(float(norm), rel=1e-6)
    torch.testing.assert_close(gradients, expected, rtol=1e-6, atol=0)
    unchanged = all(torch.equal(one, other) for one, other in zip(gradients, before))
    assert unchanged == (most > norm)


def test_clip_of_zeros(native):
    gradients = [torch.zeros(shape) for shape in SHAPES]
    assert native_steps.clip(gradients, 1.0) == 0.0
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize('number', [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize('where', [0, 3, 8])
def test_clip_of_what_is_not_finite(native, number, where):
    gradients = tensors()
    gradients[where].view(-1)[-1] = number
    norm, expected = clipped(gradients, 1.0)
    found = native_steps.clip(gradients, 1.0)
    assert found == pytest.approx(float(norm), nan_ok=True)
    torch.testing.assert_close(gradients, expected, rtol=0, atol=0, equal_nan=True)


# -------------------------------------------------------------------- the target


@pytest.mark.parametrize('theta', [0.0, 0.005, 0.01, 0.05, 1 / 3, 0.5, 1.0])
@pytest.mark.parametrize('scale', [1e-6, 1.0, 1e6])
def test_targets_follow_to_the_last_bit(native, theta, scale):
    targets, learned = tensors(), tensors(scale)
    expected, given = copy.deepcopy(targets), copy.deepcopy(learned)
    for _ in range(5):
        native_steps.follow(targets, learned, theta)
        torch._foreach_mul_(expected, 1 - theta)
        torch._foreach_add_(expected, torch._foreach_mul(learned, theta))
    assert all(torch.equal(one, other) for one, other in zip(targets, expected))
    assert all(torch.equal(one, other) for one, other in zip(learned, given))


# -------------------------------------------------------------------- AdamW


class Training:
    """Parameters in two groups, with the same gradients each time."""

    STEPS = 50
    LATE, NEVER = 2, 3
    """The numbers of two parameters: one has gradients in the second half alone, the other has none."""

    def __init__(self, **settings):
        torch.manual_seed(1)
        self.parameters = [torch.nn.Parameter(tensor) for tensor in tensors()]
        self.optimizer = torch.optim.AdamW([
            {'params': self.parameters[:5], 'weight_decay': 0.1},
            {'params': self.parameters[5:], 'weight_decay': 0.0},
        ], **{'lr': 1e-2, 'betas': (0.9, 0.95), 'eps': 1e-8, **settings})

    def natively(self):
        assert use_native_steps(self.optimizer)
        assert type(self.optimizer) is NativeAdamW
        return self

    def set_gradients(self, step):
        drawn = torch.Generator().manual_seed(step)
        for number, parameter in enumerate(self.parameters):
            gradient = torch.randn(parameter.shape, generator=drawn) * self.scale(number)
            absent = number == self.NEVER or (number == self.LATE and step < self.STEPS // 2)
            parameter.grad = None if absent else gradient

    def run(self, begin=0, end=STEPS):
        for step in range(begin, end):
            self.set_gradients(step)
            if step == self.STEPS // 3:
                for group in self.optimizer.param_groups:
                    group['lr'] = 3e-3
            self.optimizer.step()
        return self

    @staticmethod
    def scale(number):
        """Of the gradients of one parameter."""
        return 10.0 ** (number - 5)

    def state(self):
        """The steps of each parameter, and its means as if all gradients were of one scale."""
        kept = {number: self.optimizer.state.get(parameter) for number, parameter in enumerate(self.parameters)}
        found = {}
        for number, state in kept.items():
            if state:
                scale = self.scale(number)
                found[number] = state['step'], state['exp_avg'] / scale, state['exp_avg_sq'] / scale ** 2
        return found


def alike(one, other):
    torch.testing.assert_close(one.parameters, other.parameters, rtol=1e-5, atol=1e-7)
    ours, theirs = one.state(), other.state()
    assert ours.keys() == theirs.keys()
    for number in ours:
        assert torch.equal(ours[number][0], theirs[number][0])
        torch.testing.assert_close(ours[number][1:], theirs[number][1:], rtol=1e-5, atol=1e-7)


def equal(one, other):
    """To the last bit."""
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(one.parameters, other.parameters))


@pytest.mark.parametrize('settings', [
    {}, {'lr': 1e-4, 'betas': (0.9, 0.999)}, {'eps': 1e-3}, {'betas': (0.0, 0.5)}, {'lr': 0.0},
], ids=str)
def test_steps_are_those_of_torch(native, settings):
    begun, native_one, plain = Training(**settings), Training(**settings).natively(), Training(**settings)
    alike(native_one.run(), plain.run())
    assert Training.NEVER not in native_one.state()
    assert float(native_one.state()[Training.LATE][0]) == Training.STEPS // 2
    equal_to_begun = [torch.equal(*pair) for pair in zip(begun.parameters, native_one.parameters)]
    if settings != {'lr': 0.0}:  # but for the one that is empty and the one without gradients
        assert [shape for shape, same in zip(SHAPES, equal_to_begun) if same] == [SHAPES[Training.NEVER], (0,)]


def test_it_becomes_native_in_the_middle_of_training(native):
    alike(Training().run(0, 20).natively().run(20), Training().run())


def test_gradients_may_lie_in_any_order(native):
    one, other = Training().natively(), Training().natively()
    for training in (one, other):
        training.set_gradients(0)
    one.parameters[5].grad = one.parameters[5].grad.t().contiguous().t()
    assert not one.parameters[5].grad.is_contiguous()
    for training in (one, other):
        training.optimizer.step()
    equal(one, other)


def test_a_step_without_any_gradient_changes_nothing(native):
    training, begun = Training().natively(), Training()
    training.optimizer.zero_grad()
    training.optimizer.step()
    equal(training, begun)
    assert not training.state()


def test_what_is_no_number_is_seen_in_the_parameters(native):
    training = Training().natively()
    training.set_gradients(0)
    training.parameters[5].grad[3, 4] = NAN
    training.optimizer.step()
    assert training.parameters[5].isnan().nonzero().tolist() == [[3, 4]]


def test_hooks_are_called_once_for_each_step(native):
    training, called = Training(), []
    optimizer = training.optimizer
    optimizer.register_step_pre_hook(lambda *_: called.append(('before', training.parameters[1].item())))
    training.natively()
    optimizer.register_step_post_hook(lambda *_: called.append(('after', training.parameters[1].item())))
    for step in range(3):
        called.clear()
        training.run(step, step + 1)
        (first, before), (second, after) = called
        assert (first, second) == ('before', 'after')
        assert before != after == training.parameters[1].item()


def test_a_hook_that_raises_prevents_the_step(native):
    training, begun = Training().natively(), Training()

    def refuse(*_):
        raise ValueError('a bad gradient')

    training.optimizer.register_step_pre_hook(refuse)
    with pytest.raises(ValueError, match='a bad gradient'):
        training.run(0, 1)
    equal(training, begun)
    assert not training.state()


@pytest.mark.parametrize('of_native', [True, False])
def test_what_is_saved_may_be_loaded_by_the_other(native, of_native):
    trainings = Training().natively(), Training()
    source, other = trainings if of_native else trainings[::-1]
    source.run(0, 30)
    saved = copy.deepcopy(source.optimizer.state_dict())
    with torch.no_grad():
        for to, from_ in zip(other.parameters, source.parameters):
            to.copy_(from_)
    other.optimizer.load_state_dict(saved)
    assert type(other.optimizer) is (torch.optim.AdamW if of_native else NativeAdamW)
    alike(other, source)
    alike(other.run(30), source.run(30))
    alike(other, Training().run())


def test_what_is_saved_looks_like_torchs(native):
    ours, theirs = Training().natively().run().optimizer.state_dict(), Training().run().optimizer.state_dict()
    assert ours['param_groups'] == theirs['param_groups']
    assert ours['state'].keys() == theirs['state'].keys()
    for number, state in theirs['state'].items():
        assert [(name, value.dtype, value.shape) for name, value in ours['state'][number].items()] == [
            (name, value.dtype, value.shape) for name, value in state.items()
        ]


def test_it_goes_on_from_its_own_state_to_the_last_bit(native):
    source, other = Training().natively().run(0, 30), Training().natively()
    with torch.no_grad():
        for to, from_ in zip(other.parameters, source.parameters):
            to.copy_(from_)
    other.optimizer.load_state_dict(copy.deepcopy(source.optimizer.state_dict()))
    equal(other.run(30), source.run(30))


def test_a_copy_is_native_and_goes_on_alone(native):
    training = Training().natively().run(0, 30)
    before, copied = copy.deepcopy(training.parameters), copy.deepcopy(training)
    assert type(copied.optimizer) is NativeAdamW
    called = []
    copied.optimizer.register_step_pre_hook(lambda *_: called.append(1))
    copied.run(30)
    assert len(called) == Training.STEPS - 30
    assert all(torch.equal(one, other) for one, other in zip(training.parameters, before))
    equal(training.run(30), copied)


def test_torchs_own_class_stays_as_it_was(native):
    step = torch.optim.AdamW.step
    Training().natively().run(0, 2)
    assert torch.optim.AdamW.step is step
    assert NativeAdamW.step is not step


# -------------------------------------------------------------------- when it is used


def of(optimizer, *args, dtype=torch.float32, **settings):
    return optimizer([torch.nn.Parameter(torch.zeros(3, 2, dtype=dtype))], *args, **settings)


def test_it_is_for_plain_optimizers():
    needs_kernels()
    assert use_native_steps(of(torch.optim.AdamW))


@pytest.mark.parametrize('make', [
    lambda: of(torch.optim.AdamW, amsgrad=True),
    lambda: of(torch.optim.AdamW, maximize=True),
    lambda: of(torch.optim.AdamW, capturable=True),
    lambda: of(torch.optim.AdamW, differentiable=True),
    lambda: of(torch.optim.AdamW, lr=torch.tensor(0.1), foreach=False),
    lambda: of(torch.optim.Adam),
    lambda: of(torch.optim.SGD, lr=0.1),
    lambda: of(torch.optim.RMSprop),
    lambda: of(type('Own', (torch.optim.AdamW,), {})),
    lambda: of(torch.optim.AdamW, dtype=torch.float64),
    lambda: of(torch.optim.AdamW, dtype=torch.bfloat16),
    lambda: torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3, 2).t())]),
    lambda: torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3, device='meta'))]),
    lambda: torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3).to(dtype)) for dtype in (torch.float, torch.double)]),
], ids=[
    'amsgrad', 'maximize', 'capturable', 'differentiable', 'a tensor as the rate', 'Adam', 'SGD', 'RMSprop',
    'a subclass', 'double', 'bfloat16', 'turned', 'another device', 'one of them double',
])
def test_other_optimizers_stay_as_they_are(make):
    optimizer = make()
    kind = type(optimizer)
    assert use_native_steps(optimizer) is False
    assert type(optimizer) is kind


def test_one_group_that_is_not_plain_is_enough():
    plain, other = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    assert not use_native_steps(torch.optim.AdamW([{'params': [plain]}, {'params': [other], 'amsgrad': True}]))


def test_an_optimizer_with_a_scheduler_stays_as_it_is():
    """The scheduler counts the steps of the one that it was made for."""
    optimizer = of(torch.optim.AdamW)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)
    assert use_native_steps(optimizer) is False
    assert type(optimizer) is torch.optim.AdamW


def test_a_scheduler_may_come_afterwards(native):
    def run(training):
        scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 10, gamma=0.5)
        for step in range(30):
            training.set_gradients(step)
            training.optimizer.step()
            scheduler.step()
        return training

    alike(run(Training().natively()), run(Training()))


def test_without_kernels_torch_makes_the_steps(monkeypatch):
    monkeypatch.setattr(native_steps, 'kernels_for', lambda *_: None)
    optimizer = of(torch.optim.AdamW)
    assert use_native_steps(optimizer) is False
    assert type(optimizer) is torch.optim.AdamW
    assert not native_steps.can_be_used([torch.zeros(3)])


def test_it_is_for_whole_tensors_of_single_precision():
    needs_kernels()
    assert native_steps.can_be_used([torch.zeros(3), torch.zeros(2, 2)])
    assert not native_steps.can_be_used([])
    assert not native_steps.can_be_used([torch.zeros(3), torch.zeros(3, dtype=torch.float64)])
    assert not native_steps.can_be_used([torch.zeros(3), torch.zeros(3, 2).t()])


def test_torch_knows_what_was_changed(native):
    parameter, other = (torch.nn.Parameter(torch.randn(8)) for _ in range(2))
    optimizer = torch.optim.AdamW([parameter])
    assert use_native_steps(optimizer)
    parameter.grad = 10 * torch.ones(8)
    before = [tensor._version for tensor in (parameter, parameter.grad, other)]
    native_steps.clip([parameter.grad], 1.0)
    optimizer.step()
    native_steps.follow([other], [parameter], 0.1)
    assert all(tensor._version > version for tensor, version in zip((parameter, parameter.grad, other), before))
