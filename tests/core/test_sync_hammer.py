"""Many threads, switched as often as the interpreter can: all of one version or all of another, and nothing is lost."""
import contextlib
import math
import random
import threading

import pytest
from fakes import TIMEOUT, Broken, at_once, join_attempts, start

from lzero_async.core.errors import LzeroAsyncError
from lzero_async.core.param_sync import ParameterSynchronizer
from lzero_async.core.publication import Publication
from lzero_async.core.weight_ops import PlainWeights
from lzero_async.core.weights import WeightSnapshot

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures('restless')]

PATIENT = {'max_sync_retries': 2, 'sync_timeout': 60, 'sync_retry_delay': 0}
SIZE = 12


def checksummed(number):
    values = [number * 31 + place for place in range(SIZE)]
    return {'number': number, 'layer': {'values': values}, 'sum': sum(values)}


def number_of(weights):
    """Of which version all of these weights are; fails if they are a mix."""
    assert weights == checksummed(weights['number'])
    return weights['number']


def snapshot(version):
    return WeightSnapshot(version, 0, checksummed(version))


class Worker:
    """Puts weights in one by one, so that whoever looks meanwhile sees a mix. Fails before, with some luck."""

    def __init__(self, seed=0, failures=0.0):
        self.weights = checksummed(0)
        self.loads = self.failures = 0
        self._rng = random.Random(seed)
        self._failures = failures
        self._alone = threading.Lock()

    def load_weights(self, weights, policy_version):
        assert self._alone.acquire(blocking=False), 'two loads at a time'
        try:
            if self._rng.random() < self._failures:
                self.failures += 1
                raise Broken('a load that fails')
            self.weights['number'] = weights['number']
            for place, value in enumerate(weights['layer']['values']):
                self.weights['layer']['values'][place] = value
            self.weights['sum'] = weights['sum']
            self.loads += 1
        finally:
            self._alone.release()


class Trainer:
    """Each time it is asked it has moved on."""

    def __init__(self):
        self.reads = 0

    def get_weights(self):
        self.reads += 1
        return checksummed(self.reads)


def all_of(futures):
    return [future.result(TIMEOUT) for future in futures]


def assert_never_back(versions):
    assert versions == sorted(versions)


# -------------------------------------------------------------------- publish and pull


@pytest.mark.parametrize('readers', [1, 6])
def test_a_reader_sees_all_of_one_version_and_never_an_older_one(readers):
    publication, last = Publication(PlainWeights()), 300
    publication.publish(snapshot(0))

    def read():
        seen = [publication.latest()]
        while seen[-1].policy_version < last:
            seen.append(publication.latest())
        return seen

    reading = [start(read) for _ in range(readers)]
    for version in range(1, last + 1):
        assert publication.publish(snapshot(version))
    for seen in all_of(reading):
        assert_never_back([one.policy_version for one in seen])
        assert all(number_of(one.weights) == one.policy_version for one in seen)
    assert publication.published == last + 1


class Roles:
    """Each pulls into its own worker until it has the last version, and looks at what it has."""

    def __init__(self, sync, last, failures=0.0):
        self.sync = sync
        self.last = last
        self.failures = failures
        self.workers = []

    def start(self, count):
        self.workers = [Worker(seed, self.failures) for seed in range(count)]
        return [start(lambda worker=worker: self._pull(worker)) for worker in self.workers]

    def _pull(self, worker):
        target, held = self.sync.attach('role', worker), []
        while not held or held[-1] < self.last:
            with contextlib.suppress(LzeroAsyncError):  # none has arrived yet
                self.sync.pull(target)
            with target.reading() as snapshot:
                if snapshot is not None:
                    assert number_of(worker.weights) == number_of(snapshot.weights) == snapshot.policy_version
                    held.append(snapshot.policy_version)
        return held

    def assert_numbers_add_up(self, pulls):
        counted = self.sync.get_statistics()
        assert counted['sync_count'] == sum(worker.loads for worker in self.workers)
        attempts = sum(worker.loads + worker.failures for worker in self.workers)
        # A delivery that failed took all its attempts; one that arrived, up to as many.
        most = PATIENT['max_sync_retries'] + 1
        assert attempts <= (counted['sync_count'] + counted['sync_failures']) * most
        assert attempts >= counted['sync_count'] + counted['sync_failures'] * most
        assert counted['param_sync_requests'] >= pulls


@pytest.mark.parametrize('roles, failures', [(1, 0.0), (5, 0.0), (5, 0.3), (4, 0.7)])
def test_every_role_holds_all_of_one_version_at_any_time(roles, failures):
    sync, last = ParameterSynchronizer(PATIENT), 80
    sync.publish(snapshot(1))
    crowd = Roles(sync, last, failures)
    pulling = crowd.start(roles)
    for version in range(2, last + 1):
        assert sync.publish(snapshot(version))
    pulled = all_of(pulling)
    for held in pulled:
        assert_never_back(held)
    assert sync.get_current_version() == sync.get_statistics()['param_sync_count'] == last
    crowd.assert_numbers_add_up(sum(map(len, pulled)))


def test_no_role_ever_holds_weights_that_are_not_finite():
    sync, last = ParameterSynchronizer(PATIENT), 60
    sync.publish(snapshot(1))
    pulling = Roles(sync, last).start(4)
    refused = 0
    for version in range(2, last + 1):
        bad = checksummed(version)
        bad['layer']['values'][version % SIZE] = math.nan
        if version % 3 == 0:
            assert sync.publish(WeightSnapshot(version, 0, bad)) is False
            refused += 1
            assert sync.latest().policy_version == version - 1
        assert sync.publish(snapshot(version))
    for held in all_of(pulling):
        assert_never_back(held)
    counted = sync.get_statistics()
    assert (counted['non_finite_weights'], counted['param_sync_count']) == (refused, last)


