"""What a child process does: make its role, and answer calls until told to close."""
from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing.reduction
import os
import pickle
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from . import wire
from .lifeline import die_with_parent
from .worker import Call, Raised, Reply, Role, answer

BEAT, LEAVE = 0, 1
"""Places on the board that parent and child share: counted up by the child, set by the parent."""

CLOSE = Call('close')


@dataclass(frozen=True)
class Loading:
    """Weights are to be loaded; the descriptor of the memory that holds them follows."""

    packing: Any
    policy_version: int


def serve(connection: 'Connection[Any, Any]', board: Any, make_role: bytes, log_path: str, parent: int) -> None:
    """The whole life of a child. `make_role` is a MakeRole by cloudpickle: reading it imports what it needs."""
    die_with_parent(parent)
    os.setpgid(0, 0)  # a terminal's Ctrl-C is for the parent; and all that this process starts can be ended with it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _write_to(log_path)
    try:
        role = pickle.loads(make_role)()
    except BaseException as error:
        wire.send(connection, Reply(raised=Raised.by(error)))
        return
    wire.send(connection, Reply())
    with contextlib.suppress(EOFError, OSError):  # the parent is gone, and nobody waits for an answer
        _answer_calls(connection, board, role)


def _answer_calls(connection: 'Connection[Any, Any]', board: Any, role: Role) -> None:
    def keep_going() -> bool:
        board[BEAT] += 1
        return not board[LEAVE]

    while True:
        call = wire.receive(connection)
        board[BEAT] += 1
        if isinstance(call, Loading):
            call = _received(connection, call)
        reply = answer(role, call, keep_going)
        try:
            wire.send(connection, reply)
        except (OSError, EOFError):
            raise
        except Exception as error:  # what it returned cannot be pickled
            wire.send(connection, Reply(raised=Raised.by(error)))
        if call == CLOSE:
            return


def _received(connection: 'Connection[Any, Any]', loading: Loading) -> Call:
    from .shared_memory import open_shared

    descriptor = multiprocessing.reduction.recv_handle(connection)
    return Call('load_weights', (open_shared(loading.packing, descriptor), loading.policy_version))


def _write_to(log_path: str) -> None:
    """Send all output of this process to its log file, that of crashes in native code included."""
    os.makedirs(os.path.dirname(log_path), exist_ok=True)
    descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout = open(1, 'w', encoding='utf-8', buffering=1, closefd=False)  # noqa: SIM115  lives as long as we do
    sys.stderr = open(2, 'w', encoding='utf-8', buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.enable(sys.stderr)
