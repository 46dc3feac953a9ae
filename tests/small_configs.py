"""Real LightZero configs that are small enough for a test."""
import copy
import importlib.util
import pathlib

ZOO = pathlib.Path(__file__).parent.parent / 'zoo_configs'


def zoo_config(name):
    spec = importlib.util.spec_from_file_location(name, ZOO / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return copy.deepcopy(module.main_config), copy.deepcopy(module.create_config)


def cartpole(exp_name, **policy):
    """CartPole UniZero with 3 environments, 4 simulations and one small layer."""
    main, create = zoo_config('cartpole_unizero_segment_async_config')
    main.exp_name = str(exp_name)
    main.env.update(collector_env_num=3, evaluator_env_num=2, n_evaluator_episode=2)
    main.policy.update(
        collector_env_num=3,
        evaluator_env_num=2,
        num_segments=3,
        num_simulations=4,
        batch_size=16,
        game_segment_length=10,
        eval_freq=20,
        engine='thread',
        show_progress=False,
    )
    main.policy.model.world_model_cfg.update(
        num_layers=1, embed_dim=16, env_num=3, collector_env_num=3, evaluator_env_num=2
    )
    main.policy.update(policy)
    return main, create
