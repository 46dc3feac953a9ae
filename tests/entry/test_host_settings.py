"""LightZero's own settings mean in an asynchronous run what they mean in its own."""
import pathlib

import pytest
from small_configs import cartpole

from lzero_async import ConfigError
from lzero_async.lightzero.collect import LightZeroCollector
from lzero_async.lightzero.learn import LightZeroLearner
from lzero_async.lightzero.replay.vector_targets import VectorTargetsBuffer


def test_update_per_collect_priority_random_collect_and_reanalyze(train, monkeypatch):
    reanalyzed, random_batches = [], []
    reanalyze = VectorTargetsBuffer.reanalyze_buffer
    monkeypatch.setattr(
        VectorTargetsBuffer, 'reanalyze_buffer',
        lambda self, size, policy: (reanalyzed.append(size), reanalyze(self, size, policy))[1],
    )
    collect_random = LightZeroCollector.collect_random
    monkeypatch.setattr(
        LightZeroCollector, 'collect_random',
        lambda self, version: random_batches.append(collect_random(self, version)) or random_batches[-1],
    )
    result, summary = train(
        max_env_step=300, off_policy_degree=2, update_per_collect=4, use_priority=True, random_collect_episode_num=4,
        buffer_reanalyze_freq=2, reanalyze_batch_size=4, reanalyze_partition=0.75,
    )
    done = [facts['done'] for batch in random_batches for piece in batch.pieces for facts in piece.segments[1]]
    assert sum(done) >= 4
    # The random episodes fill the buffer, so every round trains: 4 updates each, and none for the random ones.
    assert summary['updates'] == 4 * summary['rounds']
    assert len(reanalyzed) == 2 * summary['rounds']
    log = pathlib.Path(result.exp_name, 'log', 'lzero_async.log').read_text()
    assert 'use_priority: this LightZero learner reports no new priorities' in log


def test_train_start_epsilon_and_reanalyze_between_rounds(train, monkeypatch):
    first_updates, epsilons, reanalyzed = [], [], []
    update = LightZeroLearner._update_once
    monkeypatch.setattr(
        LightZeroLearner, '_update_once',
        lambda self, batch: (first_updates.append(self.env_step), update(self, batch))[1],
    )
    epsilon = LightZeroCollector._epsilon
    monkeypatch.setattr(
        LightZeroCollector, '_epsilon',
        lambda self, env_step: epsilons.append(epsilon(self, env_step)) or epsilons[-1],
    )
    reanalyze = VectorTargetsBuffer.reanalyze_buffer
    monkeypatch.setattr(
        VectorTargetsBuffer, 'reanalyze_buffer',
        lambda self, size, policy: (reanalyzed.append(size), reanalyze(self, size, policy))[1],
    )
    main, create = cartpole('run')
    main.policy.eps = {
        'eps_greedy_exploration_in_collect': True, 'type': 'linear', 'start': 1.0, 'end': 0.1, 'decay': 400
    }
    _, summary = train(
        config=(main, create), max_env_step=400, off_policy_degree=2, train_start_after_envsteps=150,
        buffer_reanalyze_freq=1 / 2, reanalyze_batch_size=4, reanalyze_partition=0.75,
    )
    assert first_updates and min(first_updates) > 150
    assert epsilons[0] == 1.0 and epsilons == sorted(epsilons, reverse=True) and epsilons[-1] < 0.9
    assert len(reanalyzed) == (summary['rounds'] - 1) // 2


def test_temperature_follows_the_version_of_the_weights(train, monkeypatch):
    seen = []
    temperature = LightZeroCollector._temperature
    monkeypatch.setattr(
        LightZeroCollector, '_temperature',
        lambda self, train_iter: seen.append((train_iter, temperature(self, train_iter))) or seen[-1][1],
    )
    train(
        max_env_step=300, off_policy_degree=1, manual_temperature_decay=True,
        threshold_training_steps_for_final_temperature=40,
    )
    # LightZero's schedule: 1.0 up to half of the threshold, then 0.5, then 0.25 from three quarters on.
    for train_iter, value in seen:
        assert value == (1.0 if train_iter < 20 else 0.5 if train_iter < 30 else 0.25)
    assert len({value for _, value in seen}) > 1


def pendulum():
    main, create = cartpole('run')
    from zoo.classic_control.pendulum.config.pendulum_cont_sampled_unizero_config import create_config, main_config

    sampled = main_config.policy.model
    main.env.update(env_id='Pendulum-v1', continuous=True, manually_discretization=False, each_dim_disc_size=1)
    main.env.stop_value = 10 ** 6
    world_model = dict(sampled.world_model_cfg)
    world_model.update(
        num_layers=1, num_heads=2, embed_dim=16, env_num=3, collector_env_num=3, evaluator_env_num=2,
        num_of_sampled_actions=4,
    )
    main.policy.model = {**sampled, 'num_of_sampled_actions': 4, 'world_model_cfg': world_model}
    main.policy.num_unroll_steps = 10
    main.policy.game_segment_length = 20
    create.env.update(create_config.env)
    create.policy.update(create_config.policy)
    return type(main)(main), create


def test_background_reanalyze_is_refused_where_lightzero_cannot_reanalyze(train):
    with pytest.raises(ConfigError, match=r'background_reanalyze must be False for sampled_unizero: .*, got True'):
        train(config=pendulum(), max_env_step=200, off_policy_degree=2, background_reanalyze=True)


@pytest.mark.parametrize('degree', [0, 2])
def test_sampled_unizero(train, degree):
    _, summary = train(config=pendulum(), max_env_step=200, off_policy_degree=degree, eval_freq=10 ** 6)
    assert summary['ended_by'] == 'max_env_step'
    assert summary['updates'] > 0
    assert summary['max_lag'] <= max(1, degree)
