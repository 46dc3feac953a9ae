"""Models that were made on this machine: a folder each, made once, whole or not at all."""
from __future__ import annotations

import contextlib
import fcntl
import glob
import logging
import os
import shutil
import tempfile
import threading
from typing import Callable, Iterator

logger = logging.getLogger(__name__)

VARIABLE = 'LZERO_ASYNC_CACHE'
_one_thread = threading.Lock()
"""Guards the locks on files: to the kernel, all threads of a process are one owner."""


def cache_folder() -> str:
    """`$LZERO_ASYNC_CACHE`, or lzero-async in the user's own cache."""
    own = os.environ.get(VARIABLE)
    if own:
        return os.path.abspath(os.path.expanduser(own))
    base = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
    return os.path.join(base, 'lzero-async')


def cached_model(name: str, make: Callable[[str], None]) -> str:
    """The folder `name` of the cache. If there is none, `make(folder)` fills one, in one process at a time.

    Blocks while another process makes it. What a killed process left half made is removed.
    """
    folder = os.path.join(cache_folder(), name)
    if os.path.isdir(folder):
        return folder
    os.makedirs(cache_folder(), exist_ok=True)
    with _locked(folder + '.lock'):
        if os.path.isdir(folder):
            return folder
        for left in glob.glob(f'{glob.escape(folder)}.making-*'):
            shutil.rmtree(left, ignore_errors=True)
        making = tempfile.mkdtemp(prefix=f'{name}.making-', dir=cache_folder())
        try:
            logger.info('making the model %s in %s, once', name, cache_folder())
            make(making)
            os.rename(making, folder)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
    return folder


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    with _one_thread, open(path, 'a+') as file:
        fcntl.lockf(file, fcntl.LOCK_EX)  # the kernel lets go of it when the file is closed
        yield
