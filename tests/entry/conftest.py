import json
import pathlib

import pytest
from small_configs import cartpole


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Run a real, small training in a folder of its own; returns the result and the final summary."""
    from lzero_async.entry.run import run_training

    monkeypatch.chdir(tmp_path)

    def run(config=None, max_env_step=None, max_train_iter=None, on_start=lambda trainer: None, model=None,
            model_path=None, seed=0, added=None, **policy):
        main, create = config or cartpole('run')
        main.policy.update(policy)
        result = run_training(
            [main, create], seed, model, model_path, max_train_iter, max_env_step, on_start, **(added or {})
        )
        return result, json.loads(pathlib.Path(result.exp_name, 'async_summary.json').read_text())

    return run
