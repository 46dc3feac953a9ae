import pickle

import pytest

from lzero_async.core import errors


@pytest.mark.parametrize('error, base', [
    (errors.ConfigError, ValueError),
    (errors.GateTimeout, TimeoutError),
    (errors.QueueClosed, Exception),
    (errors.Stopped, Exception),
    (errors.RoleFailed, Exception),
    (errors.RemoteError, Exception),
    (errors.WorkerLost, Exception),
    (errors.RestartsExhausted, Exception),
])
def test_each_error_is_ours_and_what_python_would_raise(error, base):
    assert issubclass(error, errors.LzeroAsyncError)
    assert issubclass(error, base)


def test_role_failed_says_who_and_why():
    failure = errors.RoleFailed('collector-2', ValueError('no such level'))
    assert failure.role == 'collector-2'
    assert str(failure) == 'the collector-2 failed: ValueError: no such level'
    assert isinstance(failure.__cause__, ValueError)


def copy_of(error):
    return pickle.loads(pickle.dumps(error))


def test_role_failed_can_be_sent_to_another_process():
    failure = copy_of(errors.RoleFailed('collector-2', ValueError('no such level')))
    assert (type(failure), failure.role) == (errors.RoleFailed, 'collector-2')
    assert str(failure) == 'the collector-2 failed: ValueError: no such level'
    assert (type(failure.__cause__), str(failure.__cause__)) == (ValueError, 'no such level')


def test_role_failed_inside_role_failed_can_be_sent():
    inner = errors.RoleFailed('collector-2', errors.RestartsExhausted('lost too often'))
    failure = copy_of(errors.RoleFailed('run', inner))
    assert str(failure) == str(errors.RoleFailed('run', inner))
    assert (failure.__cause__.role, str(failure.__cause__.__cause__)) == ('collector-2', 'lost too often')


@pytest.mark.parametrize('kind', [
    errors.ConfigError, errors.WorkerLost, errors.RestartsExhausted, errors.RemoteError, errors.Stopped,
    errors.SyncTimeout,
])
def test_what_a_worker_raises_can_be_sent(kind):
    error = copy_of(kind('said so'))
    assert (type(error), str(error)) == (kind, 'said so')
