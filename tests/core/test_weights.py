import dataclasses

import pytest
from fakes import TIMEOUT, start

from lzero_async.core.errors import LzeroAsyncError
from lzero_async.core.weights import WeightSnapshot, WeightStore


def snapshot(version):
    return WeightSnapshot(policy_version=version, env_step=10 * version, weights=f'weights-{version}')


def test_the_newest_snapshot_is_handed_out_whole():
    store = WeightStore(snapshot(0))
    assert store.latest() == snapshot(0)
    newer = snapshot(3)
    store.publish(newer)
    assert store.latest() is newer


def test_the_same_version_may_be_published_again():
    store = WeightStore(snapshot(3))
    again = snapshot(3)
    store.publish(again)
    assert store.latest() is again


def test_a_version_never_goes_back():
    store = WeightStore(snapshot(3))
    with pytest.raises(LzeroAsyncError, match='policy_version must not go back: 2 after 3'):
        store.publish(snapshot(2))
    assert store.latest() == snapshot(3)


def test_a_snapshot_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot(1).policy_version = 2


def test_a_reader_sees_all_of_one_version_and_never_an_older_one():
    store = WeightStore(snapshot(0))
    last = 500

    def read():
        seen = [store.latest()]
        while seen[-1].policy_version < last:
            seen.append(store.latest())
        return seen

    readers = [start(read) for _ in range(3)]
    for version in range(1, last + 1):
        store.publish(snapshot(version))
    for reader in readers:
        seen = reader.result(TIMEOUT)
        versions = [one.policy_version for one in seen]
        assert versions == sorted(versions)
        assert all(one.weights == f'weights-{one.policy_version}' for one in seen)
