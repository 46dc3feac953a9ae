"""One run at a time in a folder, and no lock outlives its run."""
import os
import signal
import subprocess
import sys

import pytest

from lzero_async.checkpoints.errors import FolderInUse
from lzero_async.checkpoints.folder_lock import folder_locked

HOLD = """
import os, sys, time
from lzero_async.checkpoints.folder_lock import folder_locked
with folder_locked(sys.argv[1]):
    if os.fork() == 0:  # a child that lives on must not keep the lock
        os.close(1)
        time.sleep(30)
        os._exit(0)
    print('held', flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, '-c', HOLD, str(tmp_path / 'state')], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == 'held\n'
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_run_of_another_process_is_named(holder, tmp_path):
    with pytest.raises(FolderInUse, match=f'process {holder.pid} works there'), folder_locked(str(tmp_path / 'state')):
        pass


def test_a_run_that_was_killed_leaves_no_lock(holder, tmp_path):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with folder_locked(str(tmp_path / 'state')):
        pass


def test_two_runs_of_one_process(tmp_path):
    folder = str(tmp_path / 'state')
    with folder_locked(folder):
        with pytest.raises(FolderInUse), folder_locked(folder):
            pass
        with pytest.raises(FolderInUse), folder_locked(str(tmp_path / '.' / 'state')):
            pass
        with folder_locked(str(tmp_path / 'other')):
            pass
    with folder_locked(folder):
        pass
