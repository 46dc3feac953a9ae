"""Atari Pong with UniZero, collected and trained asynchronously.

    python zoo_configs/pong_unizero_segment_async_config.py --engine process --max-env-step 500000

The settings are LightZero's own for Atari UniZero with the segment collector (`atari_unizero_segment_config.py`). Needs
`gymnasium[atari]` with the ROMs, and OpenCV: see docs/scaling.md.
"""
from easydict import EasyDict

# ==============================================================
# begin of the most frequently changed config specified by the user
# ==============================================================
env_id = 'PongNoFrameskip-v4'
action_space_size = 6
off_policy_degree = 4  # 0: serial, exactly LightZero; N: at most N rounds ahead; -1: tunes itself
engine = 'auto'
enable_async_eval = True
collector_env_num = 8
num_segments = 8
evaluator_env_num = 10
num_simulations = 50
replay_ratio = 0.25
max_env_step = int(5e5)
batch_size = 64
num_unroll_steps = 10
infer_context_length = 4
# ==============================================================
# end of the most frequently changed config specified by the user
# ==============================================================

main_config = EasyDict(
    exp_name=f'data_unizero_async/pong_unizero_segment_degree{off_policy_degree}_seed0',
    env=dict(
        env_id=env_id,
        stop_value=int(1e6),
        observation_shape=(3, 64, 64),
        gray_scale=False,
        collector_env_num=collector_env_num,
        evaluator_env_num=evaluator_env_num,
        n_evaluator_episode=evaluator_env_num,
        manager=dict(shared_memory=False),
    ),
    policy=dict(
        # ****** lzero-async ******
        off_policy_degree=off_policy_degree,
        engine=engine,
        enable_async_eval=enable_async_eval,
        # ****** LightZero ******
        learn=dict(learner=dict(hook=dict(save_ckpt_after_iter=1000000))),
        model=dict(
            observation_shape=(3, 64, 64),
            action_space_size=action_space_size,
            support_scale=300,
            world_model_cfg=dict(
                support_size=601,
                policy_entropy_weight=5e-3,
                continuous_action_space=False,
                max_blocks=num_unroll_steps,
                max_tokens=2 * num_unroll_steps,
                context_length=2 * infer_context_length,
                device='cuda',
                action_space_size=action_space_size,
                num_layers=2,
                num_heads=8,
                embed_dim=768,
                obs_type='image',
                env_num=max(collector_env_num, evaluator_env_num),
                num_simulations=num_simulations,
                rotary_emb=False,
            ),
        ),
        model_path=None,
        use_augmentation=False,
        manual_temperature_decay=False,
        threshold_training_steps_for_final_temperature=int(2.5e4),
        use_priority=False,
        num_unroll_steps=num_unroll_steps,
        update_per_collect=None,
        replay_ratio=replay_ratio,
        batch_size=batch_size,
        optim_type='AdamW',
        learning_rate=0.0001,
        num_simulations=num_simulations,
        num_segments=num_segments,
        td_steps=5,
        train_start_after_envsteps=0,
        game_segment_length=20,
        grad_clip_value=5,
        replay_buffer_size=int(1e6),
        eval_freq=int(5e3),
        collector_env_num=collector_env_num,
        evaluator_env_num=evaluator_env_num,
        buffer_reanalyze_freq=1 / 50,
        reanalyze_batch_size=160,
        reanalyze_partition=0.75,
    ),
)

create_config = EasyDict(
    env=dict(
        type='atari_lightzero',
        import_names=['zoo.atari.envs.atari_lightzero_env'],
    ),
    env_manager=dict(type='subprocess'),
    policy=dict(
        type='unizero',
        import_names=['lzero.policy.unizero'],
    ),
)

if __name__ == '__main__':
    import sys

    from lzero_async.entry.cli import run_config

    sys.exit(run_config(main_config, create_config, max_env_step=max_env_step))
