"""The experiment folder of a run: a new one, or that of an earlier run which goes on."""
from __future__ import annotations

import contextlib
import copy
import logging
import os
from dataclasses import dataclass
from typing import Any, Optional, Tuple

from ..checkpoints.folder_lock import folder_locked
from ..checkpoints.store import LoadedState, StateStore
from ..core.stop import RunLimits
from ..lightzero.run_config import RunConfig, compile_run
from ..monitoring.trimmed_curves import trim_curves
from .recipe import STATE_FOLDER, Recipe

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenedRun:
    cfg: Any
    """Compiled."""
    store: StateStore
    resumed: Optional[LoadedState]
    told: Tuple[str, ...]
    """What the user should know of it."""


def open_run(run: RunConfig, limits: RunLimits, at_end: contextlib.ExitStack) -> OpenedRun:
    """Raises FolderInUse, StateDamaged, or ConfigError if the saved state is of no use to this config."""
    # Copies: the host changes both when it compiles them.
    main, create = copy.deepcopy(run.main), copy.deepcopy(run.create)
    recipe = Recipe(main, create, run.seed, limits.max_env_step, limits.max_train_iter)
    if not run.settings.resume:
        cfg = compile_run(run)
        at_end.enter_context(folder_locked(os.path.join(cfg.exp_name, STATE_FOLDER)))
        recipe.write(cfg.exp_name)
        return OpenedRun(cfg, _store(run, cfg.exp_name), None, ())
    exp_name = os.path.relpath(run.main.exp_name)
    at_end.enter_context(folder_locked(os.path.join(exp_name, STATE_FOLDER)))
    store = _store(run, exp_name)
    resumed = store.load()
    told = [f'nothing is saved in {exp_name}: the run begins'] if resumed is None else [
        f'resuming {exp_name} from state {resumed.manifest.number}: '
        f'env_step {resumed.learner["env_step"]}, train_iter {resumed.learner["train_iter"]}',
        *(f'changed since: {line}' for line in Recipe.read(exp_name).changes_to(recipe)),
    ]
    cfg = compile_run(run)
    if resumed is not None:
        trim_curves(os.path.join(exp_name, 'log', 'serial'), resumed.manifest.saved_at)
    recipe.write(exp_name)
    return OpenedRun(cfg, store, resumed, tuple(told))


def _store(run: RunConfig, exp_name: str) -> StateStore:
    return StateStore(os.path.join(exp_name, STATE_FOLDER), run.settings.keep_checkpoints)
