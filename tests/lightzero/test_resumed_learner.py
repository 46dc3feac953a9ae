"""A learner that is resumed in another process goes on exactly as one that was never interrupted."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent


def run(mode, folder, settings):
    done = subprocess.run(
        [sys.executable, str(HERE / 'resumed_learner.py'), mode, str(folder), json.dumps(settings)],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join([str(HERE.parent), os.environ.get('PYTHONPATH', '')])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize('settings', [
    {},
    {'use_priority': True},
    {'replay_buffer_size': 150},
    {'buffer_reanalyze_freq': 1, 'reanalyze_batch_size': 8, 'reanalyze_partition': 0.75},
    {'background_reanalyze': True, 'reanalyze_partition': 0.75},
    {'background_reanalyze': True, 'reanalyze_partition': 0.75, 'replay_buffer_size': 150, 'use_priority': True},
    {'accelerate': False, 'sample_ahead': False},
], ids=[
    'plain', 'priorities', 'full buffer', 'reanalyzed', 'reanalyzed in the background',
    'reanalyzed in the background, full buffer', 'stock parts',
])
def test_the_next_updates_give_the_same_weights_to_the_last_bit(tmp_path, settings):
    uninterrupted = run('save', tmp_path, settings)
    resumed = run('resume', tmp_path, settings)
    assert uninterrupted['train_iter'] > 20 and uninterrupted['transitions'] > 50
    assert resumed == uninterrupted
    # Four times five sequences, two to a segment at most.
    assert resumed['reanalyzed'] is None or resumed['reanalyzed'] >= 10
