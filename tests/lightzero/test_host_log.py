import logging
import pathlib
import sys
import types
import warnings

import ding
import pytest

from lzero_async.lightzero import host_log


def from_host(message):
    """Log as code in the host's folder does."""
    path = str(pathlib.Path(ding.__file__).parent / 'utils' / 'some_file.py')
    namespace = {'logging': logging}
    exec(compile(f'logging.getLogger().info({message!r})', path, 'exec'), namespace)


@pytest.fixture
def users_handler():
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    root = logging.getLogger()
    root.addHandler(handler)
    level = root.level
    root.setLevel(logging.INFO)
    yield records
    root.removeHandler(handler)
    root.setLevel(level)


def test_what_came_before_the_file_is_in_the_file(tmp_path):
    path = tmp_path / 'log' / 'run.log'
    with host_log.captured() as log:
        print('early')
        log.open(str(path))
        print('late')
        print('on stderr', file=sys.stderr)
        warnings.warn('careful', UserWarning, stacklevel=1)
    text = path.read_text()
    assert text.index('early') < text.index('late') < text.index('on stderr') < text.index('UserWarning: careful')


def test_users_handlers_hear_others_but_not_the_host(tmp_path, users_handler):
    path = tmp_path / 'run.log'
    with host_log.captured() as log:
        log.open(str(path))
        from_host('noise of the host')
        logging.getLogger('somebody').info('a word of the user')
    messages = [record.getMessage() for record in users_handler]
    assert messages == ['a word of the user']
    assert 'noise of the host' in path.read_text() and 'a word of the user' in path.read_text()
    from_host('after the run')
    assert users_handler[-1].getMessage() == 'after the run'


def test_everything_is_put_back_after_an_error():
    before = sys.stdout, sys.stderr, list(logging.getLogger().handlers), warnings.showwarning
    with pytest.raises(ZeroDivisionError), host_log.captured():
        logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))
        raise ZeroDivisionError
    assert (sys.stdout, sys.stderr, list(logging.getLogger().handlers), warnings.showwarning) == before
    assert isinstance(before[3], types.FunctionType)
