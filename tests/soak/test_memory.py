"""Long runs: memory, threads and file handles stay flat, apart from the replay buffer, which stays under its limit.

SOAK_MINUTES (30) is how long the real training lasts.
"""
import gc
import json
import os
import statistics
import threading
import time

import psutil
import pytest
from fakes import FakeLearner, make_run
from small_configs import cartpole

from lzero_async.entry.run import run_training

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

MINUTES = float(os.environ.get('SOAK_MINUTES', 30))
ROUNDS = 100_000
MEGABYTE = 1e6


class Samples:
    """Of this process, taken now and then by a thread."""

    def __init__(self, interval, buffer_bytes=lambda: 0):
        self._interval = interval
        self._buffer_bytes = buffer_bytes
        self._process = psutil.Process()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._take, name='soak-samples', daemon=True)
        self.taken = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _take(self):
        while not self._over.wait(self._interval):
            memory = self._process.memory_info().rss - self._buffer_bytes()
            self.taken.append((memory / MEGABYTE, self._process.num_threads(), self._process.num_fds()))

    def assert_flat(self, megabytes):
        """The last quarter is as the second one."""
        quarter = len(self.taken) // 4
        assert quarter >= 3, 'too few samples to tell'
        for place, (what, allowed) in enumerate((('MB', megabytes), ('threads', 0), ('file handles', 1))):
            before, after = (
                statistics.median(one[place] for one in part)
                for part in (self.taken[quarter:2 * quarter], self.taken[-quarter:])
            )
            print(f'{what}: {before:g} then {after:g}')
            assert after - before <= allowed, f'{what} grow from {before} to {after}'


class ForgetfulLearner(FakeLearner):
    """Keeps no record of what it was given."""

    def admit(self, batch):
        super().admit(batch)
        self.admitted.clear()
        self.rounds.clear()


def test_a_hundred_thousand_rounds_of_fakes():
    run = make_run(degree=4, learner=ForgetfulLearner(), max_train_iter=2 * ROUNDS)
    for collector in run.collectors:
        collector.snapshots = collector.loaded = Nothing()
    run.observer.on_round = lambda record: None
    with Samples(0.5) as samples:
        run.trainer.run()
    gc.collect()
    assert run.trainer.get_statistics()['train_count'] >= ROUNDS
    samples.assert_flat(megabytes=5)


class Nothing(list):
    """A list that counts what is added, and keeps none of it."""

    count = 0

    def append(self, item):
        self.count += 1

    def __len__(self):
        return self.count


def test_real_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main, create = cartpole(
        'run', off_policy_degree=4, enable_async_eval=True, eval_freq=200, replay_buffer_size=2000,
        checkpoint_interval_rounds=20,
    )
    main.env.stop_value = 10 ** 6  # it may well learn to play
    stop_at = time.monotonic() + 60 * MINUTES
    found = {}

    def on_start(trainer):
        found['trainer'] = trainer
        threading.Thread(target=end_in_time, args=(trainer, stop_at), daemon=True).start()

    with Samples(max(1.0, MINUTES / 4)) as samples:
        result = run_training([main, create], max_env_step=10 ** 9, on_start=on_start)
    assert result.ended_by == 'request_stop'
    with open('run/async_summary.json') as file:
        print(json.load(file)['statistics'])
    buffer = found['trainer']._learner._buffer
    samples_held = sum(min(len(segment), 10) for segment in buffer.game_segment_buffer)
    assert buffer.base_idx > 0 and samples_held == buffer.get_num_of_transitions() <= 2000
    assert sum(entry.stat().st_size for entry in os.scandir('run/state')) < 200 * MEGABYTE
    samples.assert_flat(megabytes=40)


def end_in_time(trainer, stop_at):
    time.sleep(max(0.0, stop_at - time.monotonic()))
    trainer.request_stop()
