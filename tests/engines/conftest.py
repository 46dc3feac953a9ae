import contextlib
from types import SimpleNamespace

import pytest
from acting_roles import PATIENCE, Acting, Stage
from fakes import our_threads
from hiring import BOTH, ENVIRONMENT, Every, await_no_thread, open_engine

from lzero_async.engines.remote import Patience, RemoteCollector, RemoteEvaluator


@pytest.fixture(scope='module')
def importable():
    """Ray's workers can import what lies here. To be asked for before Ray is started."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope='module')
def engines(importable, tmp_path_factory):
    """`engines(name)`: each engine is opened once per module; Ray is one of the engine's own."""
    opened = {}

    def get(name):
        if name not in opened:
            opened[name] = open_engine(name, tmp_path_factory.mktemp('log'))
        return opened[name]

    yield get
    for engine in opened.values():
        engine.close()
    assert our_threads() == []
    if 'ray' in opened:
        import ray

        assert not ray.is_initialized()


@pytest.fixture(params=BOTH)
def engine(request, engines):
    return engines(request.param)


@pytest.fixture
def hire(engine, tmp_path):
    """`hire(name, ...)`: a remote role that acts as told, with its stage and what it drew; closed at the end."""
    hired = []

    def make(name='collector-0', patience=None, **acting):
        stage = Stage(tmp_path / f'{name}-{len(hired)}')
        stage.folder.mkdir()
        make_role = Acting(str(stage.folder), **acting)
        drawn, best, launches = [], [], []
        patience = patience or Patience(PATIENCE, PATIENCE, PATIENCE)

        def launch(restart):
            launches.append(restart)
            return engine.launch(name, make_role)

        def draw(*point):
            drawn.append(point)

        if name == 'evaluator':
            role = RemoteEvaluator(
                name, launch, engine.place, patience, draw, interval=Every(2), save_best=best.append,
            )
        else:
            role = RemoteCollector(name, launch, engine.place, patience, draw)
        hired.append(role)
        return SimpleNamespace(role=role, stage=stage, drawn=drawn, best=best, launches=launches, engine=engine.name)

    yield make
    for role in hired:
        with contextlib.suppress(AssertionError):  # never started
            role._worker.kill()
    await_no_thread()
