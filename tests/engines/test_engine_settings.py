"""Which engines a run has: what `auto` measures and picks, and what is said where Ray is missing."""
import importlib.util
import logging
import subprocess
import sys
import threading

import pytest
import torch
from fakes import logged, our_threads

from lzero_async.core.config import AsyncConfig
from lzero_async.core.errors import ConfigError
from lzero_async.engines import opened
from lzero_async.engines.contention import gil_contention
from lzero_async.engines.installed import check_ray
from lzero_async.engines.opened import Engines, check_installed, choose_engines

INSTALL = "pip install 'lzero-async[ray]'"


@pytest.fixture
def without_ray(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, 'find_spec', lambda name, package=None: None if name == 'ray' else find_spec(name, package)
    )


# -------------------------------------------------------------------- contention


def test_contention_is_a_ratio_and_leaves_nothing_behind():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ratio = gil_contention()
        assert isinstance(ratio, float) and 0.5 <= ratio < 1000
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert our_threads() == []


def test_contention_restores_the_threads_of_torch_if_it_fails(monkeypatch):
    from lzero_async.engines import contention

    monkeypatch.setattr(contention, '_seconds', lambda: 1 / 0)
    # What it starts beside itself fails the same way, and says so.
    monkeypatch.setattr(threading, 'excepthook', lambda told: None)
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError):
        gil_contention()
    assert torch.get_num_threads() == before
    assert our_threads() == []


# -------------------------------------------------------------------- Ray is missing


def test_a_missing_ray_is_told_in_one_line_with_the_way_to_install_it(without_ray):
    with pytest.raises(ConfigError) as refused:
        check_ray("engine 'ray'")
    told = str(refused.value)
    assert told.startswith("engine 'ray' needs Ray") and told.endswith(INSTALL) and '\n' not in told


def test_a_ray_that_cannot_be_imported_is_refused_with_the_reason(monkeypatch):
    pytest.importorskip('ray')

    def broken(name):
        raise ImportError(f'lib{name}.so: no such file')

    monkeypatch.setattr(importlib, 'import_module', broken)
    with pytest.raises(ConfigError, match=r"engine 'ray' needs Ray, .* cannot be imported: ImportError\('libray.so: "):
        check_ray("engine 'ray'")


def test_a_ray_that_is_there_is_not_refused():
    pytest.importorskip('ray')
    check_ray('all')


@pytest.mark.parametrize('settings', [
    {'engine': 'ray'}, {'collector_engine': 'ray'}, {'engine': 'thread', 'evaluator_engine': 'ray'},
], ids=str)
def test_an_engine_that_needs_ray_is_refused_without(without_ray, settings):
    with pytest.raises(ConfigError, match='needs Ray'):
        check_installed(AsyncConfig(off_policy_degree=2, **settings))


@pytest.mark.parametrize('engine', ['thread', 'process'])
def test_other_engines_do_not_need_ray(without_ray, engine):
    check_installed(AsyncConfig(off_policy_degree=2, engine=engine))


def test_the_sync_manager_is_refused_where_ray_cannot_be_imported():
    program = '''
import sys

class NoRay:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] == 'ray':
            raise ModuleNotFoundError(name)

import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == 'ray' else find_spec(name, package)
sys.meta_path.insert(0, NoRay())
import lzero_async
lzero_async.ParameterSynchronizer()
try:
    lzero_async.ParameterSyncManager
except lzero_async.ConfigError as error:
    print(error)
try:
    from lzero_async import ParameterSyncManager
except lzero_async.ConfigError as error:
    print(error)
'''
    ended = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=False)
    told = f'ParameterSyncManager needs Ray, which is not installed: {INSTALL}'
    assert (ended.stdout.splitlines(), ended.returncode) == ([told, told], 0), ended.stderr


def test_the_package_and_its_engines_for_processes_do_not_import_ray():
    program = '''
import sys
import lzero_async, lzero_async.engines.opened, lzero_async.engines.process, lzero_async.engines.remote
assert 'ray' not in sys.modules
'''
    subprocess.run([sys.executable, '-c', program], check=True)


# -------------------------------------------------------------------- auto


@pytest.fixture
def here(monkeypatch):
    """`here(cores, contention)`: what is found on this machine. A contention of None must not be measured."""
    def found(cores, contention=None):
        def measure():
            assert contention is not None, 'the contention does not decide, and was measured'
            return contention

        monkeypatch.setattr(opened, 'available_cores', lambda: cores)
        monkeypatch.setattr(opened, 'gil_contention', measure)
    return found


@pytest.mark.parametrize('cores, contention, engine', [
    (1, None, 'thread'), (2, 1.29, 'thread'), (2, 1.3, 'process'), (64, 9.0, 'process'),
])
def test_auto_is_picked_by_cores_and_contention(here, caplog, cores, contention, engine):
    here(cores, contention)
    caplog.set_level(logging.INFO)
    settings = choose_engines(AsyncConfig(off_policy_degree=2, engine='auto', num_collectors=3))
    assert (settings.engine, settings.num_collectors) == (engine, 3)
    assert [line for line in logged(caplog, logging.INFO) if line.startswith(f"engine 'auto' is '{engine}': ")]


@pytest.mark.parametrize('settings, engine', [
    ({}, 'thread'), ({'accelerate': False}, 'process'), ({'num_collectors': 2}, 'process'),
    ({'background_reanalyze': True}, 'process'),
])
def test_one_light_search_is_a_thread(here, settings, engine):
    here(8, None if engine == 'thread' else 9.0)
    config = AsyncConfig(off_policy_degree=2, engine='auto', **settings)
    assert choose_engines(config, light_search=True).engine == engine


def test_a_serial_run_is_one_thread(here):
    here(8)
    assert choose_engines(AsyncConfig(engine='auto')).engine == 'thread'


def test_an_address_means_ray(here):
    here(8)
    settings = AsyncConfig(off_policy_degree=2, engine='auto', ray_address='auto')
    assert choose_engines(settings).engine == 'ray'


def test_each_auto_is_replaced_and_nothing_else(here):
    here(4, 5.0)
    settings = AsyncConfig(off_policy_degree=2, collector_engine='auto', evaluator_engine='auto')
    chosen = choose_engines(settings)
    assert (chosen.engine, chosen.collector_engine, chosen.evaluator_engine) == ('thread', 'process', 'process')
    chosen = choose_engines(AsyncConfig(off_policy_degree=2, engine='auto', evaluator_engine='thread'))
    assert (chosen.engine, chosen.collector_engine, chosen.evaluator_engine) == ('process', None, 'thread')


def test_settings_without_auto_stay_the_same(here):
    here(8)
    settings = AsyncConfig(off_policy_degree=2, engine='process')
    assert choose_engines(settings) is settings


# -------------------------------------------------------------------- opened


def test_engines_are_opened_once_and_only_when_asked_for(tmp_path):
    engines = Engines(AsyncConfig(off_policy_degree=2, engine='process', evaluator_engine='thread'), str(tmp_path))
    assert engines.of('evaluator') is None
    assert engines.of('collector') is engines.of('collector')
    assert (engines.of('collector').name, engines.of('collector').on_this_machine) == ('process', True)
    engines.close()
    engines.close()
    assert our_threads() == []
