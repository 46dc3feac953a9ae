"""Real asynchronous runs keep their bounds and their accounts."""
import pathlib
import threading

import pytest
import torch
from small_configs import cartpole
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lzero_async.entry.run import run_training
from lzero_async.lightzero.evaluate import LightZeroEvaluator
from lzero_async.lightzero.learn import LightZeroLearner

CURVES = {
    'Async/lag', 'Async/staleness_mean', 'Async/staleness_max', 'Async/policy_version', 'Async/queue_size',
    'Async/off_policy_degree', 'Async/collector_idle_ratio', 'Async/learner_idle_ratio', 'Async/evaluator_idle_ratio',
    'Async/env_steps_per_s', 'Async/updates_per_s', 'Async/overlap_ratio',
}
BUFFER_CURVES = {
    'Buffer/num_of_all_collected_episodes', 'Buffer/num_of_game_segments', 'Buffer/num_of_transitions',
    'Buffer/memory_usage/game_segment_buffer', 'Buffer/memory_usage/process',
}


@pytest.fixture
def owed(monkeypatch):
    """Transitions of all batches that owe updates, as the learner sees them."""
    transitions = []
    admit = LightZeroLearner.admit

    def noted(self, batch):
        admit(self, batch)
        if self._may_train():
            transitions.append(batch.transitions)

    monkeypatch.setattr(LightZeroLearner, 'admit', noted)
    return transitions


@pytest.mark.parametrize('degree', [2, 8])
def test_bounds_and_replay_ratio(train, owed, degree):
    # 0.3 leaves a fraction of an update at nearly every round
    result, summary = train(max_env_step=500, off_policy_degree=degree, replay_ratio=0.3, enable_async_eval=True)
    statistics = summary['statistics']
    assert result.ended_by == summary['ended_by'] == 'max_env_step'
    assert statistics['mode'] == 'asynchronous'
    assert statistics['collect_count'] == statistics['train_count'] >= 4
    assert 1 <= summary['max_lag'] <= degree
    assert summary['max_staleness'] <= degree
    assert summary['updates'] == int(0.3 * sum(owed))
    assert summary['env_steps'] >= 500
    assert not [thread for thread in threading.enumerate() if 'lzero-async' in thread.name]

    checkpoints = pathlib.Path(result.exp_name, 'ckpt')
    assert (checkpoints / f'iteration_{summary["updates"]}.pth.tar').is_file()
    events = EventAccumulator(str(pathlib.Path(result.exp_name, 'log', 'serial')))
    events.Reload()
    tags = set(events.Tags()['scalars'])
    assert tags >= CURVES | BUFFER_CURVES
    assert len(events.Scalars('Async/lag')) == statistics['train_count']
    assert max(point.value for point in events.Scalars('Async/lag')) <= degree
    for package in ('lzero-async', 'lightzero', 'DI-engine', 'torch'):
        assert summary['versions'][package]


def test_auto_degree_comes_from_buffer_and_batch(train):
    _, summary = train(max_env_step=40, off_policy_degree=-1, replay_buffer_size=3200)
    assert summary['statistics']['off_policy_degree'] == 3200 // 16 // 10


def test_train_ahead(train):
    _, summary = train(max_env_step=300, off_policy_degree=2, max_train_ahead=2)
    statistics = summary['statistics']
    assert statistics['collect_count'] <= statistics['train_count'] <= statistics['collect_count'] + 2


@pytest.mark.parametrize('degree', [1, 2, -1])
def test_a_learner_that_waits_reanalyzes_old_segments_and_keeps_all_bounds(train, degree):
    result, summary = train(
        max_env_step=500, off_policy_degree=degree, background_reanalyze=True, update_per_collect=1, eval_freq=10 ** 6,
        replay_buffer_size=300,
    )
    statistics = summary['statistics']
    assert statistics['background_reanalyzed_segments'] > 0 and statistics['background_reanalyze_time'] > 0
    assert statistics['collect_count'] == statistics['train_count']
    assert 0 < summary['updates'] <= summary['rounds'], 'one update for each round that had enough data'
    assert statistics['total_generated_samples'] == statistics['processed_samples'] + statistics['dropped_samples']
    assert summary['max_staleness'] <= statistics['off_policy_degree']
    events = EventAccumulator(str(pathlib.Path(result.exp_name, 'log', 'serial')))
    events.Reload()
    drawn = [point.value for point in events.Scalars('Async/background_reanalyzed_segments')]
    assert len(drawn) > 0 and drawn == sorted(drawn)
    log = pathlib.Path(result.exp_name, 'log', 'lzero_async.log').read_text()
    assert f'background_reanalyzed_segments={statistics["background_reanalyzed_segments"]} ' in log


