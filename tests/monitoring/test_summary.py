import json
import os

import pytest
from reports import finished_report

from lzero_async.monitoring import summary


def test_has_totals_statistics_and_versions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir('exp')
    summary.write_summary(finished_report())
    written = json.loads((tmp_path / 'exp' / 'async_summary.json').read_text())
    assert written['statistics']['train_count'] == written['rounds'] == 20
    assert (written['env_steps'], written['updates'], written['wall_time']) == (2000, 400, 100.0)
    assert (written['max_lag'], written['max_staleness']) == (3, 2)
    assert (written['collect_wall_time'], written['train_wall_time'], written['eval_wall_time']) == (60.0, 65.0, 5.0)
    assert written['ended_by'] == 'max_env_step' and written['error'] is None
    assert {'lzero-async', 'lightzero', 'DI-engine', 'torch'} <= written['versions'].keys()
    assert [path.name for path in (tmp_path / 'exp').iterdir()] == ['async_summary.json']


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir('exp')
    summary.write_summary(finished_report())
    before = (tmp_path / 'exp' / 'async_summary.json').read_text()

    def full_disk(*_, **__):
        raise OSError('no space left on device')

    monkeypatch.setattr(summary.json, 'dump', full_disk)
    with pytest.raises(OSError, match='no space left'):
        summary.write_summary(finished_report(error='new'))
    assert (tmp_path / 'exp' / 'async_summary.json').read_text() == before
