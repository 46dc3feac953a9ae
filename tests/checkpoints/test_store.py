"""The folder of states: the newest good one is found, whatever became of the others."""
import errno
import json
import os
import pickle

import numpy as np
import pytest
import torch

from lzero_async.checkpoints import durable
from lzero_async.checkpoints.durable import FileRecord
from lzero_async.checkpoints.errors import StateDamaged
from lzero_async.checkpoints.manifest import Manifest
from lzero_async.checkpoints.store import StateStore


@pytest.fixture
def folder(tmp_path):
    return tmp_path / 'state'


def write(store, number, oldest=0):
    """State `number`: its page ends with segment 10 * number."""
    return store.write(
        {'weights': torch.full((3,), float(number))}, {'values': np.full(4, number)}, 10 * number, oldest,
        {'round': number}, saved_at=1000.0 + number,
    )


def filled(folder, count=3, keep=5):
    store = StateStore(str(folder), keep)
    for number in range(1, count + 1):
        write(store, number)
    return store


def damage(folder, name, how):
    path = folder / name
    content = path.read_bytes()
    if how == 'cut':
        path.write_bytes(content[:-1])
    elif how == 'altered':
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif how == 'gone':
        path.unlink()
    elif how == 'empty':
        path.write_bytes(b'')


def test_nothing_is_saved(folder):
    assert StateStore(str(folder), 2).load() is None


def test_the_newest_comes_back_with_all_its_pages(folder):
    filled(folder)
    loaded = StateStore(str(folder), 5).load()
    assert loaded.manifest.number == 3 and loaded.manifest.run == {'round': 3} and loaded.manifest.saved_at == 1003.0
    assert torch.equal(loaded.learner['weights'], torch.full((3,), 3.0))
    assert [page['values'][0] for page in loaded.pages] == [1, 2, 3]


def test_pages_are_written_once(folder):
    store = filled(folder, count=1)
    first = (folder / 'buffer_00000001.safetensors').stat()
    for number in range(2, 6):
        write(store, number)
    again = (folder / 'buffer_00000001.safetensors').stat()
    assert (first.st_mtime_ns, first.st_ino) == (again.st_mtime_ns, again.st_ino)


def test_only_the_last_are_kept_with_what_they_consist_of(folder):
    filled(folder, count=4, keep=2)
    assert sorted(os.listdir(folder)) == [
        *(f'buffer_{number:08d}.safetensors' for number in (1, 2, 3, 4)),
        *(f'learner_{number:08d}.safetensors' for number in (3, 4)),
        *(f'state_{number:08d}.json' for number in (3, 4)),
    ]


def test_pages_whose_segments_are_all_gone_go_with_the_last_state_that_needs_them(folder):
    store = filled(folder, count=2, keep=2)  # pages end at 10 and 20
    write(store, 3, oldest=10)
    assert [page['values'][0] for page in store.load().pages] == [2, 3]
    assert (folder / 'buffer_00000001.safetensors').exists(), 'state 2 needs it'
    write(store, 4, oldest=19)
    assert not (folder / 'buffer_00000001.safetensors').exists()
    assert [page['values'][0] for page in store.load().pages] == [2, 3, 4]
    write(store, 5, oldest=20)
    assert [page['values'][0] for page in store.load().pages] == [3, 4, 5]


@pytest.mark.parametrize('name', ['learner_00000003.safetensors', 'buffer_00000003.safetensors', 'state_00000003.json'])
@pytest.mark.parametrize('how', ['cut', 'altered', 'gone', 'empty'])
def test_a_damaged_file_is_named_and_the_state_before_is_used(folder, name, how, caplog):
    filled(folder)
    damage(folder, name, how)
    loaded = StateStore(str(folder), 5).load()
    assert loaded.manifest.number == 2 and [page['values'][0] for page in loaded.pages] == [1, 2]
    if (name, how) != ('state_00000003.json', 'gone'):
        assert any(record.levelname == 'ERROR' and name in record.getMessage() for record in caplog.records)


