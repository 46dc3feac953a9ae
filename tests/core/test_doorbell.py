"""A ring is never slept through, whoever rings and whenever."""
import os
import signal
import subprocess
import sys
import threading

import pytest
from fakes import TIMEOUT, start

from lzero_async.core.doorbell import Doorbell, ctrl_c_blocked


@pytest.fixture
def doorbell():
    made = Doorbell()
    yield made
    made.close()


def test_a_ring_before_the_wait_ends_it(doorbell):
    doorbell.ring()
    assert start(doorbell.wait, 'waiter').result(TIMEOUT) is None


def test_a_wait_may_end_without_a_ring(doorbell):
    assert start(lambda: doorbell.wait(0.01), 'waiter').result(TIMEOUT) is None
    doorbell.ring()
    assert start(doorbell.wait, 'waiter').result(TIMEOUT) is None  # and the next ring is heard as ever


def test_many_rings_do_not_block_the_ringer(doorbell):
    def ring_often():
        for _ in range(1_000_000):
            doorbell.ring()
    assert start(ring_often, 'ringer').result(TIMEOUT) is None
    doorbell.wait()


@pytest.mark.timeout(60)
def test_no_signal_is_slept_through(doorbell):
    # The handler's flag is looked at only after a wait: if one signal were lost, this would hang.
    for _ in range(300):
        seen = []
        with doorbell.rung_by_ctrl_c(lambda seen=seen: seen.append(1)):
            killer = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT))
            killer.start()
            while not seen:
                doorbell.wait()
            killer.join(TIMEOUT)


def test_second_signal_raises_and_all_is_put_back(doorbell):
    handler, descriptor = signal.getsignal(signal.SIGINT), signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    seen = []
    with pytest.raises(KeyboardInterrupt), doorbell.rung_by_ctrl_c(lambda: seen.append(1)):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert seen == [1]
    assert signal.getsignal(signal.SIGINT) is handler
    assert signal.set_wakeup_fd(descriptor) == descriptor


def test_outside_of_the_main_thread_signals_are_left_alone(doorbell):
    handler = signal.getsignal(signal.SIGINT)

    def enter():
        with doorbell.rung_by_ctrl_c(lambda: None):
            return signal.getsignal(signal.SIGINT)
    assert start(enter, 'elsewhere').result(TIMEOUT) is handler


def test_processes_started_while_blocked_do_not_get_it():
    with ctrl_c_blocked():
        child = subprocess.Popen([sys.executable, '-c', 'print("up", flush=True); input()'],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert child.stdout.readline() == 'up\n'
    child.send_signal(signal.SIGINT)
    child.communicate('go on\n', timeout=TIMEOUT)
    assert child.returncode == 0
