"""What the schedule itself costs with many collectors: rounds per second, and CPU time per round.

    python -m benchmarks.many_collectors

Collectors that sleep for a second, and a learner that does nothing: all that is left is the gate, the queue, the bound
and the synchronizer, in one process with a thread per collector, as it is with every engine.
"""
import argparse
import contextlib
import time

from lzero_async import AsyncConfig, AsyncTrainingCoordinator
from lzero_async.core.protocols import RoundResult
from lzero_async.core.segments import Collected
from lzero_async.core.stop import RunLimits
from lzero_async.core.trainer import AsyncTrainer
from lzero_async.core.weights import WeightSnapshot

COLLECT_S = 1.0


class Sleeping:
    def load_weights(self, weights, policy_version):
        pass

    def collect(self, snapshot, keep_going):
        time.sleep(COLLECT_S)
        return Collected.of(snapshot.policy_version, None, 160, 160)


class Idle:
    train_iter = env_step = 0

    def admit(self, batch):
        self.env_step = max(self.env_step, batch.env_step)

    def train_round(self, keep_going):
        self.train_iter += 40
        return RoundResult(40, True)

    def snapshot(self):
        return WeightSnapshot(self.train_iter, self.env_step, {'weight': 1.0})

    def state(self):
        return None


class Never:
    def load_weights(self, weights, policy_version):
        pass

    def due(self, train_iter):
        return False


class Deaf:
    def on_round(self, record):
        pass


def measure(collectors, rounds):
    degree = 2 * collectors
    settings = AsyncConfig(off_policy_degree=degree, batch_generation_interval=0, data_queue_size=degree)
    learner = Idle()
    trainer = AsyncTrainer(
        AsyncTrainingCoordinator(degree), [Sleeping() for _ in range(collectors)], learner, Never(), Deaf(),
        RunLimits(160 * rounds, 10**12), settings=settings,
    )
    begin, cpu = time.perf_counter(), time.process_time()
    trainer.run()
    done = learner.train_iter // 40
    return done, time.perf_counter() - begin, (time.process_time() - cpu) / done


def main():
    parser = argparse.ArgumentParser(description='Measure the schedule with many collectors.')
    parser.add_argument('--collectors', type=int, nargs='+', default=(1, 10, 100, 1000))
    options = parser.parse_args()
    print('| collectors | rounds per s | of collectors / s | CPU time per round |\n|---|---|---|---|')
    for collectors in options.collectors:
        with contextlib.suppress(KeyboardInterrupt):
            rounds, seconds, cpu = measure(collectors, 8 * collectors)
            print(f'| {collectors} | {rounds / seconds:.1f} | {rounds / seconds * COLLECT_S / collectors:.0%} '
                  f'| {cpu * 1e3:.2f} ms |', flush=True)


if __name__ == '__main__':
    main()
