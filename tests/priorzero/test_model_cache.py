"""Folders that are made once, whole or not at all, whoever else makes them at the same time."""
import contextlib
import fcntl
import multiprocessing
import os

import pytest

from lzero_async.priorzero import model_cache
from lzero_async.priorzero.model_cache import cache_folder, cached_model


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv('LZERO_ASYNC_CACHE', str(tmp_path / 'cache'))
    return tmp_path / 'cache'


def a_model(folder):
    with open(os.path.join(folder, 'model'), 'w') as file:
        file.write('whole')


def test_where_it_is(monkeypatch, tmp_path):
    assert cache_folder() == str(tmp_path / 'cache')
    monkeypatch.delenv('LZERO_ASYNC_CACHE')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'xdg'))
    assert cache_folder() == str(tmp_path / 'xdg' / 'lzero-async')
    monkeypatch.delenv('XDG_CACHE_HOME')
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    assert cache_folder() == str(tmp_path / 'home' / '.cache' / 'lzero-async')


def test_it_is_made_once(cache):
    folder = cached_model('m', a_model)
    assert folder == str(cache / 'm') and (cache / 'm' / 'model').read_text() == 'whole'

    def never(folder):
        raise AssertionError('it was there')

    assert cached_model('m', never) == folder


def test_a_failure_leaves_nothing_and_the_next_one_succeeds(cache):
    def fails(folder):
        a_model(folder)
        raise OSError('disk full')

    with pytest.raises(OSError, match='disk full'):
        cached_model('m', fails)
    assert [name for name in os.listdir(cache) if not name.endswith('.lock')] == []
    assert os.path.isfile(os.path.join(cached_model('m', a_model), 'model'))


def test_what_a_killed_process_left_is_removed_and_nothing_else(cache):
    for name in ('m.making-dead', 'other.making-alive', 'mm'):
        (cache / name).mkdir(parents=True)
    cached_model('m', a_model)
    assert sorted(name for name in os.listdir(cache) if not name.endswith('.lock')) == ['m', 'mm', 'other.making-alive']


def test_while_it_is_made_every_other_process_waits(cache):
    context = multiprocessing.get_context('fork')

    def tries():
        with open(cache / 'm.lock', 'a+') as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os._exit(7)

    def exit_code_of_another():
        other = context.Process(target=tries)
        other.start()
        other.join(60)
        return other.exitcode

    def make(folder):
        a_model(folder)
        assert exit_code_of_another() == 7

    cached_model('m', make)
    assert exit_code_of_another() == 0


def test_what_came_while_waiting_is_taken(cache, monkeypatch):
    @contextlib.contextmanager
    def another_was_first(path):
        (cache / 'm').mkdir()
        yield

    monkeypatch.setattr(model_cache, '_locked', another_was_first)
    assert cached_model('m', lambda folder: pytest.fail('it was made twice')) == str(cache / 'm')
