"""The works that are measured: settings of the zoo configs, changed so that every run does exactly the same."""
import pathlib

from lzero_async.entry.cli import _load

ZOO_CONFIGS = pathlib.Path(__file__).parent.parent / 'zoo_configs'


def cartpole():
    """LightZero's own settings, 11 rounds, with a pole that may fall (steady_cartpole.py)."""
    config, create = zoo_config('cartpole_unizero_segment_async_config')
    create.env.update(type='cartpole_steady', import_names=['benchmarks.steady_cartpole'])
    return config, create


def pong():
    """LightZero's settings for Atari, the same network on the same pictures, with less work for it.

    One update of LightZero's own takes 25 s on a core, sampling included, and a round owes 40 of them, so: 5
    simulations instead of 50, batches of 16 instead of 64, and so few updates that training takes about as long as
    collecting. No episode ends within a run.
    """
    config, create = zoo_config('pong_unizero_segment_async_config')
    config.policy.model.world_model_cfg.update(num_simulations=5, device='cpu')
    config.policy.update(num_simulations=5, batch_size=16, update_per_collect=2, cuda=False)
    return config, create


def zoo_config(name):
    return _load(ZOO_CONFIGS / f'{name}.py')


WORKS = {'cartpole': cartpole, 'pong': pong}
ENV_STEPS = {'cartpole': 2000, 'pong': 1600}
VARIANTS = {
    'cartpole': (
        'stock', 'thread:2:plain', 'thread:2', 'thread:8', 'process:2:plain', 'process:2', 'process:8', 'ray:2:plain',
        'ray:2',
    ),
    'pong': ('stock', 'thread:2', 'process:2:plain', 'process:2'),
}
