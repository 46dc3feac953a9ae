"""A text game with PriorZero: a language model's prior at the root of UniZero's search, both trained, asynchronously.

    python zoo_configs/jericho_priorzero_config.py --off-policy-degree 4 --max-env-step 10000

`priorzero_entry` does the same with options for the game and the models. All other settings are in
`lzero_async/priorzero/config.py`; change them here, on `main_config`.
"""
from lzero_async.priorzero.config import priorzero_config

# ==============================================================
# begin of the most frequently changed config specified by the user
# ==============================================================
off_policy_degree = 4  # 0: serial; N: at most N rounds ahead; -1: tunes itself
enable_async_eval = True
env_id, game_path = 'tw-lighthouse.z5', None  # None: the games that come with lzero-async
llm = None  # smollm2, tiny or a folder; None: the best one installed
encoder = None  # minilm, tiny or a folder; None: the best one installed
train = 'lora'  # what of the language model is trained: lora, last_layers, all, none
max_env_step = int(1e5)
# ==============================================================
# end of the most frequently changed config specified by the user
# ==============================================================

main_config, create_config = priorzero_config(
    env_id=env_id, game_path=game_path, llm=llm, encoder=encoder, off_policy_degree=off_policy_degree,
    enable_async_eval=enable_async_eval, train=train, exp_name='data_priorzero/jericho_priorzero_seed0',
)
main_config.policy.root_prior.update(mode='mixed', weight=0.5)  # weight: of the world model

if __name__ == '__main__':
    import sys

    from lzero_async.entry.cli import run_config

    sys.exit(run_config(main_config, create_config, max_env_step=max_env_step))
