"""priorzero_entry as a user calls it: tiny models, the real engine, the real game."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip('jericho')
pytest.importorskip('transformers')

from lzero_async.entry.priorzero_entry import main

TINY = ['--llm', 'tiny', '--encoder', 'tiny', '--engine', 'thread']
STEADY_RAND = pathlib.Path(__file__).parent.parent / 'entry' / 'steady_rand.c'


def start(folder, *options, **env):
    return subprocess.Popen(
        [sys.executable, '-m', 'lzero_async.entry.priorzero_entry', *TINY, '--debug', '--exp_name', 'run', *options],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, 'OMP_NUM_THREADS': '1', **env},
    )


@pytest.fixture(scope='module')
def programs(tmp_path_factory):
    """All that is called as a program, at the same time: for each its folder and what it printed."""
    folder = tmp_path_factory.mktemp('programs')
    library = folder / 'steady_rand.so'
    subprocess.run(['gcc', '-shared', '-fPIC', '-o', library, STEADY_RAND], check=True)
    folders = {name: folder / name for name in ('quick', 'one', 'other')}
    for one in folders.values():
        one.mkdir()
    serial = ('--quick_test', '--off_policy_degree', '0', '--seed', '7', '--max_env_step', '40')
    started = {
        'quick': start(folders['quick'], '--quick_test'),
        'one': start(folders['one'], *serial, LD_PRELOAD=str(library)),
        'other': start(folders['other'], *serial, LD_PRELOAD=str(library)),
    }
    printed = {name: process.communicate(timeout=400)[0] for name, process in started.items()}
    for name, process in started.items():
        assert process.returncode == 0, printed[name][-4000:]
    return {name: (folders[name], printed[name]) for name in folders}


@pytest.fixture
def quick(programs):
    return programs['quick']


def test_it_says_what_it_works_with(quick):
    _, output = quick
    assert 'llm tiny' in output and 'encoder tiny' in output and 'knows nothing' in output


def test_it_ends_with_the_statistics(quick):
    folder, output = quick
    end = output[output.index('Asynchronous statistics'):]
    assert 'mode: asynchronous' in end and 'off_policy_degree: 4' in end and 'train_count: 4' in end
    assert 'collect and train at the same time: ' in end
    assert 'measured in this test, start-up apart: degree 0 ' in end and 'show no learning' in end
    summary = json.loads((folder / 'run' / 'degree_4' / 'async_summary.json').read_text())
    numbers = summary['statistics']
    assert numbers['max_staleness'] <= 4 and numbers['max_lag'] <= 4 and summary['updates'] > 0
    assert numbers['total_generated_samples'] == numbers['processed_samples'] + numbers['dropped_samples']


def test_both_models_are_trained(quick):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _ = quick
    for degree in (0, 4):
        curves = EventAccumulator(str(folder / 'run' / f'degree_{degree}' / 'log' / 'serial'))
        curves.Reload()
        assert curves.Scalars('Prior/version')[-1].value >= 2, degree
        assert curves.Scalars('Prior/samples')[-1].value > 0
        assert any(tag.startswith('learner_iter/') for tag in curves.Tags()['scalars'])


def test_it_tells_an_evaluation_episode(quick):
    folder, output = quick
    told = output[output.index('One evaluation episode'):]
    assert told.count('--- step ') >= 5 and '--- the end, score ' in told
    assert '  LLM: ' in told and '  search: ' in told and ' visits)' in told
    assert (folder / 'run' / 'degree_4' / 'transcript.txt').read_text().splitlines()[0] in told


def test_debug_writes_every_step_down(quick):
    folder, _ = quick
    text = (folder / 'run' / 'degree_4' / 'debug' / 'collector.txt').read_text()
    steps = text.split('=== environment ')[1:]
    assert len(steps) >= 60
    for step in steps:
        assert 'prior version ' in step and step.count('<- chosen') == 1 and 'value ' in step
        assert step.count('  prior ') == step.count('  visits ') >= 1
        assert '  | <|im_start|>system' in step  # the prompt


def test_serial_runs_with_one_seed_are_the_same(programs):
    told = []
    for name in ('one', 'other'):
        run = programs[name][0] / 'run' / 'degree_0'
        told.append(((run / 'debug' / 'collector.txt').read_text(), (run / 'transcript.txt').read_text()))
    assert told[0] == told[1] and all(told[0])


def test_no_save_keeps_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('TMPDIR', str(tmp_path / 'temporary'))
    monkeypatch.setattr('tempfile.tempdir', None)
    (tmp_path / 'temporary').mkdir()
    small = ['--quick_test', '--off_policy_degree', '0', '--eval_freq', '10000', '--max_env_step', '20']
    assert main([*TINY, *small, '--no_save']) == 0
    assert sorted(os.listdir(tmp_path)) == ['temporary'] and not list((tmp_path / 'temporary').glob('lzero-async-*'))
    output = capsys.readouterr().out
    assert 'not measured' in output
    assert 'its last checkpoint is evaluated now' in output and '--- the end, score ' in output


@pytest.mark.parametrize('options, message', [
    (['--env_id', 'zork1.z5'], "env_id must be a file in game_path"),
    (['--env_id', 'zork1.z5', '--game_path', 'away'], "/away), got 'zork1.z5'"),
    (['--llm', 'nowhere'], 'llm must be'),
    (['--encoder', 'nowhere'], 'encoder must be'),
    (['--prior_weight', '1.5'], 'root_prior.weight must be between 0 and 1, got 1.5'),
    (['--off_policy_degree', '-2'], 'off_policy_degree must be'),
])
def test_refused_before_anything_starts(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    assert main([*TINY, '--quick_test', *options]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
    assert not os.listdir(tmp_path)
