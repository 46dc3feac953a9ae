"""Roles whose workers can be lost."""
import collections
import threading

from fakes import FakeCollector, FakeEvaluator

from lzero_async.core.errors import Stopped, WorkerLost


class _Losing:
    """Its worker is lost in a member, called for the so many-th time, if `loses(member, call)`; calls count from 1.

    A worker has no weights when it starts, and may not be used after it was lost.
    """

    def __init__(self, loses=lambda member, call: False, **kwargs):
        super().__init__(**kwargs)
        self.loses = loses
        self.calls = collections.Counter()
        self.history = []
        self.losses = []
        self._alive = True
        self._holds = None

    def await_ready(self, keep_going):
        self._called('await_ready')
        if not keep_going():
            raise Stopped('told not to keep going')

    def replace(self):
        self.history.append('replace')
        self._alive, self._holds = True, None

    def load_weights(self, weights, policy_version):
        self._called('load_weights')
        super().load_weights(weights, policy_version)
        self._holds = policy_version

    def _work(self, member, snapshot):
        assert self._holds == snapshot.policy_version, 'its worker has other weights'
        self._called(member)

    def _called(self, member):
        assert self._alive, f'{member} of a worker that was lost'
        self.calls[member] += 1
        self.history.append(member)
        if self.loses(member, self.calls[member]):
            self._alive = False
            self.losses.append(WorkerLost(f'in {member}, call {self.calls[member]}'))
            raise self.losses[-1]


class LosingCollector(_Losing, FakeCollector):
    def collect(self, snapshot, keep_going):
        self._work('collect', snapshot)
        return super().collect(snapshot, keep_going)


class LosingEvaluator(_Losing, FakeEvaluator):
    def evaluate(self, snapshot, keep_going):
        self._work('evaluate', snapshot)
        return super().evaluate(snapshot, keep_going)


def lost_at(*calls):
    """At these calls: `('collect', 2)` is the second collect."""
    return lambda member, call: (member, call) in calls


def lost_from(member, call):
    """At this call, and at each one after it."""
    return lambda called, now: called == member and now >= call


def told_to_end(run):
    """Set once the run is told to end, in order or at once."""
    told, coordinator = threading.Event(), run.coordinator
    request_stop, close = coordinator.request_stop, coordinator.close
    coordinator.request_stop = lambda: (request_stop(), told.set())
    coordinator.close = lambda *args, **kwargs: (close(*args, **kwargs), told.set())
    return told
