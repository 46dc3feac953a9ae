"""wire: arrays travel beside the pickle, and come back as the reader's own."""
import multiprocessing

import numpy as np
import pytest
from fakes import TIMEOUT, start

from lzero_async.engines import wire

ARRAYS = {
    'float': np.arange(6, dtype=np.float32).reshape(2, 3),
    'empty': np.empty((0, 4), np.int64),
    'fortran': np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    'every second': np.arange(20, dtype=np.int16)[::2],
    'backwards': np.arange(5.0)[::-1],
    'scalar': np.array(3.5),
    'bool': np.array([True, False]),
    'half': np.arange(3, dtype=np.float16),
    'complex': np.array([1 + 2j]),
    'text': np.array(['a', 'bcd']),
    'objects': np.array([{'a': 1}, None, 'text'], dtype=object),
    'fields': np.array([(1, 2.0)], dtype=[('a', 'i4'), ('b', 'f8')]),
    'big-endian': np.arange(4, dtype='>f4'),
}


@pytest.fixture
def ends():
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        yield ours, theirs


def across(ends, value):
    """Sent by a thread, since more than a pipe holds would block the sender."""
    sent = start(lambda: wire.send(ends[0], value))
    received = wire.receive(ends[1])
    sent.result(TIMEOUT)
    return received


@pytest.fixture(params=['encode', 'send'])
def carry(request, ends):
    if request.param == 'encode':
        return lambda value: wire.decode(wire.encode(value))
    return lambda value: across(ends, value)


@pytest.mark.parametrize('name', ARRAYS)
def test_an_array_comes_back_as_it_was(name, carry):
    array = ARRAYS[name]
    back = carry({'array': array})['array']
    assert back.dtype == array.dtype and back.shape == array.shape
    assert back.tolist() == array.tolist()


@pytest.mark.parametrize('name', ARRAYS)
def test_an_array_that_came_back_can_be_written_to(name, carry):
    back = carry(ARRAYS[name])
    assert back.flags.writeable
    back[...] = back.copy()


def test_an_array_that_could_not_be_written_to_stays_so(carry):
    back = carry(np.frombuffer(b'12345678', np.uint8))
    assert back.tobytes() == b'12345678' and not back.flags.writeable


def test_what_came_back_is_independent(carry):
    array = np.zeros(1000)
    back = carry([array, array, array.copy()])
    assert back[0] is back[1]  # as before
    back[0][:] = 1
    assert not array.any() and not back[2].any()
    array[:] = 2
    assert (back[0] == 1).all()


def test_the_bytes_of_an_array_are_not_in_the_pickle():
    encoded = wire.encode({'a': np.zeros(100_000), 'b': np.ones(50_000, np.uint8)})
    assert len(encoded.head) < 1000
    assert [buffer.nbytes for buffer in encoded.buffers] == [800_000, 50_000]
    assert encoded.nbytes == len(encoded.head) + 850_000


def test_encoding_an_array_does_not_copy_it():
    array = np.zeros(1000, np.uint8)
    buffer, = wire.encode(array).buffers
    assert np.shares_memory(buffer, array)


def test_more_than_a_pipe_holds(ends):
    arrays = [np.full(30_000_000, 7, np.uint8), np.empty(0), np.arange(1_000_000)]
    back = across(ends, {'arrays': arrays, 'text': 'x' * 1_000_000})
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(arrays, back['arrays']))
    assert len(back['text']) == 1_000_000


def test_messages_keep_their_order_and_their_arrays(ends):
    for number in range(20):
        wire.send(ends[0], (number, np.full(number, number)))
    for number in range(20):
        told, array = wire.receive(ends[1])
        assert told == number and array.tolist() == [number] * number


def test_an_end_that_is_gone_is_told(ends):
    ends[0].close()
    with pytest.raises(EOFError):
        wire.receive(ends[1])
    with pytest.raises(OSError):
        wire.send(ends[1], 'anybody?')


def test_an_end_that_goes_in_the_middle_of_an_array_is_told(ends):
    encoded = wire.encode(np.zeros(1000))
    ends[0].send_bytes(wire.pickle.dumps((encoded.head, [8000])))
    ends[0].close()
    with pytest.raises(EOFError):
        wire.receive(ends[1])


def test_what_cannot_be_pickled_leaves_the_pipe_as_it_was(ends):
    with pytest.raises(Exception, match='pickle'):
        wire.send(ends[0], [np.zeros(10), lambda: None])
    wire.send(ends[0], 'next')
    assert wire.receive(ends[1]) == 'next'
