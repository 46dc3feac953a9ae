"""A process that is killed at every single step of writing a state: what was saved before is never lost."""
import os
import signal

import numpy as np
import pytest
import torch

from lzero_async.checkpoints.store import StateStore

KEEP = 2
CALLS = ('fsync', 'replace', 'unlink', 'open')


def write(store, number):
    store.write(
        {'weights': torch.full((1000,), float(number))}, {'values': np.full(1000, number)}, 10 * number,
        10 * (number - 2), {'round': number}, saved_at=float(number),
    )


def written_by_a_process_that_dies(folder, states, die_before):
    """Writes states after the newest one, and is killed right before its `die_before`-th call to the disk.

    Returns how it ended: killed, or 0 if it was done before that.
    """
    child = os.fork()
    if child == 0:
        calls = iter(range(1, 10 ** 6))

        def counted(call):
            def counting(*args, **kwargs):
                if next(calls) == die_before:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)

            return counting

        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        store = StateStore(str(folder), KEEP)
        loaded = store.load()
        first = 1 if loaded is None else loaded.manifest.number + 1
        for number in range(first, first + states):
            write(store, number)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check(folder, least):
    loaded = StateStore(str(folder), KEEP).load()
    assert loaded is not None and loaded.manifest.number >= least
    number = loaded.manifest.number
    assert torch.equal(loaded.learner['weights'], torch.full((1000,), float(number)))
    assert loaded.pages[-1]['values'][0] == number == loaded.manifest.run['round']
    return number


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')
def test_killed_before_every_call_to_the_disk(tmp_path):
    folder, number, killed = tmp_path / 'state', 0, 0
    assert written_by_a_process_that_dies(folder, 3, die_before=0) == 0
    number = check(folder, 3)
    for die_before in range(1, 200):
        ended = written_by_a_process_that_dies(folder, 1, die_before)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        killed += 1
        number = check(folder, number)
    assert killed >= 9  # three files, each opened or synced and renamed, their folder synced, and what is thrown away
    assert check(folder, number + 1) == number + 1


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')
def test_half_written_files_of_the_dead_are_thrown_away(tmp_path):
    folder = tmp_path / 'state'
    assert written_by_a_process_that_dies(folder, 2, die_before=0) == 0
    for name in ('learner_00000003.safetensors.tmp', 'buffer_00000003.safetensors', 'state_00000003.json.tmp'):
        (folder / name).write_bytes(b'half')
    assert written_by_a_process_that_dies(folder, 1, die_before=0) == 0
    assert check(folder, 3) == 3
    assert not list(folder.glob('*.tmp'))
