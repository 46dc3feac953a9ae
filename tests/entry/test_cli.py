"""The command, and a zoo config run as a script, as a user meets them."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from small_configs import ZOO

from lzero_async.core.config import AsyncConfig
from lzero_async.entry.cli import main

CONFIG = ZOO / 'cartpole_unizero_segment_async_config.py'


def test_settings_lists_every_setting(capsys):
    assert main(['settings']) == 0
    printed = capsys.readouterr().out
    for name in AsyncConfig.names():
        assert f'{name} = ' in printed


@pytest.mark.parametrize('arguments, message', [
    (['train', 'nowhere.py'], "config must be an existing Python file, got 'nowhere.py'"),
    (['train', __file__], 'got no main_config and create_config in'),
    (['train', str(CONFIG), '--off-policy-degree', '-5'], 'off_policy_degree must be >= -1, got -5'),
    (['train', str(CONFIG), '--model-path', 'nowhere'], "model_path must be an existing file, got 'nowhere'"),
    (['train', str(CONFIG), '--eval-only'], 'model_path must be an existing file to evaluate, got None'),
    (['train', str(CONFIG), '--sync-batch-size', '8'], 'sync_batch_size must be None unless off_policy_degree is 0'),
])
def test_refusals_are_one_line_and_code_2(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and '\n' not in error


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(['--version'])
    assert capsys.readouterr().out.startswith('lzero-async ')


@pytest.fixture
def script(tmp_path):
    """The zoo config as a running script; killed if a test leaves it running."""
    process = subprocess.Popen(
        [sys.executable, CONFIG, '--off-policy-degree', '4', '--max-env-step', '100000', '--exp-name', 'run'],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    yield process
    process.kill()
    process.communicate()


def test_ctrl_c_ends_in_order_with_130(script, tmp_path):
    for line in script.stdout:
        if 'round ' in line and 'round 0' not in line:
            break
    script.send_signal(signal.SIGINT)
    rest, _ = script.communicate(timeout=60)
    assert script.returncode == 130, rest
    assert 'interrupt' in rest and 'staleness' in rest and 'Traceback' not in rest
    summary = json.loads((tmp_path / 'run' / 'async_summary.json').read_text())
    assert summary['ended_by'] == 'interrupt'
    assert list(pathlib.Path(tmp_path / 'run' / 'ckpt').glob('iteration_*.pth.tar'))


WITH_PROCESSES = """
import sys
sys.path.insert(0, {tests!r})
from small_configs import cartpole
main_config, create_config = cartpole('run', off_policy_degree={degree}, eval_freq=10 ** 6)
main_config.policy.show_progress = True
create_config.env_manager.type = 'subprocess'
"""


@pytest.mark.parametrize('degree', [0, 2])
def test_ctrl_c_in_a_terminal_with_environments_in_processes(tmp_path, degree):
    (tmp_path / 'config.py').write_text(WITH_PROCESSES.format(tests=str(ZOO.parent / 'tests'), degree=degree))
    process = subprocess.Popen(
        [sys.executable, '-m', 'lzero_async.entry.cli', 'train', 'config.py'], cwd=tmp_path, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    try:
        for line in process.stdout:
            if 'round ' in line and 'round 0' not in line:
                break
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the program
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 130, rest
        assert 'interrupt' in rest and 'Traceback' not in rest
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_script_to_its_end(tmp_path):
    done = subprocess.run(
        [sys.executable, CONFIG, '--off-policy-degree', '0', '--no-async-eval', '--max-env-step', '100',
         '--exp-name', 'run'],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
    )
    assert done.returncode == 0, done.stdout
    for row in ('wall time', 'env steps', 'updates', 'at the same time', 'lag', 'staleness', 'evaluation reward',
                'run/ckpt', 'run/log'):
        assert row in done.stdout
    assert len(done.stdout.splitlines()) < 60, 'the host is quiet'


SMALL = """
import sys
sys.path.insert(0, {tests!r})
from small_configs import cartpole
main_config, create_config = cartpole('run')
"""


def test_debug_log_then_evaluation_of_its_checkpoint(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'config.py').write_text(SMALL.format(tests=str(ZOO.parent / 'tests')))
    begin = ['train', 'config.py', '--exp-name', 'run']
    assert main([*begin, '--off-policy-degree', '2', '--max-env-step', '200', '--log-level', 'DEBUG']) == 0
    assert 'DEBUG' in (tmp_path / 'run' / 'log' / 'lzero_async.log').read_text()
    (checkpoint,) = [path for path in (tmp_path / 'run' / 'ckpt').iterdir() if path.name.startswith('iteration_')
                     and path.name != 'iteration_0.pth.tar']
    before = sorted((tmp_path / 'run').rglob('*'))
    capsys.readouterr()
    assert main([*begin, '--eval-only', '--model-path', str(checkpoint)]) == 0
    version, mean, returns = capsys.readouterr().out.strip().splitlines()
    assert version == f'policy_version {checkpoint.name[len("iteration_"):-len(".pth.tar")]}, 2 episodes'
    numbers = [float(one) for one in returns.split()[1:]]
    assert len(numbers) == 2 and mean.startswith(f'mean {sum(numbers) / 2:.3f}, deviation ')
    assert sorted((tmp_path / 'run').rglob('*')) == before
