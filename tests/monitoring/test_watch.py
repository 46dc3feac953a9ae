"""Callbacks and statistics lines, at intervals and at the end; who stumbles is logged, and costs the run nothing."""
import dataclasses
import io
import threading

import pytest
from fakes import FakeClock, await_event

from lzero_async.core.config import AsyncConfig
from lzero_async.core.coordinator import AsyncTrainingCoordinator
from lzero_async.monitoring.run_monitor import RunMonitor
from lzero_async.monitoring.watch import watched


class Learner:
    train_iter, env_step = 45, 160


@pytest.fixture
def watch(tmp_path):
    def watch(*callbacks, **settings):
        settings = AsyncConfig(show_progress=False, **settings)
        monitor = RunMonitor(
            AsyncTrainingCoordinator(4, clock=FakeClock()), Learner(), None, settings, str(tmp_path)
        )
        return watched(monitor, settings, io.StringIO(), callbacks)

    return watch


def test_callbacks_are_called_at_intervals_and_at_the_end(watch):
    reports, several = [], threading.Event()

    def callback(report):
        reports.append(report)
        if len(reports) == 3:
            several.set()

    with watch(callback, sync_monitor_interval=0.001):
        await_event(several)
        during = len(reports)
    assert len(reports) > during


def test_a_callback_gets_a_frozen_report(watch):
    reports = []
    with watch(reports.append):
        pass
    (report,) = reports
    assert report.updates == 45
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.updates = 0
    with pytest.raises(TypeError):
        report.statistics['train_count'] = 0
    with pytest.raises(TypeError):
        report.activity.busy['train'] = 0.0


def test_a_callback_that_raises_is_logged_and_the_others_are_called(watch, caplog):
    def bad(report):
        raise ValueError('a bad callback')

    reports = []
    with watch(bad, reports.append):
        pass
    assert len(reports) == 1
    assert 'monitor callback 0 failed' in caplog.text and 'a bad callback' in caplog.text


def test_component_statistics_are_logged_at_intervals_and_at_the_end(watch, caplog):
    caplog.set_level('INFO', logger='lzero_async')
    with watch():
        assert 'Component Statistics' not in caplog.text
    assert caplog.text.count('Component Statistics') == 1
