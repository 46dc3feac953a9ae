"""Publication: the newest version, all of it, and never one that is not finite."""
import dataclasses
import math
import threading

import pytest
from fakes import TIMEOUT, Copying, Gate, logged, start

from lzero_async.core.errors import LzeroAsyncError
from lzero_async.core.publication import Publication
from lzero_async.core.weight_ops import PlainWeights
from lzero_async.core.weights import WeightSnapshot

NAN, INF = math.nan, math.inf


def snapshot(version, weights='finite', rounds=0):
    return WeightSnapshot(version, 10 * version, {'a': 1.0, 'v': version} if weights == 'finite' else weights, rounds)


@pytest.fixture
def plain():
    return Publication(PlainWeights())


@pytest.fixture
def copying():
    return Copying()


@pytest.fixture
def under_way(copying):
    """Nothing that is published here is complete before `copying.arrive()`."""
    return Publication(copying)


# -------------------------------------------------------------------- the newest version


def test_before_the_first_there_is_none(plain):
    assert plain.newest is None
    assert (plain.published, plain.non_finite) == (0, 0)
    with pytest.raises(LzeroAsyncError, match='no weights are published yet'):
        plain.latest()


def test_the_newest_snapshot_is_handed_out_whole(plain):
    for version in (0, 3, 4):
        published = snapshot(version)
        assert plain.publish(published) is True
        assert plain.latest() is plain.newest is published
    assert plain.published == 3


def test_the_same_version_may_be_published_again(plain):
    plain.publish(snapshot(3, rounds=1))
    again = snapshot(3, rounds=2)
    assert plain.publish(again)
    assert plain.latest() is again
    assert plain.published == 2


@pytest.mark.parametrize('version', [2, 0, -1])
def test_a_version_never_goes_back(plain, version):
    newest = snapshot(3)
    plain.publish(newest)
    with pytest.raises(LzeroAsyncError, match=f'policy_version must not go back: {version} after 3'):
        plain.publish(snapshot(version))
    assert plain.latest() is newest
    assert plain.published == 1


@pytest.mark.parametrize('name', [field.name for field in dataclasses.fields(WeightSnapshot)])
def test_a_snapshot_cannot_be_changed(name):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(snapshot(1), name, 2)


# -------------------------------------------------------------------- weights that are not finite


@pytest.mark.parametrize('weights, name', [
    ({'a': NAN}, 'a'), ({'a': INF}, 'a'), ({'a': -INF}, 'a'), ({'a': {'b': [1.0, (0.0, NAN)]}}, 'a.b[1][1]'),
])
def test_the_last_good_version_stays(plain, caplog, weights, name):
    good = snapshot(3, rounds=6)
    plain.publish(good)
    assert plain.publish(snapshot(4, weights, rounds=7)) is False
    assert plain.latest() is plain.newest is good
    assert (plain.published, plain.non_finite) == (1, 1)
    (told,) = logged(caplog)
    assert f'version 4 of round 7 is not published, {name} is not finite; version 3 stays' in told


def test_where_the_first_is_not_finite_there_is_none(plain, caplog):
    assert plain.publish(snapshot(0, {'a': NAN})) is False
    assert plain.newest is None
    assert 'version None stays' in logged(caplog)[0]
    with pytest.raises(LzeroAsyncError, match='no weights are published yet'):
        plain.latest()


@pytest.mark.parametrize('recovered', [2, 3])
def test_publishing_goes_on_after_one_that_was_not_finite(plain, recovered):
    plain.publish(snapshot(1))
    plain.publish(snapshot(2, {'a': NAN}))
    good = snapshot(recovered)
    assert plain.publish(good) is True
    assert plain.latest() is good
    assert (plain.published, plain.non_finite) == (2, 1)


# -------------------------------------------------------------------- weights that are shared with the learner


class Untouchable:
    def __getattr__(self, name):
        pytest.fail(f'{name} was asked of weights that are not there')


def test_shared_weights_are_not_looked_at():
    publication, shared = Publication(Untouchable()), snapshot(3, None)
    assert publication.publish(shared) is True
    assert publication.latest() is shared
    assert publication.published == 1


class OnTheWay:
    """Stops whoever looks at its weights first, which is its publisher."""

    policy_version = 1
    rounds = 0

    def __init__(self):
        self.gate = Gate()
        self._looked = threading.Lock()

    @property
    def weights(self):
        if self._looked.acquire(blocking=False):
            self.gate()
        return None


def test_shared_weights_are_not_looked_at_by_a_reader_who_comes_meanwhile():
    settled = []
    ops = PlainWeights()
    ops.settle = settled.append
    publication, shared = Publication(ops), OnTheWay()
    publishing = start(lambda: publication.publish(shared))
    shared.gate.await_arrival()
    publication.latest()
    shared.gate.open()
    publishing.result(TIMEOUT)
    assert settled == []


