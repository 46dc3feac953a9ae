"""Finds the compiled kernels that this processor can run.

They are compiled when the package is installed, once for each kind of processor, by any C compiler that is there. A
call of them holds no GIL.
"""
from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import importlib.util
import logging
import os
from typing import Optional

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

VARIABLE = 'LZERO_ASYNC_NATIVE'
"""Set to 0 in the environment, nothing native is used."""

NARROW = 255
"""Models that are not wider have weights that lie in a processor's cache. Wider ones are left to torch and oneDNN."""

COLUMNS = 32
"""Kernels compute so many outputs of a layer side by side, or half as many: widths must be multiples of it."""

_MODULES = {'AVX512': '_avx512', 'AVX2': '_avx2'}
"""What torch calls the kinds of processors, and the library for each."""

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_SIGNATURES = {
    'gelu_forward': (None, [_POINTER] * 2 + [_INT]),
    'gelu_backward': (None, [_POINTER] * 3 + [_INT]),
    'softmax_forward': (None, [_POINTER] * 2 + [_INT] * 2),
    'softmax_backward': (None, [_POINTER] * 3 + [_INT] * 2),
    'add_norm_forward': (None, [_POINTER] * 4 + [_FLOAT] + [_POINTER] * 2 + [_FLOAT] + [_POINTER] * 4 + [_INT] * 2),
    'add_norm_backward': (None, [_POINTER] * 8 + [_FLOAT] + [_POINTER] * 4 + [_INT] * 2),
    'attend_forward': (ctypes.c_int, [_POINTER] * 3 + [_FLOAT] + [_POINTER] * 3 + [_INT] * 4),
    'attend_backward': (ctypes.c_int, [_POINTER] * 3 + [_FLOAT] + [_POINTER] * 4 + [_INT] * 4),
    'expand_trees': (ctypes.c_int, [_POINTER] * 3 + [_INT] + [_POINTER] * 3),
    'transformer_forward': (ctypes.c_int, [_POINTER] * 3),
    'transformer_backward': (ctypes.c_int, [_POINTER] * 4),
    'head_forward': (ctypes.c_int, [_POINTER] * 2),
    'head_backward': (ctypes.c_int, [_POINTER] * 8),
    'exact_linear': (ctypes.c_int, [_POINTER] * 4 + [_INT] * 3),
    'sum_of_squares': (ctypes.c_double, [_POINTER] * 2 + [_INT]),
    'scale': (None, [_POINTER] * 2 + [_INT, _FLOAT]),
    'adamw_step': (None, [_POINTER] * 6 + [_INT] + [ctypes.c_double] * 5),
    'follow': (None, [_POINTER] * 3 + [_INT, ctypes.c_double]),
    'draw_kept': (None, [_POINTER, ctypes.c_uint64, _POINTER, _INT]),
}

Kernels = ctypes.CDLL


@functools.lru_cache(maxsize=None)
def kernels() -> Optional[Kernels]:
    """The kernels for this processor, or None where there are none."""
    if os.environ.get(VARIABLE) == '0':
        return None
    kind = torch.backends.cpu.get_cpu_capability()
    path = _path(_MODULES.get(kind, ''))
    if path is None:
        logger.info('there are no native kernels for this processor (%s) and Python; torch does their work', kind)
        return None
    try:
        library = ctypes.CDLL(path)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:  # compiled for another machine, or from other sources
        logger.warning('the native kernels in %s cannot be used, torch does their work: %s', path, error)
        return None
    return library


def kernels_for(*tensors: Tensor) -> Optional[Kernels]:
    """The kernels if they can work on these tensors."""
    if any(tensor.device.type != 'cpu' or tensor.dtype != torch.float32 for tensor in tensors):
        return None
    return kernels()


def _path(module: str) -> Optional[str]:
    """Where the compiled library is. It is no module that could be imported, but lies where one would."""
    folder = os.path.dirname(__file__)
    candidates = [os.path.join(folder, module + suffix) for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    return next((path for path in candidates if module and os.path.exists(path)), None)
