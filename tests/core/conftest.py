import os
import sys
import threading

import pytest
from fakes import Gate, join_attempts, our_threads
from hypothesis import settings

# Tests do not time: a slow machine is no failure.
settings.register_profile('core', deadline=None, database=None)
settings.load_profile('core')


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test():
    yield
    assert our_threads() == []


@pytest.fixture
def gate():
    """What hangs here is let go at the end at the latest."""
    gate = Gate()
    yield gate
    gate.open()
    join_attempts()


@pytest.fixture
def restless():
    """Threads are switched as often as the interpreter can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def restless_in(restless, monkeypatch):
    """`restless_in(module)`: threads give way to each other after every single instruction of that module."""

    def watch(module):
        def trace(frame, event, arg):
            if frame.f_code.co_filename != module.__file__:
                return None
            frame.f_trace_opcodes = True
            os.sched_yield()
            return trace

        monkeypatch.setattr(threading, '_trace_hook', trace)

    return watch
