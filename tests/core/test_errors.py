import pytest

from lzero_async.core import errors


@pytest.mark.parametrize('error, base', [
    (errors.ConfigError, ValueError),
    (errors.GateTimeout, TimeoutError),
    (errors.QueueClosed, Exception),
    (errors.Stopped, Exception),
    (errors.RoleFailed, Exception),
])
def test_each_error_is_ours_and_what_python_would_raise(error, base):
    assert issubclass(error, errors.LzeroAsyncError)
    assert issubclass(error, base)


def test_role_failed_says_who_and_why():
    failure = errors.RoleFailed('collector-2', ValueError('no such level'))
    assert failure.role == 'collector-2'
    assert str(failure) == 'the collector-2 failed: ValueError: no such level'
