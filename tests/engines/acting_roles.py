"""Roles for workers, with no host behind them, and tricks for them to play. Children import this: keep it light."""
import ctypes
import inspect
import multiprocessing.connection
import os
import pathlib
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np

from lzero_async.core.errors import Stopped
from lzero_async.core.protocols import Evaluation
from lzero_async.core.segments import Collected
from lzero_async.engines.lifeline import DiesWithMaker
from lzero_async.engines.remote import Told

PATIENCE = 240
"""Seconds after which a wait counts as a failure. Nothing waits this long in a test that passes."""


class Stage:
    """A folder where roles leave notes for a test, and a test for roles, wherever they work on this machine."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def note(self, name, text=''):
        with open(self.folder / name, 'a', encoding='utf-8') as file:
            file.write(f'{text}\n')

    def notes(self, name):
        try:
            return (self.folder / name).read_text(encoding='utf-8').splitlines()
        except OSError:
            return []

    def await_note(self, name, count=1):
        """The note of that number, counted from 1, once it is there."""
        give_up_at = time.monotonic() + PATIENCE
        while len(self.notes(name)) < count:
            assert time.monotonic() < give_up_at, f'nobody left note {count} of {name!r}'
            time.sleep(0.01)
        return self.notes(name)[count - 1]

    def pid(self, count=1):
        return int(self.await_note('made', count))

    def pids(self):
        return [int(pid) for pid in self.notes('made')]


def nothing(*_):
    pass


@dataclass(frozen=True)
class Acting:
    """`engines.worker.MakeRole`. What is done inside gets the role, and in its work `keep_going`."""

    folder: str
    on_make: Callable = nothing
    on_load: Callable = nothing
    on_work: Callable = nothing
    on_close: Callable = nothing
    steps: int = 10
    extra: Any = field(default=None)

    def __call__(self):
        return ActingRole(self)


class ActingRole:
    """Collector and evaluator. Notes: made (its process), loaded (versions), working (calls), closed."""

    def __init__(self, spec):
        self.spec = spec
        self.stage = Stage(spec.folder)
        self.calls = 0
        self.version = None
        self.weights = None
        self.extra = None
        self.stage.note('made', os.getpid())
        spec.on_make(self)

    def load_weights(self, weights, policy_version):
        self.stage.note('loading', policy_version)
        self.spec.on_load(self)
        self.weights, self.version = weights, policy_version
        self.stage.note('loaded', policy_version)

    def collect(self, snapshot, keep_going):
        self._work(keep_going)
        told = {
            'pid': os.getpid(), 'call': self.calls, 'loaded': self.version, 'snapshot': snapshot,
            'weights': None if self.weights is None else self.weights['w'].tolist(), 'extra': self.extra,
        }
        steps = self.spec.steps
        return Told(Collected.of(snapshot.policy_version, told, steps, steps), self._curves(snapshot))

    def collect_random(self, policy_version, keep_going):
        self._work(keep_going)
        return Told(Collected.of(policy_version, 'random', self.spec.steps, self.spec.steps), [])

    def evaluate(self, snapshot, keep_going):
        self._work(keep_going)
        reward = float(-abs(self.version - 5))
        evaluation = Evaluation(self.version, snapshot.env_step, reward, is_best=False, stop=False, returns=(reward,))
        return Told(evaluation, self._curves(snapshot))

    def close(self):
        self.spec.on_close(self)
        self.stage.note('closed', os.getpid())

    def _work(self, keep_going):
        self.calls += 1
        self.stage.note('working', self.calls)
        self.spec.on_work(self, keep_going)
        if not keep_going():
            raise Stopped('told not to keep going')

    def _curves(self, snapshot):
        return [('calls', float(self.calls), snapshot.policy_version), ('twice', 2.0 * self.calls, self.calls)]


# -------------------------------------------------------------------- tricks


class Unknown(Exception):
    """An exception that cannot be pickled."""

    def __init__(self, one, two):
        super().__init__(one)
        self.lock = threading.Lock()


def fall(*_):
    raise Unknown('broken over here', 2)


def place_of_fall():
    """As a traceback shows it."""
    lines, first = inspect.getsourcelines(fall)
    number = first + next(index for index, line in enumerate(lines) if 'raise' in line)
    return f'acting_roles.py", line {number}, in fall'


def segfault(*_):
    ctypes.string_at(0)


def sys_exit(*_):
    sys.exit(7)


def os_exit(*_):
    os._exit(7)


def kill_self(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def hang(*_):
    time.sleep(10 * PATIENCE)


def hang_with_the_gil(*_):
    ctypes.PyDLL(None).sleep(10 * PATIENCE)


def stop_self(*_):
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_in_the_middle_of_the_reply(role, _):
    """Half of the first large piece that is written is the last that this process does for now."""
    role.extra = np.zeros(10_000_000, np.uint8)
    write = multiprocessing.connection.Connection._send

    def send(connection, data, *rest):
        if len(data) > 1_000_000:
            write(connection, data[:len(data) // 2], *rest)
            role.stage.note('stopped')
            stop_self()
        write(connection, data, *rest)

    multiprocessing.connection.Connection._send = send


def return_a_lock(role, _):
    role.extra = threading.Lock()


class FallsWhenRead:
    def __reduce__(self):
        return fall, ()


def return_what_cannot_be_read(role, _):
    role.extra = FallsWhenRead()


def return_arrays(role, _):
    role.extra = [np.full(3_000_000, role.calls), np.empty(0), np.arange(10)[::2]]


def step_slowly(_, keep_going):
    for _step in range(30):
        keep_going()
        time.sleep(0.1)


def step_until_told(_, keep_going):
    while keep_going():
        time.sleep(0.01)


def write_to_weights(role):
    """What the last load brought is overwritten by the next call."""
    if role.weights is not None:
        role.weights['w'].fill_(-1)


def print_much(role, _):
    print('said by the role', flush=True)
    print('and to stderr', file=sys.stderr, flush=True)


def _sleep_forever():
    time.sleep(10 * PATIENCE)


def _fork(fn):
    pid = os.fork()
    if pid == 0:
        try:
            fn()
        finally:
            os._exit(0)
    return pid


def fork_a_child(role, *_):
    """A grandchild, as DI-engine makes its environments."""
    role.stage.note('grandchild', _fork(DiesWithMaker(_sleep_forever)))


def fork_a_child_that_leaves(role, *_):
    """A grandchild in a session of its own, that holds whatever this process had open, and outlives it."""
    def leave():
        os.setsid()
        _sleep_forever()

    role.stage.note('grandchild', _fork(leave))


@dataclass(frozen=True)
class Once:
    """The trick is played by the first that comes here; the others, workers that took its place included, do not."""

    trick: Callable
    at: int = 1
    """In the how-manieth piece of work of all."""

    def __call__(self, role, *rest):
        if len(role.stage.notes('working')) >= self.at and not role.stage.notes('tricked'):
            role.stage.note('tricked')
            self.trick(role, *rest)


@dataclass(frozen=True)
class OnceElsewhere:
    """The trick is played unless it was before, for parts that come before the first work."""

    trick: Callable

    def __call__(self, role, *rest):
        if not role.stage.notes('tricked'):
            role.stage.note('tricked')
            self.trick(role, *rest)


@dataclass(frozen=True)
class AfterFirst:
    """All but the first that are made play the trick."""

    trick: Callable

    def __call__(self, role, *rest):
        if len(role.stage.notes('made')) > 1:
            self.trick(role, *rest)


def step_a_little(_, keep_going):
    for _step in range(5):
        keep_going()
        time.sleep(0.002)


def fall_from_the_third_on(role, *_):
    if len(role.stage.notes('working')) >= 3:
        fall()


def step_until_go(role, keep_going):
    while not role.stage.notes('go') and keep_going():
        time.sleep(0.01)


def fall_after_go(role, keep_going):
    step_until_go(role, keep_going)
    fall()


def note_node(role, *_):
    import ray

    role.stage.note('node', ray.get_runtime_context().get_node_id())
