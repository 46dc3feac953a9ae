import fractions
import threading
import types

import numpy as np
import pytest

from lzero_async.core.checks import amounts, boolean, choice, device, integer, number, optional, text
from lzero_async.core.config import AsyncConfig
from lzero_async.core.errors import ConfigError


def refused(check, value):
    with pytest.raises(ConfigError) as refusal:
        check('field', value)
    return str(refusal.value)


@pytest.mark.parametrize('value', [-1, 0, 3, np.int64(7), np.uint8(2)])
def test_integer_accepts_and_returns_an_int(value):
    checked = integer(-1)('field', value)
    assert checked == value
    assert type(checked) is int


@pytest.mark.parametrize('value, message', [
    (True, 'field must be an int >= 0, got True'),
    (1.0, 'field must be an int >= 0, got 1.0'),
    ('2', "field must be an int >= 0, got '2'"),
    (None, 'field must be an int >= 0, got None'),
    (np.bool_(True), f'field must be an int >= 0, got {np.bool_(True)!r}'),
    (-1, 'field must be >= 0, got -1'),
])
def test_integer_refuses(value, message):
    assert refused(integer(0), value) == message


@pytest.mark.parametrize('value', [0, 0.0, 2, 1e-9, np.float32(0.5), fractions.Fraction(1, 2)])
def test_number_accepts_and_returns_a_float(value):
    checked = number(0.0)('field', value)
    assert checked == value
    assert type(checked) is float


@pytest.mark.parametrize('exclusive, value, message', [
    (False, -0.5, 'field must be >= 0, got -0.5'),
    (True, 0.0, 'field must be > 0, got 0.0'),
    (True, -1, 'field must be > 0, got -1'),
    (False, float('nan'), 'field must be a finite number >= 0, got nan'),
    (False, float('inf'), 'field must be a finite number >= 0, got inf'),
    (True, True, 'field must be a finite number > 0, got True'),
    (True, '1', "field must be a finite number > 0, got '1'"),
    (True, None, 'field must be a finite number > 0, got None'),
    (True, 1j, 'field must be a finite number > 0, got 1j'),
])
def test_number_refuses(exclusive, value, message):
    assert refused(number(0.0, exclusive), value) == message


def test_number_refuses_an_int_that_no_float_holds():
    assert 'field must be a finite number' in refused(number(0.0), 10 ** 400)


@pytest.mark.parametrize('value', [True, False])
def test_boolean_accepts(value):
    assert boolean('field', value) is value


@pytest.mark.parametrize('value', [1, 0, 'True', None])
def test_boolean_refuses(value):
    assert refused(boolean, value) == f'field must be True or False, got {value!r}'


@pytest.mark.parametrize('value', ['cpu', 'cuda', 'cuda:0', 'cuda:12'])
def test_device_accepts(value):
    assert device('field', value) == value


@pytest.mark.parametrize('value', ['gpu', 'cuda:', 'cuda:x', 'CPU', ' cpu', 'cpu\n', 0, None])
def test_device_refuses(value):
    assert refused(device, value) == f"field must be 'cpu', 'cuda' or 'cuda:N', got {value!r}"


@pytest.mark.parametrize('value', ['one', 'two'])
def test_choice_accepts_one_of_a_few(value):
    assert choice('one', 'two')('field', value) == value


@pytest.mark.parametrize('value', [
    'three', 'One', 'one ', '', None, 1, True, ['one'], {'one': 1}, np.array(['one', 'two']),
])
def test_choice_refuses(value):
    assert refused(choice('one', 'two'), value) == f"field must be 'one' or 'two', got {value!r}"


def test_choice_of_one():
    assert refused(choice('auto'), 'all') == "field must be 'auto', got 'all'"


@pytest.mark.parametrize('value', ['host:6379', ' padded ', '0'])
def test_text_accepts_and_leaves_as_it_is(value):
    assert text('field', value) == value


@pytest.mark.parametrize('value', ['', '  ', '\n', None, 6379, b'host', ['host']])
def test_text_refuses(value):
    assert refused(text, value) == f'field must be a string that is not empty, got {value!r}'


@pytest.mark.parametrize('value, checked', [
    ({}, {}),
    ({'tpu': 1, 'disk': 0.5}, {'tpu': 1.0, 'disk': 0.5}),
    (types.MappingProxyType({'tpu': np.int64(2)}), {'tpu': 2.0}),
])
def test_amounts_accepts_and_returns_floats(value, checked):
    got = amounts('field', value)
    assert got == checked
    assert type(got) is dict and got is not value  # a later change of theirs is none of ours
    assert all(type(amount) is float for amount in got.values())


@pytest.mark.parametrize('value, message', [
    (None, 'field must be a mapping of names to numbers, got None'),
    ([('tpu', 1)], "field must be a mapping of names to numbers, got [('tpu', 1)]"),
    ('tpu', "field must be a mapping of names to numbers, got 'tpu'"),
    ({'tpu': 0}, 'field.tpu must be > 0, got 0'),
    ({'disk': 1, 'tpu': -1}, 'field.tpu must be > 0, got -1'),
    ({'tpu': '1'}, "field.tpu must be a finite number > 0, got '1'"),
    ({'tpu': True}, 'field.tpu must be a finite number > 0, got True'),
    ({'tpu': float('inf')}, 'field.tpu must be a finite number > 0, got inf'),
    ({1: 1}, 'a name in field must be a string that is not empty, got 1'),
    ({'': 1}, "a name in field must be a string that is not empty, got ''"),
])
def test_amounts_refuses(value, message):
    assert refused(amounts, value) == message


def test_optional_accepts_none_and_passes_the_rest_on():
    assert optional(integer(1))('field', None) is None
    assert optional(integer(1))('field', 4) == 4
    assert refused(optional(integer(1)), 0) == 'field must be >= 1, got 0'


@pytest.mark.parametrize('name', [
    'batch_timeout', 'generation_timeout', 'batch_generation_interval', 'sync_timeout', 'sync_retry_delay',
    'sync_monitor_interval', 'summary_interval_s',
])
def test_no_time_is_longer_than_a_thread_can_wait(name):
    assert getattr(AsyncConfig(**{name: threading.TIMEOUT_MAX}), name) == threading.TIMEOUT_MAX
    with pytest.raises(ConfigError, match=rf'^{name} must be <= .*, got 1000000000000.0$'):
        AsyncConfig(**{name: 1e12})
