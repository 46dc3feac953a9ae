"""The compiled kernels for each kind of processor that this one can run, whichever of them the package would use."""
import ctypes

import pytest
import torch

from lzero_async.lightzero.native import library

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
