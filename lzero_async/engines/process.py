"""The engine `process`: each role's work in a child process that owns its environments and policy."""
from __future__ import annotations

import contextlib
import logging
import multiprocessing
import multiprocessing.reduction
import os
import queue
import signal
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, Optional

import cloudpickle

from ..core.doorbell import ctrl_c_blocked
from ..core.errors import WorkerLost
from . import wire
from .child import BEAT, CLOSE, LEAVE, Loading, serve
from .shared_memory import SharedMemory, SharedWeights
from .worker import Call, MakeRole, Raised, Reply

logger = logging.getLogger(__name__)

SPAWN = multiprocessing.get_context('spawn')
LOOK_INTERVAL_S = 0.1
LAST_LINES = 25


class ProcessEngine:
    """Starts children. Any thread may call any member.

    All are started by one thread of ours, since Linux ties a child to the thread that started it (see lifeline.py).
    """

    name = 'process'
    on_this_machine = True

    def __init__(self, log_folder: str) -> None:
        self._log_folder = log_folder
        self._spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix='lzero-async-spawner')
        self.place = SharedMemory()

    def launch(self, name: str, make_role: MakeRole) -> 'ProcessWorker':
        """Start a child, and return before it has started."""
        log_path = os.path.join(self._log_folder, f'{name}.log')
        return ProcessWorker(name, make_role, log_path, self._spawner)

    def close(self) -> None:
        """To be called once all workers are closed: children that are left end with it."""
        self._spawner.shutdown()


class ProcessWorker:
    """`engines.worker.Worker`: the parent's side of one child."""

    def __init__(self, name: str, make_role: MakeRole, log_path: str, spawner: ThreadPoolExecutor) -> None:
        self.name = name
        self._log_path = log_path
        self._board = SPAWN.RawArray('Q', 2)
        self._connection, childs_end = SPAWN.Pipe()
        # Not a daemon in the sense of multiprocessing, which may not have children: environments may be processes.
        self._process = SPAWN.Process(
            target=serve, args=(childs_end, self._board, cloudpickle.dumps(make_role), log_path, os.getpid()),
            name=f'lzero-async-{name}', daemon=False,
        )
        self._logged_before = os.path.getsize(log_path) if os.path.exists(log_path) else 0
        # A thread carries calls and replies: a child that stops would keep whoever writes or reads waiting.
        self._courier = threading.Thread(target=self._carry, name=f'lzero-async-{name}-courier', daemon=True)
        self._calls: 'queue.SimpleQueue[Optional[Call]]' = queue.SimpleQueue()
        self._replies: 'queue.SimpleQueue[Reply]' = queue.SimpleQueue()
        self._started: 'Future[None]' = spawner.submit(self._start, childs_end)

    @property
    def pid(self) -> Optional[int]:
        return self._process.pid

    def send(self, call: Call) -> None:
        self._calls.put(call)

    def poll(self, timeout: float) -> Optional[Reply]:
        with contextlib.suppress(queue.Empty):
            return self._replies.get(timeout=timeout)
        if self._started.done():
            error = self._started.exception()
            if error is not None:
                raise WorkerLost(f'{self.name} could not be started: {type(error).__name__}: {error}') from error
            if not self._process.is_alive():
                # Its last words may have come in just before it ended.
                with contextlib.suppress(queue.Empty):
                    return self._replies.get(timeout=LOOK_INTERVAL_S)
                raise self._lost(f'ended by itself, {_ending(self._process.exitcode)}')
        return None

    def beats(self) -> int:
        return int(self._board[BEAT])

    def ask_to_leave(self) -> None:
        self._board[LEAVE] = 1

    def kill(self) -> None:
        with contextlib.suppress(Exception):  # one that never started needs no end
            self._started.result()
        if self._process.pid is not None:
            # It leads a group, which environments in processes of their own belong to.
            for end in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    end(self._process.pid, signal.SIGKILL)
            self._process.join()
            self._hang_up()

    def close(self, grace: float) -> None:
        self.ask_to_leave()
        with contextlib.suppress(Exception):
            self._started.result()
            self._calls.put(CLOSE)
            self._process.join(grace)
        self.kill()

    # ---------------------------------------------------------------- inside

    def _start(self, childs_end: 'Connection[Any, Any]') -> None:
        try:
            with ctrl_c_blocked():  # a Ctrl-C before the child has a group of its own
                self._process.start()
        finally:
            childs_end.close()
        self._courier.start()

    def _carry(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                try:
                    self._replies.put(wire.receive(self._connection))
                except (EOFError, OSError):
                    raise
                except Exception as error:  # what came cannot be read here
                    self._replies.put(Reply(raised=Raised.by(error)))
                call = self._calls.get()
                if call is None:
                    return
                if call.method == 'load_weights':
                    self._send_weights(*call.args)
                else:
                    wire.send(self._connection, call)

    def _hang_up(self) -> None:
        """Let the courier go, whatever it waits for: others than the child may hold the far end, too."""
        self._calls.put(None)
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
        self._courier.join()
        self._connection.close()

    def _send_weights(self, weights: SharedWeights, policy_version: int) -> None:
        pid = self._process.pid
        assert pid is not None
        wire.send(self._connection, Loading(weights.packing, policy_version))
        multiprocessing.reduction.send_handle(self._connection, weights.descriptor, pid)

    def _lost(self, how: str) -> WorkerLost:
        last_words = _last_lines(self._log_path, self._logged_before)
        return WorkerLost(f'{self.name} (process {self._process.pid}) {how}{last_words}')


def _ending(exitcode: Optional[int]) -> str:
    if exitcode is not None and exitcode < 0:
        with contextlib.suppress(ValueError):
            return f'killed by {signal.Signals(-exitcode).name}'
    return f'exit code {exitcode}'


def _last_lines(path: str, begin: int) -> str:
    with contextlib.suppress(OSError), open(path, 'rb') as file:
        file.seek(max(begin, os.path.getsize(path) - 20_000))
        lines = file.read().decode('utf-8', errors='replace').splitlines()[-LAST_LINES:]
        if lines:
            return '\n\nThe end of ' + path + ':\n\n' + '\n'.join(lines)
    return ''