class OneCopy(PlainWeights):
    """Counts its copies, which take long enough for others to come meanwhile."""

    def __init__(self):
        self.copies = []

    def device_of(self, target):
        return target.device

    def copy_to(self, weights, device):
        for _ in range(3000):
            pass
        self.copies.append((device, weights['number']))
        return weights


def test_copies_are_made_once_however_many_load_them_at_the_same_time():
    ops = OneCopy()
    sync, workers = ParameterSynchronizer(PATIENT, weight_ops=ops), [Worker(seed) for seed in range(6)]
    for index, worker in enumerate(workers):
        worker.device = index % 2
    for version in range(1, 31):
        sync.publish(snapshot(version))
        pulled = at_once(lambda number: sync.pull(sync.attach('role', workers[number])), threads=6)
        assert {held.policy_version for held in pulled} == {version}
    assert len(ops.copies) == len(set(ops.copies)) == 2 * 30


@pytest.mark.parametrize('pullers', [2, 5])
def test_several_who_pull_into_one_worker_take_turns(pullers):
    sync, worker, last = ParameterSynchronizer(PATIENT), Worker(), 40
    target = sync.attach('role', worker)
    sync.publish(snapshot(1))

    def pull():
        while sync.pull(target).policy_version < last:
            with target.reading() as held:
                assert number_of(worker.weights) == held.policy_version

    pulling = [start(pull) for _ in range(pullers)]
    for version in range(2, last + 1):
        sync.publish(snapshot(version))
    all_of(pulling)


# -------------------------------------------------------------------- workers


class Readers:
    """Look at workers until told that it is over."""

    def __init__(self, sync, workers):
        self.sync = sync
        self.workers = workers
        self.over = threading.Event()

    def read(self, seed):
        rng, seen = random.Random(seed), {id(worker): [0] for worker in self.workers}
        while not self.over.is_set():
            worker = rng.choice(self.workers)
            with self.sync.reading(worker) as held:
                number = number_of(worker.weights)
                assert number == (number_of(held.weights) if held is not None else 0)
            seen[id(worker)].append(number)
        return list(seen.values())


@pytest.mark.parametrize('workers, syncers, readers, failures', [
    (1, 1, 4, 0.0),
    (3, 1, 5, 0.0),
    (3, 3, 5, 0.0),
    (3, 3, 4, 0.5),
    (2, 4, 2, 0.8),
])
def test_who_reads_a_worker_sees_all_of_one_version(workers, syncers, readers, failures):
    sync, trainer, rounds = ParameterSynchronizer(PATIENT), Trainer(), 15
    rollouts = [Worker(seed, failures) for seed in range(workers)]
    crowd = Readers(sync, rollouts)
    reading = [start(lambda seed=seed: crowd.read(seed)) for seed in range(readers)]
    syncing = [
        start(lambda: [sync.sync_weights(trainer, rollouts) for _ in range(rounds)]) for _ in range(syncers)
    ]
    arrived = sum(map(sum, all_of(syncing)))
    crowd.over.set()
    for seen in all_of(reading):
        for numbers in seen:
            assert_never_back(numbers)

    counted = sync.get_statistics()
    assert counted['sync_count'] == counted['param_sync_count'] == arrived
    assert counted['sync_count'] + counted['sync_failures'] == rounds * syncers == trainer.reads
    assert counted['current_version'] <= rounds * syncers
    if failures == 0:
        assert counted['current_version'] == rounds * syncers
        assert [worker.loads for worker in rollouts] == [rounds * syncers] * workers


@pytest.mark.parametrize('syncers', [2, 5])
def test_a_version_offered_by_many_is_read_and_loaded_once(syncers):
    trainer, rollouts = Trainer(), [Worker(seed) for seed in range(2)]
    sync, versions = ParameterSynchronizer(PATIENT, trainer, rollouts), 15
    for version in range(1, versions + 1):
        assert all(at_once(lambda _, version=version: sync.sync_to_rollouter(version), syncers))
        assert sync.get_current_version() == version
        assert [number_of(worker.weights) for worker in rollouts] == [version, version]
    assert trainer.reads == versions
    assert [worker.loads for worker in rollouts] == [versions, versions]
    assert sync.get_statistics()['sync_count'] == versions


@pytest.mark.parametrize('failures', [0.0, 0.6])
def test_cleanup_in_the_middle_leaves_nobody_waiting_and_nothing_mixed(failures):
    sync, trainer = ParameterSynchronizer(PATIENT), Trainer()
    rollouts = [Worker(seed, failures) for seed in range(3)]
    begun = threading.Semaphore(0)

    def sync_until_refused():
        with contextlib.suppress(LzeroAsyncError):
            while True:
                sync.sync_weights(trainer, rollouts)
                begun.release()

    syncing = [start(sync_until_refused) for _ in range(3)]
    for _ in range(10):
        assert begun.acquire(timeout=TIMEOUT)
    sync.cleanup()
    all_of(syncing)
    join_attempts()
    for worker in rollouts:
        number_of(worker.weights)
    with pytest.raises(LzeroAsyncError):
        sync.sync_weights(trainer, rollouts)
