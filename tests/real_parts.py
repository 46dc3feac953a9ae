"""Real LightZero parts, small enough for a test: a compiled config, policies, and segments from real episodes."""
import os

from ding.config import compile_config
from ding.envs import create_env_manager, get_vec_env_setting
from ding.policy import create_policy
from small_configs import cartpole
from tensorboardX import SummaryWriter

from lzero_async.core.weights import WeightSnapshot
from lzero_async.lightzero.collect import LightZeroCollector
from lzero_async.lightzero.policies import RolePolicy
from lzero_async.torch_weights import TorchWeights


def compiled(folder, **policy):
    """A compiled config whose experiment is in `folder`."""
    main, create = cartpole(os.path.relpath(os.path.join(str(folder), 'run')), **policy)
    main.policy.device = 'cpu'
    return compile_config(main, seed=0, env=None, auto=True, create_cfg=create, save_cfg=False)


def learner_policy(cfg):
    return create_policy(cfg.policy, enable_field=['learn', 'collect', 'eval'])


def snapshot_of(policy, version=0):
    return WeightSnapshot(version, 0, TorchWeights().read(policy._learn_model))


def make_collector(cfg, policy, accelerate=False):
    env_fn, env_cfgs, _ = get_vec_env_setting(cfg.env)
    env = create_env_manager(cfg.env.manager, [lambda c=c: env_fn(cfg=c) for c in env_cfgs])
    env.seed(0)
    seat = RolePolicy.beside(policy, 'collect', 'cpu', accelerate)
    return LightZeroCollector(seat, env, SummaryWriter(os.path.join(cfg.exp_name, 'tb')), cfg.exp_name)


def real_segments(cfg, batches):
    """Some batches of segments, as the host's collector returns them."""
    policy = learner_policy(cfg)
    collector = make_collector(cfg, policy)
    try:
        collected = [collector.collect(snapshot_of(policy), lambda: True) for _ in range(batches)]
        return [piece.segments for batch in collected for piece in batch.pieces]
    finally:
        collector.close()
