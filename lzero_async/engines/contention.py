"""How much threads that call torch hinder each other here."""
from __future__ import annotations

import statistics
import threading
import time

import torch

CALLS = 1500
REPEATS = 3


def gil_contention() -> float:
    """How many times longer a small torch call takes beside a thread that makes such calls, too. About 0.2 s."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return statistics.median(_beside_another() / _seconds() for _ in range(REPEATS))
    finally:
        torch.set_num_threads(before)


def _seconds() -> float:
    """For CALLS calls of the size that a search makes."""
    layer, rows = torch.nn.Linear(64, 64), torch.randn(8, 64)
    with torch.no_grad():
        begun = time.perf_counter()
        for _ in range(CALLS):
            layer(rows)
        return time.perf_counter() - begun


def _beside_another() -> float:
    done = threading.Event()

    def keep_calling() -> None:
        torch.set_num_threads(1)
        while not done.is_set():
            _seconds()

    other = threading.Thread(target=keep_calling, name='lzero-async-contention', daemon=True)
    other.start()
    try:
        return _seconds()
    finally:
        done.set()
        other.join()
