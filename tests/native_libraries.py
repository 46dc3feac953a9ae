"""The compiled kernels for each kind of processor that this one can run, whichever of them the package would use."""
import contextlib
import ctypes

import pytest
import torch

from lzero_async.lightzero import native
from lzero_async.lightzero.native import library
from lzero_async.lightzero.replay import exact_linear
from lzero_async.lightzero.updates import lean_ops, native_ops

LIBRARIES = tuple(library._MODULES.values())


def loaded(module):
    """One of LIBRARIES; the test is skipped where there is none or the processor cannot run it."""
    kinds = {'AVX512': ('_avx512', '_avx2'), 'AVX2': ('_avx2',)}
    path, kind = library._path(module), torch.backends.cpu.get_cpu_capability()
    if path is None or module not in kinds.get(kind, ()):
        pytest.skip(f'{module} is not compiled, or cannot be run here ({kind})')
    kernels = ctypes.CDLL(path)
    for name, (result, arguments) in library._SIGNATURES.items():
        function = getattr(kernels, name)
        function.restype, function.argtypes = result, arguments
    return kernels


@contextlib.contextmanager
def without_kernels():
    """As on a processor for which there are none: torch does all of their work, and a call of one fails."""
    caches = lean_ops._is_known, exact_linear._same_bits
    with pytest.MonkeyPatch.context() as patch:
        for module in (library, native, native_ops, lean_ops, exact_linear):  # all that have the name
            patch.setattr(module, 'kernels', lambda: None)
        for cache in caches:
            cache.cache_clear()
        yield
    for cache in caches:
        cache.cache_clear()
