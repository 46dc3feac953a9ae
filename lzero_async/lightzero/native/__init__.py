"""Kernels in C, for what torch does in too many or too small steps on a CPU. Without them torch does it."""
from .library import COLUMNS, NARROW, VARIABLE, Kernels, kernels, kernels_for

__all__ = ['COLUMNS', 'NARROW', 'VARIABLE', 'Kernels', 'kernels', 'kernels_for']