# -------------------------------------------------------------------- copies under way


def test_the_publisher_does_not_wait_for_the_copy(under_way):
    assert under_way.publish(snapshot(1)) is True  # in this thread: it would wait in vain
    assert under_way.newest is None
    assert under_way.published == 0


def test_a_reader_waits_for_the_copy(under_way, copying):
    newest = snapshot(1)
    under_way.publish(newest)
    reading = start(under_way.latest)
    copying.await_readers(1)
    assert not reading.done()
    copying.arrive()
    assert reading.result(TIMEOUT) is newest
    assert under_way.published == 1


def test_the_last_version_is_there_without_waiting(under_way, copying):
    copying.arrive()
    complete = snapshot(1)
    under_way.publish(complete)
    copying.depart()
    under_way.publish(snapshot(2))
    assert under_way.newest is complete


def test_of_several_readers_one_judges(under_way, copying):
    newest = snapshot(1)
    under_way.publish(newest)
    reading = [start(under_way.latest) for _ in range(4)]
    copying.await_readers(4)
    copying.arrive()
    assert all(reader.result(TIMEOUT) is newest for reader in reading)
    assert under_way.published == 1


def test_the_first_reader_finds_out_what_is_not_finite(under_way, copying, caplog):
    copying.arrive()
    good = snapshot(1)
    under_way.publish(good)
    copying.depart()
    assert under_way.publish(snapshot(2, {'a': NAN}, rounds=5)) is True  # not known yet
    assert (under_way.non_finite, logged(caplog)) == (0, [])
    copying.arrive()
    assert under_way.latest() is good
    assert under_way.latest() is good
    assert (under_way.published, under_way.non_finite) == (1, 1)
    assert len(logged(caplog)) == 1
    assert 'version 2 of round 5' in logged(caplog)[0]


def test_what_is_not_finite_counts_once_however_many_find_it_out(under_way, copying, caplog):
    under_way.publish(snapshot(1, {'a': NAN}))
    reading = [start(under_way.latest) for _ in range(4)]
    copying.await_readers(4)
    copying.arrive()
    for reader in reading:
        assert isinstance(reader.exception(TIMEOUT), LzeroAsyncError)
    assert (under_way.published, under_way.non_finite) == (0, 1)
    assert len(logged(caplog)) == 1


@pytest.mark.parametrize('weights', [None, 'finite'])
def test_a_reader_who_waited_for_a_version_gets_that_one_or_the_newer_one(under_way, copying, weights):
    awaited = snapshot(1)
    under_way.publish(awaited)
    reading = start(under_way.latest)
    copying.await_readers(1)
    newer = snapshot(2, weights)
    under_way.publish(newer)
    copying.arrive()
    assert reading.result(TIMEOUT) in (awaited, newer)
    assert under_way.latest() is newer  # who comes after it was published gets it
    assert under_way.published == 2


def test_a_reader_who_waited_for_a_version_that_somebody_has_replaced_meanwhile_gets_the_newer_one(under_way, copying):
    under_way.publish(snapshot(1))
    held_up = Gate()
    judge, copying.first_non_finite = copying.first_non_finite, lambda weights: (held_up(), judge(weights))[1]
    reading = start(under_way.latest)
    copying.arrive()
    held_up.await_arrival()
    copying.first_non_finite = judge
    newer = snapshot(2)
    assert under_way.publish(newer) is True
    assert under_way.latest() is newer
    held_up.open()
    assert reading.result(TIMEOUT) is newer
    assert under_way.latest() is newer
    assert under_way.published == 2


def test_a_version_does_not_go_back_behind_one_under_way(under_way, copying):
    newest = snapshot(3)
    under_way.publish(newest)
    with pytest.raises(LzeroAsyncError, match='policy_version must not go back: 2 after 3'):
        under_way.publish(snapshot(2))
    copying.arrive()
    assert under_way.latest() is newest


def test_behind_one_that_turned_out_not_finite_versions_go_on_from_the_last_good_one(under_way, copying):
    copying.arrive()
    under_way.publish(snapshot(1))
    under_way.publish(snapshot(9, {'a': NAN}))
    good = snapshot(2)
    assert under_way.publish(good)
    assert under_way.latest() is good


def test_the_last_good_version_may_be_one_that_nobody_has_read_yet(under_way, copying):
    copying.arrive()
    under_way.publish(snapshot(1))
    copying.depart()
    good = snapshot(2)
    under_way.publish(good)
    under_way.publish(snapshot(3, {'a': NAN}))
    copying.arrive()
    assert under_way.latest() is good


def test_every_good_publication_counts_whether_it_is_read_or_not(under_way, copying):
    for version in (1, 2, 3):
        assert under_way.publish(snapshot(version)) is True
    copying.arrive()
    assert under_way.latest().policy_version == 3
    assert under_way.published == 3