def test_a_page_that_all_states_need_leaves_none(folder):
    filled(folder)
    damage(folder, 'buffer_00000001.safetensors', 'altered')
    with pytest.raises(StateDamaged, match=r'no state in .* can be used: .*buffer_00000001'):
        StateStore(str(folder), 5).load()


def test_states_go_on_after_the_one_that_was_loaded(folder, caplog):
    filled(folder)
    damage(folder, 'learner_00000003.safetensors', 'cut')
    store = StateStore(str(folder), 5)
    store.load()
    write(store, 4)
    assert [page['values'][0] for page in StateStore(str(folder), 5).load().pages] == [1, 2, 4]


@pytest.mark.parametrize('full_at', [
    'buffer_00000004.safetensors', 'learner_00000004.safetensors', 'state_00000004.json'
])
def test_a_full_disk_leaves_the_state_before_and_nothing_half_written(folder, full_at, monkeypatch):
    store = filled(folder)
    before = sorted(os.listdir(folder))
    real = os.fsync

    def full(descriptor):
        if os.readlink(f'/proc/self/fd/{descriptor}').endswith(full_at + durable.TEMPORARY):
            raise OSError(errno.ENOSPC, 'No space left on device')
        real(descriptor)

    monkeypatch.setattr(durable.os, 'fsync', full)
    with pytest.raises(OSError, match='No space left'):
        write(store, 4)
    assert sorted(os.listdir(folder)) == before
    monkeypatch.undo()
    write(store, 4)
    assert StateStore(str(folder), 5).load().manifest.run == {'round': 4}


def test_what_is_left_of_a_write_that_was_killed_is_thrown_away_with_the_next(folder):
    store = filled(folder, count=1)
    for name in ('buffer_00000002.safetensors.tmp', 'learner_00000009.safetensors', 'somebody_elses.txt'):
        (folder / name).write_bytes(b'x')
    write(store, 2)
    assert not (folder / 'buffer_00000002.safetensors.tmp').exists()
    assert not (folder / 'learner_00000009.safetensors').exists()
    assert (folder / 'somebody_elses.txt').exists()


class Bomb:
    def __reduce__(self):
        return exec, ('raise SystemExit("executed")',)


def test_a_state_from_elsewhere_with_a_pickle_in_it_is_refused_even_if_all_checksums_fit(folder):
    store = filled(folder, count=1)
    bomb = durable.write_file(str(folder), 'learner_00000001.safetensors', pickle.dumps(Bomb()))
    loaded = store._manifest(1)
    forged = Manifest(1, bomb, loaded.pages, loaded.page_ends, loaded.run, loaded.saved_at)
    durable.write_file(str(folder), forged.name, forged.to_bytes())
    with pytest.raises(StateDamaged, match=r'learner_00000001\.safetensors: not a state of lzero-async'):
        StateStore(str(folder), 5).load()


@pytest.mark.parametrize('name', ['../elsewhere', '/etc/passwd', '.hidden', 'a\\b'])
def test_a_manifest_that_names_files_elsewhere_is_refused(name):
    manifest = Manifest(1, FileRecord(name, 1, 'x'), (), (), {}, 0.0)
    with pytest.raises(StateDamaged, match='is not the name of a file beside it'):
        Manifest.from_bytes(manifest.to_bytes())


@pytest.mark.parametrize('content', [b'', b'[]', b'{}', b'{"sha256": 1, "body": "{}"}', b'\xff'])
def test_what_is_not_a_manifest(content):
    with pytest.raises(StateDamaged):
        Manifest.from_bytes(content)


def test_a_manifest_of_a_later_format_says_so():
    manifest = Manifest(1, FileRecord('a', 1, 'x'), (), (), {}, 0.0)
    body = json.loads(json.loads(manifest.to_bytes())['body'])
    body = json.dumps({**body, 'format': 99})
    import hashlib

    signed = json.dumps({'sha256': hashlib.sha256(body.encode()).hexdigest(), 'body': body}).encode()
    with pytest.raises(StateDamaged, match='format 99 is not 1'):
        Manifest.from_bytes(signed)
