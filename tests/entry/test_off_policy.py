"""Real runs: how off-policy the data is, bounded, counted and shown."""
import pathlib

import pytest
import torch
from small_configs import cartpole
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lzero_async.core.errors import EverythingDropped, RoleFailed, WeightsTooStale
from lzero_async.lightzero.learn import LightZeroLearner

NAMES = {
    'global_steps', 'processed_samples', 'current_param_version', 'param_sync_count', 'total_generated_samples',
    'dropped_stale_samples', 'generation_errors', 'param_sync_requests', 'avg_sample_age', 'max_sample_age',
    'stale_samples_ratio', 'queue_size', 'total_produced', 'total_consumed', 'dropped_samples', 'queue_memory_bytes',
}


def curves_of(result):
    events = EventAccumulator(str(pathlib.Path(result.exp_name, 'log', 'serial')))
    events.Reload()
    return {name: [point.value for point in events.Scalars(name)] for name in events.Tags()['scalars']}


def log_of(folder):
    return next(pathlib.Path(folder).glob('run*/log/lzero_async.log')).read_text()


def add_up(statistics):
    return statistics['total_generated_samples'] == statistics['processed_samples'] + statistics['dropped_samples']


def test_statistics_are_everywhere_and_add_up(train, tmp_path):
    kept = []
    result, summary = train(
        max_env_step=300, on_start=kept.append, off_policy_degree=3, async_training={'staleness_threshold': 0}
    )
    statistics, curves = summary['statistics'], curves_of(result)
    assert statistics.keys() >= NAMES and curves.keys() >= {f'Async/{name}' for name in NAMES}
    assert dict(kept[0].get_statistics()) == statistics
    assert add_up(statistics)
    assert statistics['global_steps'] == summary['updates'] == statistics['current_param_version']
    # The first weights, and those of each round; a round without updates is published under the version it has.
    assert statistics['param_sync_count'] == statistics['train_count'] + 1
    assert statistics['param_sync_requests'] == statistics['collect_count']
    assert 0 < statistics['avg_sample_age'] <= statistics['max_sample_age']
    assert 0 < statistics['stale_samples_ratio'] <= 1
    assert statistics['max_staleness'] <= 3
    assert max(curves['Async/replayed_staleness_max']) >= max(curves['Async/replayed_staleness_mean']) > 0
    log = log_of(tmp_path)
    assert 'Component Statistics: trainer: global_steps=' in log and 'Parameter sync: version' in log


def test_samples_past_a_bound_are_dropped_and_the_replay_ratio_holds(train, tmp_path, monkeypatch):
    owed = []
    admit = LightZeroLearner.admit

    def noted(self, batch):
        admit(self, batch)
        owed.append(batch.transitions if self._may_train() else 0)

    monkeypatch.setattr(LightZeroLearner, 'admit', noted)
    _, summary = train(max_env_step=500, off_policy_degree=4, max_staleness_allowed=0, replay_ratio=0.3)
    statistics = summary['statistics']
    assert statistics['dropped_stale_samples'] > 0 and statistics['max_staleness'] == 0
    assert add_up(statistics)
    assert statistics['collect_count'] == statistics['train_count'] + statistics['drop_count']
    assert summary['updates'] == int(0.3 * sum(owed))
    assert '> max_staleness_allowed 0' in log_of(tmp_path)


def test_a_run_that_drops_everything_says_so(train):
    with pytest.raises(RoleFailed) as failed:
        train(max_env_step=5000, off_policy_degree=2, max_sample_age_s=1e-6, max_consecutive_drops=3)
    assert isinstance(failed.value.__cause__, EverythingDropped)
    assert 'max_sample_age_s 1e-06' in str(failed.value)


def test_weights_that_are_not_finite_never_reach_a_collector(train, tmp_path, monkeypatch):
    train_round = LightZeroLearner.train_round
    rounds = []

    def spoilt(self, keep_going):
        result = train_round(self, keep_going)
        rounds.append(result)
        if len(rounds) == 4:
            with torch.no_grad():
                next(self._policy._learn_model.parameters()).fill_(float('nan'))
            monkeypatch.setattr(LightZeroLearner, '_update_once', lambda *args: None)  # the host would raise here
        return result

    monkeypatch.setattr(LightZeroLearner, 'train_round', spoilt)
    with pytest.raises(RoleFailed) as failed:
        train(max_env_step=5000, off_policy_degree=2, update_per_collect=2)
    assert isinstance(failed.value.__cause__, WeightsTooStale)
    log = log_of(tmp_path)
    assert 'of round 4 is not published' in log and 'is not finite' in log


def test_on_policy_rounds(train):
    result, summary = train(max_env_step=400, off_policy_degree=0, sync_batch_size=60)
    statistics, curves = summary['statistics'], curves_of(result)
    assert min(curves['Sync/BatchSize']) >= 60
    assert curves['Sync/PolicyVersion'] == sorted(curves['Sync/PolicyVersion'])
    assert len(curves['Sync/CollectionTime']) == len(curves['Sync/UpdateTime']) == summary['rounds']
    assert curves['Buffer/SamplesCollected'][-1] == statistics['samples_collected'] == sum(curves['Sync/BatchSize'])
    assert max(curves['Buffer/num_of_transitions']) > 0
    assert statistics['refused_samples'] > 0  # what the host handed over late
    assert summary['max_staleness'] == 0
    assert statistics['processed_samples'] == statistics['samples_collected']


def test_the_degree_tunes_itself(train, tmp_path):
    main, create = cartpole('run', off_policy_degree=-1, max_off_policy_degree=15)
    main.policy.update(num_simulations=2, update_per_collect=1)
    # One environment makes short rounds, and many of them.
    main.env.collector_env_num = main.policy.collector_env_num = main.policy.num_segments = 1
    main.policy.model.world_model_cfg.update(collector_env_num=1, env_num=2)
    result, summary = train(config=(main, create), max_env_step=1200)
    degrees, lags = (curves_of(result)[f'Async/{name}'] for name in ('off_policy_degree', 'lag'))
    assert degrees[0] == 15 > summary['statistics']['off_policy_degree'] >= 1
    assert all(lag <= degree for lag, degree in zip(lags, degrees))
    assert 'from now on: ' in log_of(tmp_path)


def test_a_callback_that_raises_costs_the_run_nothing(train, tmp_path):
    def bad(report):
        raise ValueError('a bad callback')

    result, _ = train(max_env_step=60, off_policy_degree=2, added={'monitor_callbacks': [bad]})
    assert result.ended_by == 'max_env_step'
    assert 'a bad callback' in log_of(tmp_path)
