"""One training run from config to summary, for every entry."""
from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Optional, Sequence

from ..core.checks import integer
from ..core.coordinator import AsyncTrainingCoordinator
from ..core.errors import ConfigError, RoleFailed
from ..core.stop import RunLimits
from ..core.trainer import AsyncTrainer

logger = logging.getLogger(__name__)

LOG_FILE = 'lzero_async.log'
LOG_LEVELS = ('DEBUG', 'INFO', 'WARNING', 'ERROR')


@dataclass(frozen=True)
class TrainingResult:
    policy: Any
    ended_by: str
    """`max_env_step`, `max_train_iter`, `stop_value`, `interrupt`; `stock` where LightZero's own entry ran."""
    exp_name: Optional[str]


@dataclass(frozen=True)
class _Added:
    """What a user adds to a run."""

    on_start: Callable[[AsyncTrainer], None]
    learner_class: Any
    collector_class: Any
    monitor_callbacks: Sequence[Callable[[Any], None]]

    def check(self) -> None:
        from ..lightzero.collect import LightZeroCollector
        from ..lightzero.learn import LightZeroLearner

        for name, base in (('learner_class', LightZeroLearner), ('collector_class', LightZeroCollector)):
            given = getattr(self, name)
            if given is not None and not (isinstance(given, type) and issubclass(given, base)):
                raise ConfigError(f'{name} must be a subclass of {base.__name__}, got {given!r}')
        for index, callback in enumerate(self.monitor_callbacks):
            if not callable(callback):
                raise ConfigError(f'monitor_callbacks[{index}] must be callable, got {callback!r}')


def run_training(
    input_cfg: Sequence[Any],
    seed: int = 0,
    model: Any = None,
    model_path: Optional[str] = None,
    max_train_iter: Optional[int] = None,
    max_env_step: Optional[int] = None,
    on_start: Callable[[AsyncTrainer], None] = lambda trainer: None,
    *,
    learner_class: Any = None,
    collector_class: Any = None,
    monitor_callbacks: Sequence[Callable[[Any], None]] = (),
    log_level: str = 'INFO',
) -> TrainingResult:
    """Check, build, train, save, put away.

    The first six arguments are those of `train_unizero_segment_async`. `on_start` gets the trainer just before it runs,
    e.g. to stop it later. `learner_class` and `collector_class` are subclasses of LightZeroLearner and
    LightZeroCollector. Each of `monitor_callbacks` gets a frozen RunReport every `sync_monitor_interval` seconds and at
    the end; what it raises is logged. `log_level` is that of our own lines in the run's log.
    """
    begun = time.monotonic()
    from ..lightzero import host_log

    limits = RunLimits(*(_limit(name, value) for name, value in (
        ('max_env_step', max_env_step), ('max_train_iter', max_train_iter)
    )))
    added = _Added(on_start, learner_class, collector_class, tuple(monitor_callbacks))
    if log_level not in LOG_LEVELS:
        raise ConfigError(f'log_level must be one of {", ".join(LOG_LEVELS)}, got {log_level!r}')
    if model_path is not None and not os.path.isfile(model_path):
        raise ConfigError(f'model_path must be an existing file, got {model_path!r}')
    terminal = sys.stdout
    with host_log.captured(log_level) as log:
        from ..lightzero.run_config import read_config

        run = read_config(input_cfg, seed)
        if run.settings.enable_async_training:
            return _run_async(run, limits, model, model_path, added, log, terminal, begun)
    from lzero.entry import train_unizero_segment

    policy = train_unizero_segment(
        tuple(input_cfg), seed, model, model_path, limits.max_train_iter, limits.max_env_step
    )
    return TrainingResult(policy, 'stock', None)


