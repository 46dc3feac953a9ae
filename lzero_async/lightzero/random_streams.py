"""A numpy random stream for each role.

LightZero draws from numpy's global functions (`np.random.choice`, `np.random.dirichlet`). With roles in threads they
would all eat from one stream, in an order that depends on timing. While `installed()` lasts, those functions draw from
the stream of the calling thread, if it has one, and from numpy's global one if it has not.
"""
from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any, Dict, Iterator, Optional

import numpy as np

_calling_thread = threading.local()
_install_lock = threading.Lock()
_installs = 0
_originals: Dict[str, Any] = {}


def role_seed(seed: int, role: str) -> int:
    """A seed for `role`, derived from the run's seed; the same on every machine."""
    return int(np.random.SeedSequence([seed, *role.encode()]).generate_state(1)[0])


def role_stream(seed: int, role: str) -> np.random.RandomState:
    return np.random.RandomState(role_seed(seed, role))


def current() -> Optional[np.random.RandomState]:
    """The stream of the calling thread, if it has one."""
    stream: Optional[np.random.RandomState] = getattr(_calling_thread, 'stream', None)
    return stream


@contextlib.contextmanager
def drawing_from(stream: np.random.RandomState) -> Iterator[None]:
    """Let the calling thread draw from `stream`. May be nested: the inner one counts."""
    before = getattr(_calling_thread, 'stream', None)
    _calling_thread.stream = stream
    try:
        yield
    finally:
        _calling_thread.stream = before


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Make numpy's global functions look for the calling thread's stream. May be nested."""
    global _installs
    with _install_lock:
        _installs += 1
        if _installs == 1:
            _install()
    try:
        yield
    finally:
        with _install_lock:
            _installs -= 1
            if _installs == 0:
                for name, original in _originals.items():
                    setattr(np.random, name, original)
                _originals.clear()


def _install() -> None:
    global_stream = np.random.mtrand._rand
    for name in dir(np.random):
        original = getattr(np.random, name)
        if getattr(original, '__self__', None) is global_stream:
            _originals[name] = original
            setattr(np.random, name, _by_thread(name, original))


def _by_thread(name: str, original: Any) -> Any:
    @functools.wraps(original)
    def draw(*args: Any, **kwargs: Any) -> Any:
        stream = current()
        return original(*args, **kwargs) if stream is None else getattr(stream, name)(*args, **kwargs)

    return draw
