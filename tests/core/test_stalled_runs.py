"""A run in which nobody moves any more."""
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fakes import FakeCollector, FakeLearner, Gate, make_run, our_threads
from loops import listening

from lzero_async.core import trainer as trainer_module
from lzero_async.core.errors import RoleFailed
from lzero_async.core.watchdog import Stalled


@pytest.fixture
def hanging(monkeypatch):
    """A collector that hangs in its third collect, until the test is over."""
    monkeypatch.setattr(trainer_module, 'LEAVING_S', 0.2)
    gate = Gate()
    collector = FakeCollector(work=lambda call, keep_going: gate() if call == 3 else None)
    collector.let_go = gate.open
    yield collector
    gate.open()
    while our_threads():  # the one that was left behind ends as soon as it does not hang any more
        time.sleep(0.01)


def test_a_run_that_stalls_ends_with_a_report_and_what_was_collected_is_trained(hanging):
    run = make_run(degree=2, collectors=[hanging], stall_timeout=3.0)
    with listening() as ear, pytest.raises(RoleFailed, match='the run failed: Stalled: no role has made') as failed:
        run.trainer.run()
    assert isinstance(failed.value.__cause__, Stalled)
    told = str(failed.value)
    assert 'collector-0: collects with version ' in told and 'learner: waits for a batch' in told
    assert run.trainer.get_statistics()['train_count'] == 2
    (report,) = ear.all_with('no role has made progress')
    assert 'thread lzero-async-collector-0:' in report and 'test_stalled_runs.py' in report


def test_or_it_goes_on_waiting(hanging):
    told = []
    run = make_run(degree=2, collectors=[hanging], stall_timeout=2.0, stall_ends_run=False, max_env_step=50)

    def tell(report):
        told.append(report)
        hanging.let_go()

    run.trainer._tell_stall = tell
    outcome = run.trainer.run()
    assert outcome.ended_by == 'max_env_step' and len(told) >= 1


def test_without_a_timeout_nobody_watches():
    run = make_run(degree=2, stall_timeout=None, max_env_step=30)
    assert run.trainer.run().ended_by == 'max_env_step'


# ------------------------------------------------------------------ serial runs


class Sleeper:
    """Hangs as a foreign library does, in its third collect."""

    def __call__(self, call, keep_going):
        if call == 3:
            time.sleep(3600)


def test_a_serial_run_that_stalls_ends_with_a_report():
    run = make_run(degree=0, collectors=[FakeCollector(work=Sleeper())], stall_timeout=2.0)
    with listening() as ear, pytest.raises(RoleFailed, match='the collector failed: Stalled: no role') as failed:
        run.trainer.run()
    assert failed.value.role == 'collector' and isinstance(failed.value.__cause__, Stalled)
    assert run.trainer.get_statistics()['train_count'] == 2
    (report,) = ear.all_with('no role has made progress')
    assert 'thread MainThread:' in report and 'time.sleep(3600)' in report
    assert not our_threads()


def test_a_serial_run_in_another_thread_is_reported_and_goes_on():
    gate, told = Gate(), []
    run = make_run(
        degree=0, collectors=[FakeCollector(work=lambda call, keep_going: gate() if call == 3 else None)],
        stall_timeout=2.0, max_env_step=50,
    )

    def tell(report):
        told.append(report)
        gate.open()

    run.trainer._tell_stall = tell
    with ThreadPoolExecutor(max_workers=1) as pool, pytest.raises(RoleFailed, match='the collector failed: Stalled'):
        pool.submit(run.trainer.run).result(timeout=60)
    assert len(told) == 1


def test_a_learner_that_hangs_is_named_so_that_it_is_not_saved(monkeypatch):
    monkeypatch.setattr(trainer_module, 'LEAVING_S', 0.2)
    gate = Gate()
    run = make_run(degree=2, learner=FakeLearner(work=lambda call, keep_going: gate() if call == 2 else None),
                   stall_timeout=3.0)
    with pytest.raises(RoleFailed, match='the learner failed: Stalled') as failed:
        run.trainer.run()
    assert failed.value.role == 'learner'
    gate.open()
    while our_threads():
        time.sleep(0.01)
