"""Many threads, switched as often as the interpreter can: nothing is lost, nothing is counted twice."""
import contextlib
import random
import threading

import pytest
from fakes import ENDLESS, TIMEOUT, FakeCollector, FakeLearner, make_run, start

from lzero_async.core.coordinator import AsyncTrainingCoordinator
from lzero_async.core.errors import QueueClosed, Stopped
from lzero_async.core.segment_queue import SegmentQueue


class Tickets:
    """So many turns in all, whoever takes them."""

    def __init__(self, count):
        self._lock = threading.Lock()
        self._left = count

    def take(self):
        with self._lock:
            self._left -= 1
            return self._left >= 0


class Crowd:
    def __init__(self, degree, maxsize, rounds, trained):
        self.coordinator = AsyncTrainingCoordinator(degree, max_train_ahead=0)
        self.queue = SegmentQueue(maxsize)
        self.bound = max(1, degree)
        self.collects = Tickets(rounds)
        self.trains = Tickets(trained)
        self.consumed = []

    def collect(self, seed):
        rng = random.Random(seed)

        def one():
            now = self.coordinator.get_statistics()
            assert now['collect_count'] + now['collects_in_flight'] - now['train_count'] <= self.bound
            dawdle(rng)
            if rng.random() < 0.1:
                raise ValueError('a collect that fails')
            return object()

        with contextlib.suppress(Stopped):
            while self.collects.take():
                try:
                    item = self.coordinator.run_collect(one)
                except ValueError:
                    continue
                dawdle(rng)
                self.queue.put(item)

    def train(self, seed):
        rng = random.Random(seed)
        with contextlib.suppress(QueueClosed):
            while self.trains.take():
                item = self.queue.take()
                self.coordinator.run_train(lambda item=item: (dawdle(rng), self.consumed.append(item)))


def dawdle(rng):
    for _ in range(rng.choice((0, 0, 5, 50, 300))):
        pass


@pytest.mark.parametrize('degree, maxsize, collectors, learners, rounds, trained', [
    (0, 1, 6, 3, 300, 10 ** 9),
    (1, 1, 6, 3, 300, 10 ** 9),
    (3, 1, 8, 3, 400, 10 ** 9),  # the queue is the narrower bound
    (5, 10, 8, 1, 400, 10 ** 9),
    (5, 10, 8, 4, 400, 10 ** 9),
    (4, 4, 8, 3, 10 ** 9, 200),  # training ends first: collectors are left blocked at the gate, batches in the queue
])
def test_conservation(restless, degree, maxsize, collectors, learners, rounds, trained):
    crowd = Crowd(degree, maxsize, rounds, trained)
    collecting = [start(lambda seed=seed: crowd.collect(seed)) for seed in range(collectors)]
    training = [start(lambda seed=seed: crowd.train(100 + seed)) for seed in range(learners)]
    if trained < rounds:
        for future in training:
            future.result(TIMEOUT)
        crowd.coordinator.request_stop()
    for future in collecting:
        future.result(TIMEOUT)
    crowd.queue.close()
    for future in training:
        future.result(TIMEOUT)

    counts, queued = crowd.coordinator.get_statistics(), crowd.queue.statistics()
    assert counts['collects_in_flight'] == 0
    assert counts['collect_count'] == counts['train_count'] + queued.queue_size
    assert counts['train_count'] == len(crowd.consumed) == len(set(map(id, crowd.consumed)))
    assert queued.total_produced == queued.total_consumed + queued.queue_size == counts['collect_count']
    assert counts['max_lag'] <= max(1, degree)
    if trained < rounds:
        assert counts['train_count'] == trained
    else:
        assert queued.queue_size == 0
    left = crowd.queue.discard()
    after = crowd.queue.statistics()
    assert after.discarded == len(left) == queued.queue_size
    assert after.total_produced == after.total_consumed + after.discarded + after.queue_size


@pytest.mark.parametrize('degree, maxsize, collectors, ahead', [
    (1, 10, 4, 0),
    (2, 10, 6, 0),
    (3, 10, 4, 0),
    (3, 10, 6, 1),
    (5, 10, 8, 2),
    (5, 1, 4, 0),
    (3, 1, 8, 2),
])
def test_the_bounds_of_whole_runs(restless, degree, maxsize, collectors, ahead):
    def dawdler(seed):
        rng = random.Random(seed)
        return lambda *_: dawdle(rng)

    run = make_run(
        degree, ahead=ahead, data_queue_size=maxsize, max_staleness_allowed=ENDLESS, max_env_step=400,
        learner=FakeLearner(work=dawdler(-1)), collectors=[FakeCollector(work=dawdler(n)) for n in range(collectors)],
    )
    outcome = start(run.trainer.run)
    try:
        counts = outcome.result(TIMEOUT).statistics
    finally:
        run.trainer._abort('the test failed')  # if it has not ended by itself
        outcome.exception(TIMEOUT)
    assert counts['max_staleness'] <= degree
    assert counts['max_lag'] <= degree
    assert all(-ahead <= record.lag <= degree for record in run.observer.rounds)
    assert counts['collect_count'] == len(run.learner.admitted)
    assert counts['total_generated_samples'] == counts['processed_samples'] == run.learner.env_step
    left_over = counts['train_count'] - counts['collect_count']
    assert 0 <= left_over == len(run.learner.aheads) + len(run.learner.rounds) - len(run.learner.admitted) <= ahead
