"""Evaluate a checkpoint and nothing else."""
from __future__ import annotations

import os
from typing import Any, Optional, Sequence

from ..core.errors import ConfigError
from ..core.protocols import Evaluation
from ..core.weights import WeightSnapshot
from .run import LOG_FILE


def evaluate_checkpoint(input_cfg: Sequence[Any], model_path: Optional[str], seed: int = 0) -> Evaluation:
    """Play the config's evaluation episodes with the weights of `model_path`. Trains and saves nothing."""
    from ..lightzero import host_log

    if model_path is None or not os.path.isfile(model_path):
        raise ConfigError(f'model_path must be an existing file to evaluate, got {model_path!r}')
    with host_log.captured() as log:
        from ..lightzero.build import evaluator_of
        from ..lightzero.run_config import compile_run, read_config

        run = read_config(input_cfg, seed)
        run.main.exp_name = f'{run.main.get("exp_name", "run")}_eval'
        cfg = compile_run(run)
        log.open(os.path.join(cfg.exp_name, 'log', LOG_FILE))
        with evaluator_of(cfg, model_path) as (evaluator, train_iter):
            return evaluator.evaluate(WeightSnapshot(train_iter, 0, None), lambda: True)
