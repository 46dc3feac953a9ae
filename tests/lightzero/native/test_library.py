"""The kernels are found where they can be used; where they cannot, torch does their work."""
import ctypes.util
import logging
import platform
import sys

import pytest
import torch
import torch.nn.functional as F
from fakes import logged
from native_libraries import LIBRARIES, loaded

from lzero_async.lightzero.native import VARIABLE, kernels, kernels_for, library


@pytest.fixture(autouse=True)
def found_anew(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    kernels.cache_clear()
    yield
    kernels.cache_clear()


def needs_kernels():
    if kernels() is None:
        pytest.skip('there are no kernels here')


# -------------------------------------------------------------------- whether there are any


@pytest.mark.skipif(
    sys.platform != 'linux' or platform.machine() != 'x86_64'
    or torch.backends.cpu.get_cpu_capability() not in library._MODULES,
    reason='there are no kernels for this machine',
)
def test_they_were_compiled_when_the_package_was_installed():
    """Else all other tests of them would be left out, and nobody would know."""
    assert kernels() is not None, 'none, or compiled from other sources: install the package again'
    assert all(library._path(module) for module in LIBRARIES)


def test_the_kernels_are_looked_for_once(monkeypatch):
    needs_kernels()
    monkeypatch.setenv(VARIABLE, '0')
    assert kernels() is kernels() is not None


@pytest.mark.parametrize('value, used', [('0', False), ('1', True), ('', True)])
def test_the_variable_decides_whether_they_are_used(monkeypatch, value, used):
    needs_kernels()
    kernels.cache_clear()
    monkeypatch.setenv(VARIABLE, value)
    assert (kernels() is not None) == used
    assert (kernels_for(torch.ones(2)) is not None) == used


def test_a_file_that_is_no_library_is_warned_of(monkeypatch, tmp_path, caplog):
    path = tmp_path / 'broken.so'
    path.write_bytes(b'not compiled')
    monkeypatch.setattr(library, '_path', lambda module: str(path))
    assert kernels() is None
    (warning,) = logged(caplog, logging.WARNING)
    assert str(path) in warning


def test_a_library_without_a_kernel_is_warned_of(monkeypatch, caplog):
    path = ctypes.util.find_library('m')
    monkeypatch.setattr(library, '_path', lambda module: path)
    assert kernels() is None
    (warning,) = logged(caplog, logging.WARNING)
    assert path in warning and 'gelu_forward' in warning


@pytest.mark.parametrize('kind', ['DEFAULT', 'AVX512'])
def test_where_none_is_compiled_nobody_is_warned(monkeypatch, tmp_path, caplog, kind):
    monkeypatch.setattr(library, '__file__', str(tmp_path / 'library.py'))
    monkeypatch.setattr(torch.backends.cpu, 'get_cpu_capability', lambda: kind)
    assert kernels() is None
    assert logged(caplog, logging.WARNING) == []


# -------------------------------------------------------------------- for which tensors


@pytest.mark.parametrize('dtype', [torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_other_numbers_are_left_to_torch(dtype):
    needs_kernels()
    assert kernels_for(torch.ones(2)) is kernels()
    assert kernels_for(torch.ones(2, dtype=dtype)) is None
    assert kernels_for(torch.ones(2), torch.ones(2, dtype=dtype)) is None


def test_other_devices_are_left_to_torch():
    needs_kernels()
    assert kernels_for(torch.ones(2, device='meta')) is None
    assert kernels_for(torch.ones(2), torch.ones(2, device='meta')) is None


# -------------------------------------------------------------------- each of the libraries


@pytest.fixture(params=LIBRARIES)
def each(request):
    torch.manual_seed(0)
    return loaded(request.param)


def result_and_gradient(function, x, of_y):
    x = x.clone().requires_grad_()
    y = function(x)
    return y.detach(), torch.autograd.grad(y, x, of_y)[0]


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize('count', [1, 15, 16, 33, 1000])
@pytest.mark.parametrize('size', [0.1, 10.0, 1000.0])
def test_gelu(each, count, size):
    x, of_y = size * torch.randn(count), torch.randn(count)
    y, of_x = torch.empty_like(x), torch.empty_like(x)
    each.gelu_forward(x.data_ptr(), y.data_ptr(), count)
    each.gelu_backward(x.data_ptr(), of_y.data_ptr(), of_x.data_ptr(), count)
    expected, of_expected = result_and_gradient(lambda x: F.gelu(x, approximate='tanh'), x, of_y)
    close(y, expected)
    close(of_x, of_expected)


@pytest.mark.parametrize('groups, group', [(1, 1), (40, 8), (7, 3), (5, 16), (3, 601)])
@pytest.mark.parametrize('size', [0.1, 10.0, 1000.0])
def test_softmax(each, groups, group, size):
    x, of_y = size * torch.randn(groups, group), torch.randn(groups, group)
    y, of_x = torch.empty_like(x), torch.empty_like(x)
    each.softmax_forward(x.data_ptr(), y.data_ptr(), groups, group)
    each.softmax_backward(y.data_ptr(), of_y.data_ptr(), of_x.data_ptr(), groups, group)
    expected, of_expected = result_and_gradient(lambda x: x.softmax(-1), x, of_y)
    close(y, expected)
    close(of_x, of_expected)


@pytest.mark.parametrize('kernel', ['gelu_forward', 'softmax_forward'])
def test_what_is_no_number_stays_none(each, kernel):
    x = torch.randn(4, 8)
    x[1, 3] = float('nan')
    y = torch.empty_like(x)
    getattr(each, kernel)(x.data_ptr(), y.data_ptr(), *((32,) if kernel == 'gelu_forward' else (4, 8)))
    assert y[1, 3].isnan()
    assert y[[0, 2, 3]].isfinite().all()
