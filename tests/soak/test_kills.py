"""SIGKILL at 20 random moments of one run: every time it goes on, and nothing older than one interval is gone."""
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

HERE = pathlib.Path(__file__).parent
KILLS = 20
SCRIPT = """
import sys
sys.path[:0] = {folders!r}
from small_configs import cartpole
main_config, create_config = cartpole(
    'run', off_policy_degree=2, engine='process', checkpoint_interval_rounds=1, eval_freq=50, resume=True
)
"""


def newest():
    """The number of the newest state, and the rounds that it has trained."""
    paths = sorted(pathlib.Path('run/state').glob('state_*.json'))
    if not paths:
        return 0, 0
    body = json.loads(json.loads(paths[-1].read_text())['body'])
    return body['number'], body['run']['coordinator']['counts']['finished']['train']


def test_killed_again_and_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path('config.py').write_text(SCRIPT.format(folders=[str(HERE.parent)]))
    chance = random.Random(0)
    number = rounds = 0
    for kill in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, '-m', 'lzero_async.entry.cli', 'train', 'config.py', '--max-env-step', '1000000'],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )
        give_up_at = time.monotonic() + 300
        while newest()[0] <= number:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < give_up_at
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 3))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        now, trained = newest()
        assert now > number and trained > rounds, f'after kill {kill}'
        number, rounds = now, trained
    print(f'{KILLS} kills, {rounds} rounds trained, state {number}')
