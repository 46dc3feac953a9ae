"""Weights of torch modules: copied, checked, placed, loaded whole; and the order of steps on a GPU."""
import contextlib

import pytest
import torch

import lzero_async
from lzero_async import torch_weights
from lzero_async.core import param_sync
from lzero_async.torch_weights import HostCopy, TorchWeights


@pytest.fixture
def ops():
    return TorchWeights()


def network(fill=None):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    if fill is not None:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(fill)
    return module


def test_the_exported_class_is_for_torch_and_has_three_names():
    exported = lzero_async.ParameterSynchronizer
    assert exported is lzero_async.UnifiedParameterSynchronizer is lzero_async.AsyncParameterSynchronizer
    assert issubclass(exported, param_sync.ParameterSynchronizer)
    with pytest.raises(AttributeError, match='NoSuchName'):
        lzero_async.NoSuchName  # noqa: B018


def test_a_copy_does_not_follow_its_module(ops):
    module = network(1.0)
    weights = ops.read(module)
    network_after = network(2.0)
    module.load_state_dict(network_after.state_dict())
    assert weights['0.weight'].eq(1.0).all() and not weights['0.weight'].requires_grad
    assert ops.is_settled(weights)


def test_names_are_those_of_the_plain_module(ops):
    module = network()
    weights = ops.read(torch.compile(module))
    assert weights.keys() == module.state_dict().keys()
    other = torch.compile(network())
    ops.load(other, weights, 1)
    assert torch.equal(other.state_dict()['_orig_mod.0.weight'], weights['0.weight'])


@pytest.mark.parametrize('value', [float('nan'), float('inf'), -float('inf')])
@pytest.mark.parametrize('name', ['0.bias', '1.running_mean', '2.weight'])
def test_non_finite_weights_are_named(ops, name, value):
    weights = ops.read(network())
    assert ops.first_non_finite(weights) is None
    weights[name].view(-1)[-1] = value
    assert ops.first_non_finite(weights) == name


def test_integers_and_nested_weights(ops):
    import numpy as np

    heads = [{'w': torch.ones(2)}, {'w': np.array([1.0, np.inf])}]
    weights = {'heads': heads, 'steps': torch.tensor(3), 'note': 'text'}
    assert ops.first_non_finite(weights) == 'heads[1].w'
    assert [info.name for info in ops.describe(weights)] == ['heads[0].w', 'heads[1].w', 'steps', 'note']


def test_a_load_is_whole_or_not_at_all(ops):
    target, weights = network(1.0), ops.read(network(2.0))
    ops.load(target, weights, 1)
    assert all(parameter.eq(2.0).all() for parameter in target.parameters())
    for change in (
        lambda w: w.pop('2.bias'),
        lambda w: w.update(extra=torch.ones(1)),
        lambda w: w.update({'2.bias': torch.ones(5)}),
    ):
        bad = ops.read(network(3.0))
        change(bad)
        with pytest.raises(ValueError, match=r'2.bias|extra'):
            ops.load(target, bad, 2)
        assert all(parameter.eq(2.0).all() for parameter in target.parameters())


def test_weights_on_the_right_device_are_not_copied(ops):
    weights = ops.read(network())
    assert ops.copy_to(weights, ops.device_of(network())) is weights
    elsewhere = ops.copy_to(weights, 'meta')
    assert all(tensor.device.type == 'meta' for tensor in elsewhere.values())


def test_info(ops):
    info = ops.describe(ops.read(network()))
    assert info[0] == ('0.weight', (4, 3), 'torch.float32')


def test_objects_with_weights_of_tensors():
    class Worker:
        device = 'cpu'

        def get_weights(self):
            return {'w': torch.full((3,), 5.0)}

        def load_weights(self, weights, policy_version):
            self.loaded = policy_version, weights['w'].clone()

    synchronizer = lzero_async.ParameterSynchronizer({'max_sync_retries': 0}, Worker(), target := Worker())
    assert synchronizer.sync_to_rollouter(3)
    version, tensor = target.loaded
    assert version == 3 and tensor.eq(5.0).all()
    assert synchronizer.get_weights_info() == [('w', (3,), 'torch.float32')]


# -------------------------------------------------------------------- CUDA, as far as it can be tested without


class CudaTensor(torch.Tensor):
    """A tensor on the CPU that says it is on a GPU."""

    is_cuda = True
    log: list = []  # noqa: RUF012  one list for the test

    def clone(self, *args, **kwargs):
        self.log.append('clone on the device')
        return super().clone(*args, **kwargs)

    def record_stream(self, stream):
        self.log.append('keep for the side stream')


class FakeCuda:
    def __init__(self, log):
        self.log = log
        self.done = False

    def Stream(self, device):
        self.log.append('new side stream')
        return FakeStream(self.log)

    def current_stream(self, device):
        return 'the learner\'s stream'

    @contextlib.contextmanager
    def stream(self, stream):
        self.log.append('on the side stream')
        yield
        self.log.append('off the side stream')

    def Event(self):
        return FakeEvent(self)


class FakeStream:
    def __init__(self, log):
        self.log = log

    def wait_stream(self, other):
        self.log.append(f'side stream waits for {other}')


class FakeEvent:
    def __init__(self, cuda):
        self.cuda = cuda

    def record(self, stream):
        self.cuda.log.append('event')

    def query(self):
        return self.cuda.done

    def synchronize(self):
        self.cuda.log.append('wait')
        self.cuda.done = True


class CudaModule:
    def __init__(self):
        self.tensor = torch.ones(4).as_subclass(CudaTensor)

    def state_dict(self):
        return {'w': self.tensor}


def test_a_gpu_learner_waits_for_the_copy_on_its_device_only(monkeypatch):
    log = CudaTensor.log = []
    cuda = FakeCuda(log)

    def pinned_like(tensor):
        log.append('pinned memory')
        return torch.empty(tensor.shape)

    monkeypatch.setattr(torch_weights, '_pinned_like', pinned_like)
    ops = TorchWeights(cuda)
    module = CudaModule()
    weights = ops.read(module)
    assert isinstance(weights, HostCopy) and not ops.is_settled(weights)
    assert log == [
        'clone on the device', 'new side stream', 'side stream waits for the learner\'s stream', 'on the side stream',
        'pinned memory', 'keep for the side stream', 'event', 'off the side stream',
    ]
    synchronizer = lzero_async.ParameterSynchronizer(weight_ops=ops)
    log.clear()
    assert synchronizer.publish(param_sync.WeightSnapshot(1, 0, weights))
    assert log == [] and synchronizer.get_current_version() == 0
    assert synchronizer.latest().weights['w'].eq(1.0).all()
    assert log == ['wait'] and synchronizer.get_current_version() == 1
    log.clear()
    ops.read(module)
    assert 'new side stream' not in log
