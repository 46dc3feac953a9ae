"""Makes the parts of a run, in the order in which LightZero's own entry makes them."""
from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from functools import partial
from typing import Any, Iterator, List, Optional, Tuple, Type, Union

import torch
from ding.envs import create_env_manager, get_vec_env_setting
from ding.policy import create_policy
from ding.utils import set_pkg_seed
from ding.worker import BaseLearner
from torch.utils.tensorboard import SummaryWriter

from ..core.config import AsyncConfig
from ..core.doorbell import ctrl_c_blocked
from ..core.updates import UpdateAccount
from ..torch_weights import TorchWeights
from .collect import LightZeroCollector
from .evaluate import LightZeroEvaluator
from .learn import LightZeroLearner
from .policies import RolePolicy, SharedPolicy, check_device
from .random_streams import role_seed
from .run_config import RunConfig

logger = logging.getLogger(__name__)

HOST_LOGGERS = ('learner_logger', 'collector_logger', 'evaluator_logger')


@dataclass(frozen=True)
class Parts:
    """The parts of one run, and how to put them away."""

    policy: Any
    learner: LightZeroLearner
    collectors: List[LightZeroCollector]
    evaluator: LightZeroEvaluator
    tb_logger: Any
    host_learner: Any

    def finish(self) -> None:
        """Do what LightZero does after a run: save the learner as it stands, and end a wandb run."""
        self.host_learner.call_hook('after_run')
        if self.policy.cfg.get('use_wandb', False):
            import wandb

            wandb.finish()

    def close(self) -> None:
        """Close the environments and the TensorBoard log, and let go of the host's log files."""
        for collector in self.collectors:
            collector.close()
        self.evaluator.close()
        self.tb_logger.flush()
        self.tb_logger.close()
        _let_go_of_host_logs()


def _let_go_of_host_logs() -> None:
    for name in HOST_LOGGERS:
        # The host finds its loggers by name: the next run in this process would write to this run's files too.
        host_logger = logging.getLogger(name)
        for handler in list(host_logger.handlers):
            host_logger.removeHandler(handler)
            handler.close()


def check_devices(settings: AsyncConfig) -> None:
    if settings.off_policy_degree != 0:
        check_device('collector_device', settings.collector_device)
    if settings.off_policy_degree != 0 or settings.enable_async_eval:
        check_device('evaluator_device', settings.evaluator_device)


def build(
    run: RunConfig,
    cfg: Any,
    model: Optional[torch.nn.Module],
    model_path: Optional[str],
    learner_class: Optional[Type[LightZeroLearner]] = None,
    collector_class: Optional[Type[LightZeroCollector]] = None,
) -> Parts:
    """Environments, policies, learner, buffer, collector and evaluator, from a compiled config."""
    settings, serial = run.settings, run.settings.off_policy_degree == 0
    shared_evaluator = serial and not settings.enable_async_eval
    with contextlib.ExitStack() as on_failure:
        collector_env, evaluator_env = _make_envs(cfg, serial)
        on_failure.callback(collector_env.close)
        on_failure.callback(evaluator_env.close)
        set_pkg_seed(cfg.seed, use_cuda=torch.cuda.is_available())

        policy = create_policy(cfg.policy, model=model, enable_field=['learn', 'collect', 'eval'])
        if model_path is not None:
            logger.info('loading %s', model_path)
            policy.learn_mode.load_state_dict(torch.load(model_path, map_location=cfg.policy.device))

        tb_logger = SummaryWriter(os.path.join(cfg.exp_name, 'log', 'serial'))
        on_failure.callback(tb_logger.close)
        host_learner = BaseLearner(cfg.policy.learn.learner, policy.learn_mode, tb_logger, exp_name=cfg.exp_name)
        learner = (learner_class or LightZeroLearner)(
            cfg,
            policy,
            host_learner,
            run.family.make_buffer(cfg.policy, accelerate=settings.accelerate and not serial),
            tb_logger,
            UpdateAccount(cfg.policy.replay_ratio, cfg.policy.update_per_collect, carry_fraction=not serial),
            weight_ops=None if shared_evaluator else TorchWeights(),
        )
        collector_seat: Union[SharedPolicy, RolePolicy] = SharedPolicy(policy)
        evaluator_seat: Union[SharedPolicy, RolePolicy] = SharedPolicy(policy)
        if not serial:
            collector_seat = RolePolicy(policy, 'collect', settings.collector_device, settings.accelerate)
        if not shared_evaluator:
            evaluator_seat = RolePolicy(policy, 'eval', settings.evaluator_device, settings.accelerate)
        with ctrl_c_blocked():  # here the environments are launched, perhaps in processes of their own
            collector = (collector_class or LightZeroCollector)(
                collector_seat, collector_env, tb_logger, cfg.exp_name,
                by_version=not serial or settings.sync_batch_size is not None,
            )
            evaluator = LightZeroEvaluator(cfg, evaluator_seat, evaluator_env, tb_logger, host_learner.save_checkpoint)
        host_learner.call_hook('before_run')
        if cfg.policy.get('use_wandb', False):
            policy.set_train_iter_env_step(host_learner.train_iter, 0)
        parts = Parts(policy, learner, [collector], evaluator, tb_logger, host_learner)
        _collect_random(parts, cfg.policy.random_collect_episode_num)
        on_failure.pop_all()
    return parts


@contextlib.contextmanager
def evaluator_of(cfg: Any, model_path: str) -> Iterator[Tuple[LightZeroEvaluator, int]]:
    """An evaluator with the weights of a checkpoint, and their train_iter; put away afterwards."""
    _, evaluator_env = _make_envs(cfg, serial=True)
    tb_logger = SummaryWriter(os.path.join(cfg.exp_name, 'log', 'serial'))
    set_pkg_seed(cfg.seed, use_cuda=torch.cuda.is_available())
    policy = create_policy(cfg.policy, enable_field=['learn', 'collect', 'eval'])
    state = torch.load(model_path, map_location=cfg.policy.device)
    policy.learn_mode.load_state_dict(state)
    evaluator = LightZeroEvaluator(cfg, SharedPolicy(policy), evaluator_env, tb_logger, save_live=lambda name: None)
    try:
        yield evaluator, int(state.get('last_iter', 0))
    finally:
        evaluator.close()
        tb_logger.close()
        _let_go_of_host_logs()


def _make_envs(cfg: Any, serial: bool) -> Tuple[Any, Any]:
    env_fn, collector_env_cfg, evaluator_env_cfg = get_vec_env_setting(cfg.env)
    collector_env = create_env_manager(cfg.env.manager, [partial(env_fn, cfg=c) for c in collector_env_cfg])
    evaluator_env = create_env_manager(cfg.env.manager, [partial(env_fn, cfg=c) for c in evaluator_env_cfg])
    # The serial run is LightZero's, its seeds included. Elsewhere each role has its own.
    collector_env.seed(cfg.seed if serial else _env_seed(cfg.seed, 'collector-env'))
    evaluator_env.seed(cfg.seed if serial else _env_seed(cfg.seed, 'evaluator-env'), dynamic_seed=False)
    return collector_env, evaluator_env


def _env_seed(seed: int, role: str) -> int:
    # The host adds an index per environment, and numpy takes seeds below 2**32.
    return role_seed(seed, role) >> 1


def _collect_random(parts: Parts, episodes: int) -> None:
    """Fill the buffer with at least `episodes` episodes of random actions. They owe no updates."""
    while parts.learner.collected_episodes < episodes:
        parts.learner.keep(parts.collectors[0].collect_random(parts.learner.train_iter))
