"""A run in which nobody moves any more."""
import time

import pytest
from fakes import FakeCollector, Gate, make_run, our_threads
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
