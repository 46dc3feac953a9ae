"""A real PriorZero run with tiny models, small enough for a test."""
import dataclasses
import os

from ding.config import compile_config
from ding.policy import create_policy

from lzero_async.lightzero.environments import collector_envs
from lzero_async.lightzero.policies import SharedPolicy
from lzero_async.priorzero.collect import PriorZeroCollector
from lzero_async.priorzero.config import QUICK, priorzero_config

SMALL = dataclasses.replace(
    QUICK, num_simulations=4, max_steps=12, game_segment_length=10, td_steps=5
)


class NoCurves:
    def add_scalar(self, name, value, step):
        pass


def configs(exp_name='run', size=SMALL, **policy):
    main, create = priorzero_config(llm='tiny', encoder='tiny', exp_name=str(exp_name), size=size)
    main.policy.update(engine='thread', show_progress=False)
    main.policy.update(policy)
    return main, create


def compiled(folder, size=SMALL, **policy):
    main, create = configs(os.path.relpath(os.path.join(str(folder), 'run')), size, **policy)
    main.policy.device = 'cpu'
    return compile_config(main, seed=0, env=None, auto=True, create_cfg=create, save_cfg=False)


def learner_policy(cfg):
    return create_policy(cfg.policy, enable_field=['learn', 'collect', 'eval'])


def collector_of(cfg, policy, seed=3, **kwargs):
    return PriorZeroCollector(
        SharedPolicy(policy), collector_envs(cfg, seed), NoCurves(), cfg.exp_name, **kwargs
    )
