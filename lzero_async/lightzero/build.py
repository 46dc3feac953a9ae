"""Makes the parts of a run, in the order in which LightZero's own entry makes them."""
from __future__ import annotations

import contextlib
import copy
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Type, Union

import torch
from ding.policy import create_policy
from ding.utils import set_pkg_seed
from ding.worker import BaseLearner
from lzero.mcts.buffer.game_segment import GameSegment
from torch.utils.tensorboard import SummaryWriter

from ..checkpoints.store import LoadedState
from ..core.config import AsyncConfig
from ..core.doorbell import ctrl_c_blocked
from ..core.errors import WorkerLost
from ..core.restarts import Restarts
from ..core.updates import UpdateAccount
from ..engines.opened import Engines
from ..engines.remote import RemoteCollector, RemoteRole
from ..torch_weights import TorchWeights
from .collect import LightZeroCollector
from .environments import collector_envs, env_seed, evaluator_envs
from .evaluate import LightZeroEvaluator
from .families import family_of
from .hosted import host_name
from .learn import LightZeroLearner
from .policies import RolePolicy, SharedPolicy, check_device
from .remote_roles import RemoteRoles
from .replay.buffer_journal import BufferJournal
from .run_config import RunConfig
from .updates.guarded_updates import GuardedUpdates
from .updates.kept_memory import keep_freed_memory
from .updates.lean_policy import use_lean_updates

logger = logging.getLogger(__name__)

HOST_LOGGERS = ('learner_logger', 'collector_logger', 'evaluator_logger')


@dataclass(frozen=True)
class Parts:
    """The parts of one run, and how to put them away."""

    policy: Any
    learner: LightZeroLearner
    collectors: List[Any]
    evaluator: Any
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
        roles = (self.learner, *self.collectors, self.evaluator)
        remote = [role for role in roles if isinstance(role, RemoteRole)]
        if remote:
            with ThreadPoolExecutor(max_workers=len(remote)) as pool:  # each may take its time
                list(pool.map(lambda role: role.close(), remote))
        for role in roles:
            if role not in remote:
                role.close()
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
    engines: Engines,
    learner_class: Optional[Type[LightZeroLearner]] = None,
    collector_class: Optional[Type[LightZeroCollector]] = None,
    resumed: Optional[LoadedState] = None,
    last_good: Callable[[], Optional[Dict[str, Any]]] = lambda: None,
) -> Parts:
    """Environments, policies, learner, buffer, collectors and evaluator, from a compiled config.

    Workers of other processes are started first, and get ready while the rest is made. With `resumed` the learner and
    the random generators go on from there; environments begin new episodes. `last_good` is the policy of the last state
    that was saved.
    """
    settings, serial = run.settings, run.settings.off_policy_degree == 0
    shared_evaluator = serial and not settings.enable_async_eval
    classes = run.family.role_classes()
    tb_logger = SummaryWriter(os.path.join(cfg.exp_name, 'log', 'serial'))
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(tb_logger.close)
        random_states_before = [] if resumed is None else resumed.learner['collectors']
        remote = RemoteRoles(
            run, cfg, copy.deepcopy(model), engines, tb_logger.add_scalar, random_states=random_states_before
        )
        on_failure.callback(remote.close)
        remote.launch(collector_class)
        local = _LocalEnvs(cfg, run, remote)
        on_failure.callback(local.close)
        set_pkg_seed(cfg.seed, use_cuda=torch.cuda.is_available())

        policy = create_policy(cfg.policy, model=model, enable_field=['learn', 'collect', 'eval'])
        if model_path is not None:
            logger.info('loading %s', model_path)
            policy.learn_mode.load_state_dict(torch.load(model_path, map_location=cfg.policy.device))

        if settings.accelerate and not serial and run.family.has_vector_targets:
            use_lean_updates(policy)  # before the learner takes the policy's functions
            keep_freed_memory()
        host_learner = BaseLearner(cfg.policy.learn.learner, policy.learn_mode, tb_logger, exp_name=cfg.exp_name)
        buffer = run.family.make_buffer(cfg.policy, serial, settings.accelerate)
        learner = (learner_class or classes.learner)(
            cfg,
            policy,
            host_learner,
            buffer,
            tb_logger,
            UpdateAccount(cfg.policy.replay_ratio, cfg.policy.update_per_collect, carry_fraction=not serial),
            weight_ops=None if shared_evaluator else TorchWeights(),
            sample_ahead=settings.sample_ahead and not serial,
            journal=BufferJournal(buffer, lambda: _plain_segment(cfg)) if settings.keep_checkpoints else None,
            background_reanalyze=settings.background_reanalyze,
        )

        learner.guard(GuardedUpdates(policy, cfg.exp_name), settings.max_bad_updates, last_good)
        if resumed is not None:
            learner.restore(resumed.learner, resumed.pages)

        def seat(field: str, shared: bool, device: str) -> Union[SharedPolicy, RolePolicy]:
            return SharedPolicy(policy) if shared else RolePolicy.beside(policy, field, device, settings.accelerate)

        with ctrl_c_blocked():  # here the environments are launched, perhaps in processes of their own
            collectors: List[Any] = remote.collectors or [
                (collector_class or classes.collector)(
                    seat('collect', serial, settings.collector_device), env, tb_logger, cfg.exp_name,
                    by_version=not serial or settings.sync_batch_size is not None,
                    name=host_name(f'collector-{index}'),
                )
                for index, env in enumerate(local.of_collectors)
            ]
            evaluator = remote.evaluator or classes.evaluator(
                cfg, seat('eval', shared_evaluator, settings.evaluator_device), local.of_evaluator, tb_logger,
                host_learner.save_checkpoint,
            )
        for collector, state in zip(collectors if not remote.collectors else (), random_states_before):
            if state is not None:
                collector.restore_random(state)
        if serial:
            learner.restore_random()  # the collector draws from the same generators, and comes first
        host_learner.call_hook('before_run')
        if cfg.policy.get('use_wandb', False):
            policy.set_train_iter_env_step(host_learner.train_iter, 0)
        parts = Parts(policy, learner, collectors, evaluator, tb_logger, host_learner)
        restarts = Restarts(settings.max_worker_restarts, settings.worker_restart_window_s)
        if resumed is None:
            _collect_random(parts, cfg.policy.random_collect_episode_num, restarts)
        on_failure.pop_all()
    return parts


