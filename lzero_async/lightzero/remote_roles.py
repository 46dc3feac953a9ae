"""RemoteRoles: the collectors and the evaluator of a run that work in other processes."""
from __future__ import annotations

import copy
from typing import Any, Callable, List, Optional, Sequence, Type

import torch

from ..core.cores import core_plan
from ..engines.opened import Engine, Engines
from ..engines.remote import Patience, RemoteCollector, RemoteEvaluator
from ..engines.worker import Worker
from .checkpoint import save_checkpoint
from .collect import LightZeroCollector
from .evaluate import BEST_CHECKPOINT, EvaluationInterval
from .hosted import HostedRole
from .run_config import RunConfig


class RemoteRoles:
    """`launch` starts the collectors and returns at once; the evaluator starts with the first round.

    Roles whose engine is `thread` are not here.
    """

    def __init__(
        self, run: RunConfig, cfg: Any, model: Optional[torch.nn.Module], engines: Engines,
        draw: Callable[[str, float, int], None], random_states: Sequence[Any] = (),
    ) -> None:
        """`random_states` are those of the collectors whose work these go on with, if any."""
        self._run = run
        # Copies: the learner, which is made meanwhile, changes both.
        self._cfg = copy.deepcopy(cfg)
        self._cfg.policy.use_wandb = False
        self._model = model
        self._engines = engines
        self._draw = draw
        self._random_states = {f'collector-{index}': state for index, state in enumerate(random_states)}
        self.collectors: List[RemoteCollector] = []
        self.evaluator: Optional[RemoteEvaluator] = None

    def launch(self, collector_class: Optional[Type[LightZeroCollector]]) -> None:
        settings, exp_name = self._run.settings, self._cfg.exp_name
        patience = Patience(settings.worker_start_timeout, settings.generation_timeout, settings.sync_timeout)
        engine = self._engines.of('collector')
        if engine is not None:
            for index in range(settings.num_collectors):
                name = f'collector-{index}'
                launcher = self._launcher(engine, name, collector_class)
                self.collectors.append(RemoteCollector(name, launcher, engine.place, patience, self._draw))
                self.collectors[-1].start()
        engine = self._engines.of('evaluator')
        if engine is not None:
            self.evaluator = RemoteEvaluator(
                'evaluator', self._launcher(engine, 'evaluator', None), engine.place, patience, self._draw,
                interval=EvaluationInterval(self._cfg.policy.eval_freq),
                save_best=lambda state: _save_best(state, exp_name),
            )

    def close(self) -> None:
        for role in (*self.collectors, self.evaluator):
            if role is not None:
                role.close()

    def _launcher(
        self, engine: Engine, name: str, collector_class: Optional[Type[LightZeroCollector]]
    ) -> Callable[[int], Worker]:
        settings, kind = self._run.settings, name.split('-')[0]
        plan = core_plan(settings.num_collectors)
        threads = settings.collector_threads or plan.collector_threads
        if kind == 'evaluator':
            threads = settings.evaluator_threads or 1
        pinned = settings.cpu_affinity is not None and engine.on_this_machine

        def launch(restart: int) -> Worker:
            role = HostedRole(
                cfg=self._cfg,
                name=name,
                seed=self._run.seed,
                restart=restart,
                device=getattr(settings, f'{kind}_device'),
                accelerate=settings.accelerate,
                threads=threads,
                cores=plan.cores_of(name) if pinned else None,
                model=self._model,
                collector_class=collector_class,
                random_state=None if restart else self._random_states.get(name),
                own_folder=not engine.on_this_machine,
            )
            return engine.launch(name, role)

        return launch


def _save_best(state: Any, exp_name: str) -> None:
    save_checkpoint(state, exp_name, BEST_CHECKPOINT)
