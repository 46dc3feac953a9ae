"""Memory that torch has freed is kept for the next update, instead of being given back and fetched anew."""
from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_BLOCK = 32 << 20
"""The most that glibc allows; larger ones it always gives back."""
MOST_KEPT = 1 << 30


def keep_freed_memory() -> bool:
    """Of the whole process, from now on; whether its C library can.

    An update allocates and frees the same tens of megabytes each time. By default glibc gives much of it back to the
    system, and each page that is fetched again costs microseconds: 4 ms of an update of CartPole's.
    """
    if not sys.platform.startswith('linux'):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK) and mallopt(M_TRIM_THRESHOLD, MOST_KEPT))
