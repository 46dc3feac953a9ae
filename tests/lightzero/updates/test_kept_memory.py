"""Whether freed memory can be kept is up to the system; asking never fails."""
import sys

from lzero_async.lightzero.updates import kept_memory


def test_it_is_kept_once_or_twice():
    assert kept_memory.keep_freed_memory() == kept_memory.keep_freed_memory()


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, 'platform', 'darwin')
    assert kept_memory.keep_freed_memory() is False


def test_a_c_library_without_it_is_left_alone(monkeypatch):
    monkeypatch.setattr(sys, 'platform', 'linux')
    monkeypatch.setattr(kept_memory.ctypes, 'CDLL', lambda name: object())
    assert kept_memory.keep_freed_memory() is False
