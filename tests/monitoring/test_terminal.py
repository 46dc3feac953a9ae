import dataclasses
import io

import pytest
from reports import finished_report, running_report, statistics
from rich.console import Console

from lzero_async.monitoring.terminal import TerminalView, final_table, progress_line, progress_table


def shown(renderable):
    stream = io.StringIO()
    Console(file=stream, width=140).print(renderable)
    return stream.getvalue()


def test_final_table_has_what_a_user_asks_for():
    text = shown(final_table(finished_report()))
    for words in (
        'max_env_step', '100.0 s', '2000 (20.0 per s)', '400 (4.0 per s)', '25% of the time', 'mean 1.50, max 3',
        'mean 0.75, max 2', 'last 30.0 (policy_version 380), best 42.0 (policy_version 200)', 'exp/ckpt', 'exp/log',
    ):
        assert words in text


def test_what_was_reanalyzed_in_the_background_is_shown_where_it_was_asked_for():
    report = finished_report()
    assert 'reanalyzed' not in shown(final_table(report))
    numbers = statistics(background_reanalyzed_segments=12, background_reanalyze_time=3.25)
    assert '12 segments in 3.2 s' in shown(final_table(dataclasses.replace(report, statistics=numbers)))


def test_paths_are_whole_on_a_narrow_screen():
    stream = io.StringIO()
    report = dataclasses.replace(finished_report(), exp_name='some/rather/long/folder/of/experiments/cartpole_seed0')
    Console(file=stream, width=60).print(final_table(report))
    text = ''.join(line.split('│')[2].strip() for line in stream.getvalue().splitlines() if '│' in line)
    assert f'{report.exp_name}/ckpt{report.exp_name}/log' in text


def test_error_is_shown():
    assert 'the learner failed: boom' in shown(final_table(finished_report(error='the learner failed: boom')))


def test_progress_before_the_first_round():
    text = shown(progress_table(running_report()))
    assert 'none yet' in text and 'collector' in text


@pytest.mark.parametrize('report', [running_report(), finished_report()])
def test_a_file_gets_one_line_per_look(report):
    stream = io.StringIO()
    view = TerminalView(stream)
    assert not view.is_live
    with view.shown():
        view.update(report)
        view.update(report)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2 and lines[0].startswith('[')


def test_a_terminal_is_not_given_what_others_print(capsys):
    stream = io.StringIO()
    view = TerminalView(stream)
    view._console = Console(file=stream, force_terminal=True, width=120)
    assert view.is_live
    with view.shown():
        view.update(running_report())
        print('noise of the host')
        view.update(finished_report())
    assert 'noise of the host' not in stream.getvalue()
    assert capsys.readouterr().out == 'noise of the host\n'
    assert 'lag 0 of 4' in stream.getvalue()


def test_a_strictly_on_policy_round_shows_how_full_it_is():
    report = dataclasses.replace(
        running_report(), statistics=statistics(sync_batch_size=1024, samples_collected_this_round=320)
    )
    assert progress_line(report).endswith('on-policy round 320/1024 samples')
    assert 'on-policy' not in progress_line(running_report())
