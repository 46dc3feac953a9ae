"""One run at a time in an experiment folder. The kernel lets go of the lock when the run's process is gone."""
from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from typing import Iterator, Set

from .errors import FolderInUse

NAME = 'lock'
_guard = threading.Lock()
_held: Set[str] = set()
"""By runs of this process: to the kernel they are one."""


@contextlib.contextmanager
def folder_locked(folder: str) -> Iterator[None]:
    """Raises FolderInUse if another run, of whatever process, is at work in it."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.realpath(os.path.join(folder, NAME))
    with _guard:
        if path in _held:
            raise _in_use(folder, os.getpid())
        file = open(path, 'a+')  # noqa: SIM115  open as long as the run lasts
        try:
            # Unlike flock, this is not passed on to forked children, which might live on for a moment.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            owner = file.read().strip()
            file.close()
            raise _in_use(folder, owner or 'unknown') from error
        _held.add(path)
    try:
        file.truncate(0)
        file.write(f'{os.getpid()}\n')
        file.flush()
        yield
    finally:
        with _guard:
            _held.discard(path)
            file.close()


def _in_use(folder: str, owner: object) -> FolderInUse:
    return FolderInUse(f'{folder} must be the folder of one run at a time, got a second: process {owner} works there')
