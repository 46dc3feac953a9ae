"""Runs that end, one way or another, and go on."""
import contextlib
import glob
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest
from engine_runs import HERE, wait_until
from small_configs import cartpole
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lzero_async import ConfigError
from lzero_async.checkpoints.errors import FolderInUse, StateDamaged
from lzero_async.entry.cli import main
from lzero_async.entry.run import run_training

SCRIPT = """
import sys
sys.path[:0] = {folders!r}
from small_configs import cartpole
main_config, create_config = cartpole('run', show_progress=False, **{settings!r})
"""


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def train(max_env_step, resume=False, **settings):
    settings = {'off_policy_degree': 2, 'checkpoint_interval_rounds': 1, 'eval_freq': 8, **settings}
    return run_training(cartpole('run', resume=resume, **settings), max_env_step=max_env_step)


def summary():
    with open('run/async_summary.json') as file:
        return json.load(file)


def states():
    return sorted(glob.glob('run/state/state_*.json'))


def curves():
    accumulator = EventAccumulator('run/log/serial', size_guidance={'scalars': 0})
    accumulator.Reload()
    return {tag: [event.step for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()['scalars']}


def assert_goes_on(before, after):
    others = ('global_steps', 'processed_samples', 'max_lag', 'bad_updates', 'background_reanalyzed_segments')
    for name, number in before['statistics'].items():
        if name.endswith(('_count', '_total_time')) or name in others:
            assert after['statistics'][name] >= number, f'{name} goes back'
    assert after['env_steps'] >= before['env_steps'] and after['updates'] >= before['updates']
    numbers = after['statistics']
    assert numbers['collect_count'] == numbers['train_count'] + numbers['drop_count']
    assert numbers['total_generated_samples'] == numbers['processed_samples'] + numbers['dropped_samples']
    for tag, steps in curves().items():
        assert steps == sorted(steps), f'{tag} jumps back'
        if tag.startswith('Async/'):
            assert len(steps) == len(set(steps)), f'{tag} is drawn twice'


@pytest.mark.parametrize('settings', [
    {}, {'engine': 'process'}, {'off_policy_degree': 0}, {'off_policy_degree': -1}, {'enable_async_eval': True},
    {'off_policy_degree': 0, 'sync_batch_size': 60}, {'background_reanalyze': True},
    pytest.param({'engine': 'ray'}, marks=pytest.mark.ray),
], ids=str)
def test_a_run_goes_on_in_its_folder(settings):
    train(250, **settings)
    before = summary()
    train(500, resume=True, **settings)
    after = summary()
    assert os.listdir('.') == ['run']
    assert after['env_steps'] >= 500 and after['ended_by'] == 'max_env_step'
    assert_goes_on(before, after)
    assert len(states()) == 2


def test_the_replay_ratio_holds_over_both_parts():
    train(250, replay_ratio=0.25)
    train(500, resume=True, replay_ratio=0.25)
    numbers = summary()['statistics']
    assert abs(summary()['updates'] - 0.25 * numbers['processed_samples']) <= 0.25 * 60 + 1


def test_what_is_done_already_is_not_done_again():
    train(250)
    before = summary()
    assert train(250, resume=True).ended_by == 'max_env_step'
    assert summary()['updates'] == before['updates'] and summary()['env_steps'] == before['env_steps']


def test_resume_from_the_command_line(capsys):
    train(250)
    assert main(['resume', 'run', '--max-env-step', '400']) == 0
    assert summary()['env_steps'] >= 400
    assert 'resuming run from state ' in capsys.readouterr().out


def test_with_nothing_saved_the_run_begins(capsys):
    train(100, resume=True)
    assert summary()['env_steps'] >= 100 and os.listdir('.') == ['run']
    assert 'nothing is saved in run' in capsys.readouterr().out


def test_a_folder_without_a_run(capsys):
    os.mkdir('empty')
    assert main(['resume', 'empty']) == 2
    assert "EXP_DIR must be the folder of a run that lzero-async has saved, got 'empty'" in capsys.readouterr().err


def test_without_checkpoints_nothing_is_written():
    train(100, keep_checkpoints=0)
    assert not states()


# ------------------------------------------------------------------ changed configs


def test_changed_keys_are_listed_and_unusable_ones_refused(capsys):
    train(100)
    train(200, resume=True, eval_freq=9)
    assert 'changed since: main.policy.eval_freq: 8 -> 9' in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r'resume needs these keys .*main\.policy\.num_unroll_steps: \d+ -> 4'):
        train(300, resume=True, num_unroll_steps=4)


