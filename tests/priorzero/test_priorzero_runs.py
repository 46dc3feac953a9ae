"""PriorZero in the engines, and resumed."""
import json
import pathlib

import pytest

pytest.importorskip('jericho')
pytest.importorskip('transformers')

from small_priorzero import configs

from lzero_async.entry.run import run_training


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def summary():
    return json.loads(pathlib.Path('run/async_summary.json').read_text())


def train(max_env_step, **policy):
    policy = {'off_policy_degree': 2, 'checkpoint_interval_rounds': 1, 'eval_freq': 10 ** 6, **policy}
    return run_training(configs(**policy), max_env_step=max_env_step)


def test_a_run_goes_on_with_its_prior():
    first = train(60)
    before = first.policy.prior.version
    assert before >= 1
    second = train(100, resume=True)
    assert second.policy.prior.version > before
    numbers = summary()['statistics']
    assert numbers['total_generated_samples'] == numbers['processed_samples'] + numbers['dropped_samples']
    assert summary()['env_steps'] >= 100


def test_collector_and_evaluator_in_processes(capsys):
    result = train(60, engine='process', eval_freq=4, enable_async_eval=True)
    assert result.ended_by == 'max_env_step' and result.policy.prior.version >= 1
    numbers = summary()['statistics']
    assert numbers['collector_engine'] == numbers['evaluator_engine'] == 'process'
    assert numbers['max_staleness'] <= 2 and numbers['eval_count'] >= 1
    assert '--- the end, score ' in pathlib.Path('run/transcript.txt').read_text()