def _plain_segment(cfg: Any) -> GameSegment:
    return GameSegment(None, game_segment_length=cfg.policy.game_segment_length, config=cfg.policy)


class _LocalEnvs:
    """The environments of the roles that work in this process, made in the host's order."""

    def __init__(self, cfg: Any, run: RunConfig, remote: RemoteRoles) -> None:
        # The serial run is LightZero's, its seeds included. Elsewhere each role has its own.
        def seed(role: str) -> int:
            return int(cfg.seed) if run.settings.off_policy_degree == 0 else env_seed(cfg.seed, f'{role}-env')

        count = 0 if remote.collectors else run.settings.num_collectors
        self.of_collectors = [collector_envs(cfg, seed(f'collector-{index}')) for index in range(count)]
        self.of_evaluator = None if remote.evaluator is not None else evaluator_envs(cfg, seed('evaluator'))

    def close(self) -> None:
        for envs in (*self.of_collectors, self.of_evaluator):
            if envs is not None:
                envs.close()


@contextlib.contextmanager
def evaluator_of(cfg: Any, model_path: str) -> Iterator[Tuple[LightZeroEvaluator, int]]:
    """An evaluator with the weights of a checkpoint, and their train_iter; put away afterwards."""
    envs = evaluator_envs(cfg, cfg.seed)
    tb_logger = SummaryWriter(os.path.join(cfg.exp_name, 'log', 'serial'))
    set_pkg_seed(cfg.seed, use_cuda=torch.cuda.is_available())
    policy = create_policy(cfg.policy, enable_field=['learn', 'collect', 'eval'])
    state = torch.load(model_path, map_location=cfg.policy.device)
    policy.learn_mode.load_state_dict(state)
    evaluator_class = family_of(cfg.policy.type).role_classes().evaluator
    evaluator = evaluator_class(cfg, SharedPolicy(policy), envs, tb_logger, save_live=lambda name: None)
    try:
        yield evaluator, int(state.get('last_iter', 0))
    finally:
        evaluator.close()
        tb_logger.close()
        _let_go_of_host_logs()


def _collect_random(parts: Parts, episodes: int, restarts: Restarts) -> None:
    """Fill the buffer with at least `episodes` episodes of random actions. They owe no updates."""
    collector, learner = parts.collectors[0], parts.learner
    if episodes > 0 and isinstance(collector, RemoteCollector):
        weights = collector.device.put(learner.snapshot().weights)
    while learner.collected_episodes < episodes:
        if not isinstance(collector, RemoteCollector):
            learner.keep(collector.collect_random(learner.train_iter))
            continue
        try:
            collector.await_ready(lambda: True)
            collector.load_weights(weights, learner.train_iter)
            learner.keep(collector.collect_random(learner.train_iter))
        except WorkerLost as loss:
            restarts.replace('collector-0', collector, loss)
