"""The config of a PriorZero run, as LightZero's zoo would have it."""
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Optional, Tuple

from easydict import EasyDict

from .games import LIGHTHOUSE
from .models import resolve_encoder, resolve_llm


@dataclass(frozen=True)
class Size:
    """How large a run is. What it does is the same."""

    collector_env_num: int
    evaluator_env_num: int
    max_steps: int
    """Of an episode."""
    max_action_num: int
    max_seq_len: int
    num_simulations: int
    game_segment_length: int
    batch_size: int
    embed_dim: int
    num_layers: int
    eval_freq: int
    prior_samples: int
    """Steps that the language model is trained on in a round, at most."""
    prompt_tokens: int = 512
    history_turns: int = 3
    td_steps: int = 5


FULL = Size(
    collector_env_num=4, evaluator_env_num=2, max_steps=100, max_action_num=20, max_seq_len=256, num_simulations=25,
    game_segment_length=20, batch_size=64, embed_dim=256, num_layers=2, eval_freq=200, prior_samples=32,
)
QUICK = Size(
    collector_env_num=2, evaluator_env_num=1, max_steps=10, max_action_num=20, max_seq_len=128, num_simulations=8,
    game_segment_length=8, batch_size=8, embed_dim=64, num_layers=1, eval_freq=4, prior_samples=4,
    prompt_tokens=128, history_turns=1, td_steps=3,
)


def priorzero_config(
    env_id: str = LIGHTHOUSE.rom,
    game_path: Optional[str] = None,
    llm: Optional[str] = None,
    encoder: Optional[str] = None,
    off_policy_degree: int = 4,
    enable_async_eval: bool = False,
    train: str = 'lora',
    exp_name: str = 'data_priorzero/run',
    size: Size = FULL,
) -> Tuple[Any, Any]:
    """`main_config` and `create_config`. `llm` and `encoder`: see `models`; None is the best that is installed."""
    encoder_path = resolve_encoder(encoder).path
    main_config = EasyDict(
        exp_name=exp_name,
        env=dict(
            env_id=env_id,
            game_path=None if game_path is None else os.path.abspath(game_path),
            tokenizer_path=encoder_path,
            max_steps=size.max_steps,
            max_action_num=size.max_action_num,
            max_seq_len=size.max_seq_len,
            history_turns=size.history_turns,
            collector_env_num=size.collector_env_num,
            evaluator_env_num=size.evaluator_env_num,
            n_evaluator_episode=size.evaluator_env_num,
            stop_value=int(1e6),
            manager=dict(shared_memory=False, context='spawn'),
        ),
        policy=dict(
            # ****** lzero-async ******
            off_policy_degree=off_policy_degree,
            enable_async_eval=enable_async_eval,
            engine='auto',
            # A language model takes its time over a step, and over its weights.
            generation_timeout=300.0,
            sync_timeout=300.0,
            # ****** the prior ******
            prior=dict(
                llm=resolve_llm(llm).path, train=train, max_samples=size.prior_samples,
                max_prompt_tokens=size.prompt_tokens,
            ),
            prior_update_interval=1,
            prior_debug=False,
            root_prior=dict(mode='mixed', weight=0.5),
            # ****** LightZero ******
            model=dict(
                observation_shape=size.max_seq_len,
                action_space_size=size.max_action_num,
                encoder_url=encoder_path,
                self_supervised_learning_loss=True,
                discrete_action_encoding_type='one_hot',
                norm_type='BN',
                model_type='mlp',
                world_model_cfg=dict(
                    obs_type='text',
                    max_blocks=10,
                    max_tokens=2 * 10,
                    context_length=2 * 4,
                    context_length_for_recurrent=2 * 4,
                    device='cuda',
                    action_space_size=size.max_action_num,
                    num_layers=size.num_layers,
                    num_heads=4,
                    embed_dim=size.embed_dim,
                    env_num=max(size.collector_env_num, size.evaluator_env_num),
                    collector_env_num=size.collector_env_num,
                    evaluator_env_num=size.evaluator_env_num,
                    norm_type='BN',
                    rotary_emb=False,
                ),
            ),
            # Of each step the visits of all actions are kept, zeros for those that were not there.
            action_type='fixed_action_space',
            use_wandb=False,
            model_path=None,
            num_unroll_steps=5,
            td_steps=size.td_steps,
            discount_factor=0.99,
            cuda=True,
            use_augmentation=False,
            env_type='not_board_games',
            game_segment_length=size.game_segment_length,
            num_segments=size.collector_env_num,
            update_per_collect=None,
            replay_ratio=0.25,
            batch_size=size.batch_size,
            optim_type='AdamW',
            piecewise_decay_lr_scheduler=False,
            learning_rate=0.0001,
            target_update_freq=100,
            grad_clip_value=5,
            num_simulations=size.num_simulations,
            reanalyze_ratio=0.,
            buffer_reanalyze_freq=0,
            eval_freq=size.eval_freq,
            replay_buffer_size=int(1e5),
            collector_env_num=size.collector_env_num,
            evaluator_env_num=size.evaluator_env_num,
        ),
    )
    create_config = EasyDict(
        env=dict(type='priorzero_jericho', import_names=['lzero_async.priorzero.environment']),
        env_manager=dict(type='base'),
        policy=dict(type='priorzero', import_names=['lzero_async.priorzero.policy']),
    )
    return main_config, create_config
