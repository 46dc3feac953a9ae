"""What the GIL costs two threads that call torch: microseconds per call, alone and beside another thread.

    python -m benchmarks.gil
"""
import itertools
import sys
import threading
import time

import torch

SMALL, LARGE = torch.nn.Linear(64, 64), torch.nn.Linear(64, 256)
FEW, MANY = torch.randn(8, 64), torch.randn(2560, 64)


def small_call():
    SMALL(FEW)


def large_call():
    LARGE(MANY)


def python_only():
    sum(range(500))


def microseconds(call, seconds=2.0):
    begin = now = time.perf_counter()
    for count in itertools.count(1):
        call()
        now = time.perf_counter()
        if now - begin > seconds:
            return (now - begin) / count * 1e6


def beside(call, other):
    """`call` measured while another thread repeats `other`."""
    done = threading.Event()

    def keep_calling():
        torch.set_num_threads(1)
        with torch.no_grad():
            while not done.is_set():
                other()

    thread = threading.Thread(target=keep_calling)
    thread.start()
    result = microseconds(call)
    done.set()
    thread.join()
    return result


def main():
    torch.set_num_threads(1)
    with torch.no_grad():
        alone = {call: microseconds(call) for call in (small_call, large_call, python_only)}
        print('| call | alone | switch interval | beside small calls | beside large calls | beside Python |')
        print('|---|---|---|---|---|---|')
        for interval, call in itertools.product((0.005, 0.0005, 0.00005), (small_call, large_call)):
            sys.setswitchinterval(interval)
            row = [beside(call, other) for other in (small_call, large_call, python_only)]
            cells = [call.__name__, f'{alone[call]:.0f}', str(interval), *(f'{one:.0f}' for one in row)]
            print(f'| {" | ".join(cells)} |')


if __name__ == '__main__':
    main()
