"""CartPole with UniZero, collected and trained asynchronously.

    python zoo_configs/cartpole_unizero_segment_async_config.py --off-policy-degree 4 --max-env-step 2000

The settings are LightZero's own for CartPole UniZero, with the segment collector. `create_config` takes the `base`
environment manager, since a CartPole step is far cheaper than a message to a child process.
"""
from easydict import EasyDict

# ==============================================================
# begin of the most frequently changed config specified by the user
# ==============================================================
off_policy_degree = 4  # 0: serial, exactly LightZero; N: at most N rounds ahead; -1: tunes itself
engine = 'auto'  # where collector and evaluator work: thread, process, ray, or what suits this machine
enable_async_eval = True
collector_env_num = 8
num_segments = 8
evaluator_env_num = 3
num_simulations = 25
update_per_collect = None
replay_ratio = 0.25
max_env_step = int(2e5)
batch_size = 256
num_unroll_steps = 5
# ==============================================================
# end of the most frequently changed config specified by the user
# ==============================================================

main_config = EasyDict(
    exp_name=f'data_unizero_async/cartpole_unizero_segment_degree{off_policy_degree}_seed0',
    env=dict(
        env_id='CartPole-v0',
        continuous=False,
        manually_discretization=False,
        collector_env_num=collector_env_num,
        evaluator_env_num=evaluator_env_num,
        n_evaluator_episode=evaluator_env_num,
        stop_value=200,
        manager=dict(shared_memory=False),
    ),
    policy=dict(
        # ****** lzero-async ******
        off_policy_degree=off_policy_degree,
        engine=engine,
        enable_async_training=True,
        enable_async_eval=enable_async_eval,
        enable_async_debug_log=False,
        data_queue_size=10,
        # ****** LightZero ******
        model=dict(
            observation_shape=4,
            action_space_size=2,
            self_supervised_learning_loss=True,
            discrete_action_encoding_type='one_hot',
            norm_type='BN',
            model_type='mlp',
            world_model_cfg=dict(
                max_blocks=10,
                max_tokens=2 * 10,
                context_length=2 * 4,
                context_length_for_recurrent=2 * 4,
                device='cuda',
                action_space_size=2,
                num_layers=2,
                num_heads=2,
                embed_dim=64,
                env_num=max(collector_env_num, evaluator_env_num),
                collector_env_num=collector_env_num,
                evaluator_env_num=evaluator_env_num,
                obs_type='vector',
                norm_type='BN',
                rotary_emb=True,
            ),
        ),
        use_wandb=False,
        model_path=None,
        num_unroll_steps=num_unroll_steps,
        td_steps=5,
        cuda=True,
        use_augmentation=False,
        env_type='not_board_games',
        game_segment_length=20,
        num_segments=num_segments,
        update_per_collect=update_per_collect,
        replay_ratio=replay_ratio,
        batch_size=batch_size,
        optim_type='AdamW',
        piecewise_decay_lr_scheduler=False,
        learning_rate=0.0001,
        target_update_freq=100,
        grad_clip_value=5,
        num_simulations=num_simulations,
        reanalyze_ratio=0.,
        # Reanalyze the buffer every 50 rounds, 160 sequences from its older three quarters.
        buffer_reanalyze_freq=1 / 50,
        reanalyze_batch_size=160,
        reanalyze_partition=0.75,
        eval_freq=500,
        replay_buffer_size=int(1e6),
        collector_env_num=collector_env_num,
        evaluator_env_num=evaluator_env_num,
    ),
)

create_config = EasyDict(
    env=dict(
        type='cartpole_lightzero',
        import_names=['zoo.classic_control.cartpole.envs.cartpole_lightzero_env'],
    ),
    env_manager=dict(type='base'),
    policy=dict(
        type='unizero',
        import_names=['lzero.policy.unizero'],
    ),
)

if __name__ == '__main__':
    import sys

    from lzero_async.entry.cli import run_config

    sys.exit(run_config(main_config, create_config, max_env_step=max_env_step))