# ------------------------------------------------------------------ damage


def cut(path):
    with open(path, 'r+b') as file:
        file.truncate(os.path.getsize(path) // 2)


def test_the_state_before_is_used_if_the_last_is_damaged(capsys):
    train(300)
    cut(sorted(glob.glob('run/state/learner_*'))[-1])
    train(400, resume=True)
    log = pathlib.Path('run/log/lzero_async.log').read_text()
    assert 'cannot be used, the one before it is tried: learner_' in log and ' bytes instead of ' in log
    assert summary()['env_steps'] >= 400


def test_no_state_is_left():
    train(100)
    for path in glob.glob('run/state/learner_*'):
        cut(path)
    with pytest.raises(StateDamaged, match=r'no state in .* can be used'):
        train(200, resume=True)


# ------------------------------------------------------------------ programs that are interrupted or killed


class Program:
    def __init__(self, command=('train', 'config.py', '--max-env-step', '100000'), **settings):
        settings = {
            'off_policy_degree': 2, 'checkpoint_interval_rounds': 1, 'eval_freq': 10 ** 6, **settings
        }
        with open('config.py', 'w') as file:
            file.write(SCRIPT.format(folders=[str(HERE.parent)], settings=settings))
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'lzero_async.entry.cli', *command], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )

    def until_saved(self, count=1):
        def saved():
            numbers = [int(path[-13:-5]) for path in states()]
            return self.process.poll() is not None or max(numbers, default=0) >= count

        wait_until(saved)
        assert self.process.poll() is None, self.process.stdout.read()
        return self

    def end(self, *signals):
        for one in signals:
            self.process.send_signal(one)
            time.sleep(0.05)
        output = self.process.communicate(timeout=120)[0]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.returncode, output


@pytest.mark.parametrize('how, settings', [
    (signal.SIGINT, {}), (signal.SIGTERM, {}), (signal.SIGINT, {'background_reanalyze': True, 'update_per_collect': 1}),
], ids=str)
def test_asked_to_end_it_saves_its_state_and_exits_with_130(how, settings):
    program = Program(enable_async_debug_log=True, checkpoint_interval_rounds=10 ** 6, **settings)
    wait_until(lambda: program.process.poll() is not None or _rounds() >= 3)
    code, output = program.end(how)
    assert code == 130, output
    before = summary()
    assert before['ended_by'] == 'interrupt' and before['updates'] > 0 and len(states()) == 1
    assert main(['resume', 'run', '--max-env-step', str(before['env_steps'] + 60)]) == 0
    assert_goes_on(before, summary())


def _rounds():
    try:
        with open('run/log/lzero_async.log') as file:
            return file.read().count(': round ')
    except FileNotFoundError:
        return 0


def test_asked_twice_it_ends_at_once_with_the_last_state_intact():
    program = Program().until_saved()
    code, output = program.end(signal.SIGINT, signal.SIGINT)
    assert code in (130, -signal.SIGINT), output
    assert main(['resume', 'run', '--max-env-step', '200']) == 0


@pytest.mark.parametrize('engine, seed', [('thread', 0), ('thread', 1), ('process', 2)])
def test_killed_at_any_moment_it_can_be_resumed(engine, seed):
    chance = random.Random(seed)
    program = Program(engine=engine).until_saved(chance.randint(1, 3))
    time.sleep(chance.uniform(0, 0.5))
    program.end(signal.SIGKILL)
    with open(states()[-1]) as file:
        before = json.loads(json.load(file)['body'])['run']['coordinator']['counts']['finished']['train']
    assert main(['resume', 'run', '--max-env-step', '400']) == 0
    numbers = summary()['statistics']
    assert numbers['train_count'] >= before and summary()['env_steps'] >= 400
    for tag, steps in curves().items():
        assert steps == sorted(steps), f'{tag} jumps back'


def test_a_second_run_in_the_folder_is_refused():
    program = Program(resume=True).until_saved()
    with pytest.raises(FolderInUse, match=f'process {program.process.pid} works there'):
        train(100, resume=True)
    assert program.end(signal.SIGINT)[0] == 130