def _run_async(
    run: Any, limits: RunLimits, model: Any, model_path: Optional[str], added: _Added, log: Any, terminal: Any,
    begun: float,
) -> TrainingResult:
    from ..engines.opened import Engines, check_installed, choose_engines
    from ..lightzero import build, random_streams, roles
    from ..lightzero.run_checkpoints import Intervals, RunCheckpoints
    from ..lightzero.run_config import check_folder
    from ..monitoring.run_monitor import RunMonitor
    from ..monitoring.watch import watched
    from ..torch_weights import ParameterSynchronizer
    from .opened_run import open_run

    added.check()
    build.check_devices(run.settings)
    settings = choose_engines(run.settings, lambda line: _tell(terminal, line), run.family.light_search)
    run = replace(run, settings=settings)
    check_installed(settings)
    check_folder(run.main.get('exp_name', '.'))
    with contextlib.ExitStack() as at_end:
        opened = open_run(run, limits, at_end)
        cfg, resumed = opened.cfg, opened.resumed
        log_folder = os.path.join(cfg.exp_name, 'log')
        log.open(os.path.join(log_folder, LOG_FILE))
        for line in opened.told:
            _tell(terminal, line)
            logger.warning(line)
        engines = Engines(settings, log_folder)
        at_end.callback(engines.close)
        parts = build.build(
            run, cfg, model, model_path, engines, added.learner_class, added.collector_class, resumed,
            last_good=lambda: _policy_of(opened.store.last_learner()),
        )
        at_end.callback(parts.close)
        coordinator = AsyncTrainingCoordinator(
            settings.off_policy_degree,
            settings.enable_async_eval,
            cfg.policy.replay_buffer_size,
            cfg.policy.batch_size,
            max_train_ahead=settings.max_train_ahead,
            min_off_policy_degree=settings.min_off_policy_degree,
            max_off_policy_degree=settings.max_off_policy_degree,
        )
        monitor = RunMonitor(coordinator, parts.learner, parts.tb_logger, settings, cfg.exp_name)
        if resumed is not None:
            monitor.restore(resumed.manifest.run['monitor'])
        checkpoints: Optional[RunCheckpoints] = None
        if settings.keep_checkpoints:
            checkpoints = RunCheckpoints(
                parts.learner,
                opened.store,
                Intervals(settings.checkpoint_interval_rounds, settings.checkpoint_interval_s),
                random_states=lambda: trainer.random_states(),
                before_commit=parts.tb_logger.flush,
                also=lambda: {'monitor': monitor.state()},
            )
            at_end.callback(checkpoints.close)
            if resumed is not None:
                checkpoints.restore(resumed.manifest.run)
        trainer = AsyncTrainer(
            coordinator,
            parts.collectors,
            parts.learner,
            parts.evaluator,
            monitor,
            limits,
            settings=settings,
            synchronizer=ParameterSynchronizer(settings),
            role_context=_role_context(run, cfg),
            begun=begun,
            tell_stall=lambda report: _tell_stall(report, cfg.exp_name),
            checkpoints=checkpoints,
            resumed=None if resumed is None else resumed.manifest.run,
        )
        monitor.listen_to(trainer.get_statistics)
        with contextlib.ExitStack() as stack:
            if not coordinator.is_synchronous or settings.enable_async_eval:
                stack.enter_context(random_streams.installed())
                stack.enter_context(roles.switch_interval(settings.switch_interval_s))
            stack.enter_context(watched(monitor, settings, terminal, added.monitor_callbacks))
            added.on_start(trainer)
            done = None if resumed is None else limits.reached(parts.learner.env_step, parts.learner.train_iter)
            if done is not None:
                monitor.ended(done)
                return TrainingResult(parts.policy, done, cfg.exp_name)
            try:
                outcome = trainer.run()
            except RoleFailed as failure:
                monitor.ended('failure', str(failure))
                try:
                    if checkpoints is not None and failure.role != 'learner':
                        checkpoints.finish(trainer.state())
                    parts.finish()
                except Exception:  # the first failure is the one to raise
                    logger.exception('the last state could not be saved')
                raise
            if checkpoints is not None and not checkpoints.finish(trainer.state()):
                _tell(terminal, f'the last state of the run could not be written, see {LOG_FILE}')
            parts.finish()
            monitor.ended(outcome.ended_by)
    return TrainingResult(parts.policy, outcome.ended_by, cfg.exp_name)


def _tell_stall(report: str, exp_name: str) -> None:
    path = os.path.join(exp_name, time.strftime('stall_%Y%m%d_%H%M%S.txt'))
    logger.error('%s\n(also in %s)', report, path)
    try:
        with open(path, 'w', encoding='utf-8') as file:
            file.write(report + '\n')
    except OSError:
        logger.exception('the report could not be written to %s', path)


def _policy_of(learner: Optional[Any]) -> Optional[Any]:
    return None if learner is None else learner['policy']


def _tell(terminal: Any, line: str) -> None:
    print(line, file=terminal, flush=True)


def _role_context(run: Any, cfg: Any) -> Any:
    from ..lightzero import roles

    if run.settings.off_policy_degree == 0 and not run.settings.enable_async_eval:
        return lambda role: contextlib.nullcontext()  # the serial run is LightZero's, down to its random numbers
    sees_pictures = cfg.policy.model.world_model_cfg.obs_type == 'image'
    return roles.role_contexts(run.settings, run.seed, cfg.policy.device, sees_pictures)


def _limit(name: str, value: Optional[int]) -> int:
    return int(1e10) if value is None else int(integer(0)(name, value))
