"""SharedMemory: one copy per version, which the system takes back when nobody holds it."""
import gc
import multiprocessing
import multiprocessing.reduction
import os

import pytest
import torch

from lzero_async.engines.shared_memory import SharedMemory, open_shared

SPAWN = multiprocessing.get_context('spawn')


def memfds():
    """The memory behind descriptors of this process: number of the file, and its name."""
    found = set()
    for name in os.listdir('/proc/self/fd'):
        try:
            target, number = os.readlink(f'/proc/self/fd/{name}'), os.stat(f'/proc/self/fd/{name}').st_ino
        except OSError:
            continue
        if 'lzero-async-weights' in target:
            found.add((number, target))
    return found


def mappings():
    with open('/proc/self/maps', encoding='utf-8') as maps:
        return sum('lzero-async-weights' in line for line in maps)


def opened(shared):
    return open_shared(shared.packing, os.dup(shared.descriptor))


@pytest.fixture(autouse=True)
def earlier():
    """What was there before, by others; nothing else is when a test ends."""
    names, earlier = set(os.listdir('/dev/shm')), memfds()
    yield earlier
    gc.collect()
    assert memfds() <= earlier and mappings() == 0
    assert set(os.listdir('/dev/shm')) <= names


@pytest.fixture
def weights():
    return {'a': torch.arange(1000.0), 'b': [torch.tensor(True), torch.empty(0)], 'name': 'text'}


def test_a_put_takes_one_descriptor_and_no_mapping(weights, earlier):
    place = SharedMemory()
    shared = place.put(weights)
    assert (len(memfds() - earlier), mappings()) == (1, 0)
    other = place.put(weights)
    assert len(memfds() - earlier) == 2 and other.descriptor != shared.descriptor


def test_nothing_appears_where_files_have_names(weights, earlier):
    before = set(os.listdir('/dev/shm'))
    shared = SharedMemory().put(weights)
    assert set(os.listdir('/dev/shm')) <= before
    assert [target for _, target in memfds() - earlier] == ['/memfd:lzero-async-weights (deleted)']
    assert shared.nbytes > 4000


def test_the_memory_is_as_large_as_the_weights():
    shared = SharedMemory().put({'w': torch.zeros(1_000_000)})
    assert os.fstat(shared.descriptor).st_size == shared.nbytes == 4_000_000


def test_the_descriptor_is_closed_when_nobody_uses_the_weights_any_more(weights):
    shared = SharedMemory().put(weights)
    descriptor = shared.descriptor
    del shared
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_the_descriptor_is_not_passed_on_to_programs_that_are_started(weights):
    assert not os.get_inheritable(SharedMemory().put(weights).descriptor)


def test_several_readers_see_the_same_bytes(weights):
    shared = SharedMemory().put(weights)
    readers = [opened(shared) for _ in range(3)]
    for reader in readers:
        assert torch.equal(reader['a'], weights['a'])
        assert reader['b'][0].item() is True and reader['b'][1].shape == (0,) and reader['name'] == 'text'
    assert mappings() == 3


def test_who_writes_does_not_reach_the_others(weights):
    shared = SharedMemory().put(weights)
    one, other = opened(shared), opened(shared)
    one['a'].fill_(-1)
    assert torch.equal(other['a'], weights['a'])
    assert torch.equal(opened(shared)['a'], weights['a'])


def test_readers_outlive_the_one_who_put(weights):
    shared = SharedMemory().put(weights)
    reader, descriptor = opened(shared), shared.descriptor
    del shared
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(descriptor)
    assert mappings() == 1
    assert torch.equal(reader['a'], weights['a'])


@pytest.mark.parametrize('empty', [{}, {'w': torch.empty(0)}, {'name': 'text'}], ids=str)
def test_weights_without_bytes(empty):
    assert opened(SharedMemory().put(empty)).keys() == empty.keys()


def test_a_descriptor_is_closed_even_if_it_cannot_be_mapped():
    packing = SharedMemory().put({'w': torch.zeros(10)}).packing
    reading, writing = os.pipe()
    with pytest.raises((OSError, ValueError)):
        open_shared(packing, reading)
    with pytest.raises(OSError):
        os.fstat(reading)
    os.close(writing)


def test_what_cannot_be_put_leaves_nothing():
    with pytest.raises(Exception, match='meta'):
        SharedMemory().put({'w': torch.empty(3, device='meta')})


def read_there(connection, packing):
    weights = open_shared(packing, multiprocessing.reduction.recv_handle(connection))
    connection.send(weights['a'].sum().item())
    weights['a'].fill_(0)
    connection.send(weights['a'].sum().item())


def test_another_process_reads_it_and_writes_to_its_own(weights):
    shared = SharedMemory().put(weights)
    connection, theirs = SPAWN.Pipe()
    child = SPAWN.Process(target=read_there, args=(theirs, shared.packing))
    child.start()
    multiprocessing.reduction.send_handle(connection, shared.descriptor, child.pid)
    assert connection.recv() == weights['a'].sum().item()
    assert connection.recv() == 0
    child.join()
    connection.close()
    theirs.close()
    assert torch.equal(opened(shared)['a'], weights['a'])