@pytest.mark.parametrize('background', [True, False])
def test_best_checkpoint_holds_the_evaluated_weights(train, monkeypatch, background):
    evaluated = []
    evaluate = LightZeroEvaluator.evaluate

    def noted(self, snapshot, keep_going):
        evaluation = evaluate(self, snapshot, keep_going)
        evaluated.append((snapshot, evaluation, threading.current_thread().name))
        return evaluation

    monkeypatch.setattr(LightZeroEvaluator, 'evaluate', noted)
    result, summary = train(
        max_env_step=500, off_policy_degree=2, enable_async_eval=background, eval_freq=15, replay_ratio=0.3
    )
    assert len(evaluated) >= 2 and summary['statistics']['eval_count'] == len(evaluated)
    for _, _, thread in evaluated:
        assert thread.startswith('lzero-async-evaluator' if background else 'lzero-async-learner')
    best, evaluation, _ = max(evaluated, key=lambda one: (one[1].is_best, one[1].policy_version))
    assert summary['best_evaluation']['reward_mean'] == evaluation.reward_mean
    saved = torch.load(pathlib.Path(result.exp_name, 'ckpt', 'ckpt_best.pth.tar'))
    assert saved['last_iter'] == best.policy_version and saved['last_step'] == best.env_step
    model = {key.replace('_orig_mod.', ''): value for key, value in saved['model'].items()}
    assert model.keys() == best.weights.keys()
    for key, tensor in best.weights.items():
        assert torch.equal(model[key], tensor), key
    assert saved['optimizer_world_model']['state'] and saved['target_model']


def test_serial_with_background_evaluation(train):
    result, summary = train(max_env_step=250, off_policy_degree=0, enable_async_eval=True, eval_freq=10)
    assert summary['statistics']['mode'] == 'synchronous'
    assert summary['statistics']['eval_count'] >= 1
    assert summary['max_staleness'] == 0
    assert pathlib.Path(result.exp_name, 'ckpt', 'ckpt_best.pth.tar').is_file()


def test_checkpoint_of_ours_loads_in_a_new_run(train):
    first, summary = train(max_env_step=250, off_policy_degree=2)
    path = f'{first.exp_name}/ckpt/iteration_{summary["updates"]}.pth.tar'
    second, _ = train(model_path=path, off_policy_degree=2, on_start=lambda trainer: trainer.request_stop())
    assert second.ended_by == 'request_stop' and second.exp_name != first.exp_name
    saved, loaded = torch.load(path)['model'], second.policy.learn_mode.state_dict()['model']
    assert all(torch.equal(saved[key], loaded[key]) for key in saved)


def test_checkpoints_of_lightzero_load_here_and_ours_load_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(exp_name, model_path=None, max_env_step=150, **policy):
        return run_training(cartpole(exp_name, **policy), model_path=model_path, max_env_step=max_env_step)

    def newest(exp_name):
        paths = pathlib.Path(exp_name, 'ckpt').glob('iteration_*.pth.tar')
        return str(max(paths, key=lambda path: int(path.name.split('_')[1].split('.')[0])))

    untrained = {'max_env_step': 1, 'train_start_after_envsteps': 10 ** 6}
    host = {'enable_async_training': False}
    run('ours', off_policy_degree=2)
    assert_same_weights(newest('ours'), run('there', newest('ours'), **host, **untrained).policy)
    run('theirs', **host)
    assert_same_weights(newest('theirs'), run('here', newest('theirs'), off_policy_degree=2, **untrained).policy)


def assert_same_weights(path, policy):
    saved, loaded = torch.load(path)['model'], policy.learn_mode.state_dict()['model']
    assert saved.keys() == loaded.keys()
    for key, tensor in saved.items():
        assert torch.equal(tensor, loaded[key]), key
