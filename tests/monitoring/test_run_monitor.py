import pytest
from fakes import FakeClock
from reports import activity, record, statistics

from lzero_async.core.config import AsyncConfig
from lzero_async.core.coordinator import AsyncTrainingCoordinator
from lzero_async.core.on_policy import OnPolicyRecord
from lzero_async.core.protocols import Evaluation, SampleAges
from lzero_async.monitoring.component_statistics import COMPONENTS
from lzero_async.monitoring.run_monitor import RunMonitor


class Curves(dict):
    """Stands in for a SummaryWriter: name -> list of (step, value)."""

    def add_scalar(self, name, value, step):
        self.setdefault(name, []).append((step, value))


class Learner:
    train_iter, env_step = 45, 160


@pytest.fixture
def curves():
    return Curves()


@pytest.fixture
def monitor(curves):
    return RunMonitor(AsyncTrainingCoordinator(4, clock=FakeClock()), Learner(), curves, AsyncConfig(), 'exp')


def test_means_and_maxima(monitor):
    for lag in (1, 2, 4):
        monitor.on_round(record(lag=lag))
    monitor.listen_to(lambda: statistics(mean_staleness=1.5, max_staleness=3))
    report = monitor.report()
    assert (report.mean_staleness, report.max_staleness) == (1.5, 3)
    assert report.mean_lag == 7 / 3
    assert (report.updates, report.env_steps) == (45, 160)


def test_curves_are_over_the_time_since_the_last_point(monitor, curves):
    monitor.on_round(record(env_step=80, train_iter=20, activity=activity(10.0, 0.0, 10.0, 0.0)))
    monitor.on_round(record(env_step=120, train_iter=45, updates=25, activity=activity(15.0, 2.5, 12.5, 5.0)))
    # 5 s passed: 40 env steps, 25 updates, collect busy for 2.5 s, train for 5 s, both for 2.5 s
    assert curves['Async/env_steps_per_s'] == [(20, 8.0), (45, 8.0)]
    assert curves['Async/updates_per_s'][1] == (45, 5.0)
    assert curves['Async/collector_idle_ratio'][1] == (45, 0.5)
    assert curves['Async/learner_idle_ratio'][1] == (45, 0.0)
    assert curves['Async/evaluator_idle_ratio'][1] == (45, 1.0)
    assert curves['Async/overlap_ratio'][1] == (45, 0.5)


def test_best_evaluation_is_kept(monitor):
    monitor.on_evaluation(Evaluation(10, 100, 50.0, True, False))
    monitor.on_evaluation(Evaluation(20, 200, 30.0, False, False))
    report = monitor.report()
    assert report.last_evaluation.reward_mean == 30.0 and report.best_evaluation.reward_mean == 50.0


def test_ending(monitor):
    assert monitor.report().ended_by is None
    monitor.ended('failure', 'the learner failed')
    report = monitor.report()
    assert (report.ended_by, report.error) == ('failure', 'the learner failed')


def test_every_number_of_a_component_is_drawn_and_logged(monitor, curves, caplog):
    caplog.set_level('INFO', logger='lzero_async')
    names = [name for names in COMPONENTS.values() for name in names]
    monitor.listen_to(lambda: statistics(**{name: 7 for name in names}))
    monitor.on_round(record(queue_size=7, replayed=SampleAges(10, 1.5, 4, 2.5, 9.0)))
    monitor.log_statistics()
    for name in ('global_steps', 'processed_samples', 'current_param_version', 'param_sync_count',
                 'total_generated_samples', 'dropped_stale_samples', 'generation_errors', 'param_sync_requests',
                 'avg_sample_age', 'max_sample_age', 'stale_samples_ratio',
                 'queue_size', 'total_produced', 'total_consumed', 'dropped_samples', 'queue_memory_bytes',
                 'background_reanalyzed_segments', 'background_reanalyze_time'):
        assert curves[f'Async/{name}'] == [(20, 7)], name
        assert f'{name}=7' in caplog.text
    assert caplog.text.count('Component Statistics') == 1
    assert curves['Async/replayed_staleness_mean'] == [(20, 1.5)]
    assert curves['Async/replayed_staleness_max'] == [(20, 4)]
    assert curves['Async/replayed_age_mean'] == [(20, 2.5)]
    assert curves['Async/replayed_age_max'] == [(20, 9.0)]


def test_curves_of_an_on_policy_round(monitor, curves):
    monitor.on_policy_round(OnPolicyRecord(1024, 40, 2.5, 1.5, 2048, 16))
    assert curves == {
        'Sync/BatchSize': [(45, 1024)], 'Sync/PolicyVersion': [(45, 40)], 'Sync/CollectionTime': [(45, 2.5)],
        'Sync/UpdateTime': [(45, 1.5)], 'Sync/RefusedSamples': [(45, 16)], 'Buffer/SamplesCollected': [(45, 2048)],
    }
