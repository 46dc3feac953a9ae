"""However a program ends, nothing that its run has started outlives it."""
import os
import pathlib
import signal
import subprocess
import sys

import psutil
import pytest
from acting_roles import PATIENCE, Stage
from hiring import ENVIRONMENT, assert_gone, until

pytestmark = pytest.mark.timeout(600)

PROGRAM = str(pathlib.Path(__file__).parent / 'small_run.py')
ENGINES = pytest.mark.parametrize('engine', ['process', pytest.param('ray', marks=pytest.mark.ray)])
PROCESSES = pytest.mark.parametrize('engine', ['process'])


class Program:
    """One that runs, with all its processes, as far as `at_work` has seen them."""

    def __init__(self, engine, trick, folder):
        self.stage = Stage(folder)
        self.output = open(folder / 'output', 'w+', encoding='utf-8')  # noqa: SIM115
        # A session of its own, as a terminal gives to what runs in it.
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, engine, str(folder), trick], start_new_session=True,
            stdout=self.output, stderr=subprocess.STDOUT, env={**os.environ, **ENVIRONMENT},
        )
        self.family = []

    def at_work(self):
        """Wait until both collectors work, and remember all who take part."""
        until(lambda: self.process.poll() is not None or len(self.stage.notes('working')) >= 2, 'two work')
        assert self.process.poll() is None, self.said()
        until(lambda: len(self.stage.notes('grandchild')) == 2, 'both have forked')
        self.family = psutil.Process(self.process.pid).children(recursive=True)
        pids = {process.pid for process in self.family}
        assert {int(pid) for name in ('made', 'grandchild') for pid in self.stage.notes(name)} <= pids
        return self

    def ctrl_c(self):
        """As a terminal does it: to all that were started in it and did not leave its group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def said(self):
        self.output.seek(0)
        return self.output.read()

    def assert_gone(self, but=()):
        self.process.wait(PATIENCE)
        _, alive = psutil.wait_procs(self.family, PATIENCE)
        assert alive == [], [(process.pid, process.cmdline()) for process in alive]
        assert_gone(int(pid) for name in ('made', 'grandchild') for pid in self.stage.notes(name))
        if not but:
            with pytest.raises(ProcessLookupError):
                os.killpg(self.process.pid, 0)

    def close(self):
        self.family += psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        for process in [self.process, *self.family]:
            if process is not self.process or process.poll() is None:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
        self.process.wait()
        self.output.close()


@pytest.fixture
def begin(tmp_path):
    programs, before = [], set(os.listdir('/dev/shm'))

    def start(engine, trick='step_until_go'):
        programs.append(Program(engine, trick, tmp_path))
        return programs[-1]

    yield start
    for program in programs:
        program.close()
    until(lambda: set(os.listdir('/dev/shm')) <= before, 'nothing is left in /dev/shm')


@ENGINES
def test_nothing_outlives_a_normal_end(begin, engine):
    program = begin(engine).at_work()
    program.stage.note('end')
    program.stage.note('go')
    program.assert_gone()
    assert (program.process.returncode, program.said().splitlines()[-1]) == (0, 'told to end'), program.said()
    assert len(program.stage.notes('closed')) == 2


@PROCESSES
def test_nothing_outlives_a_failure(begin, engine):
    program = begin(engine, 'fall_after_go').at_work()
    program.stage.note('go')
    program.assert_gone()
    assert program.process.returncode == 1 and 'RestartsExhausted' in program.said()


@ENGINES
def test_nothing_outlives_a_ctrl_c(begin, engine):
    program = begin(engine).at_work()
    program.ctrl_c()
    program.assert_gone()
    assert (program.process.returncode, program.said().splitlines()[-1]) == (0, 'interrupt'), program.said()
    assert len(program.stage.notes('closed')) == 2


@ENGINES
def test_nothing_outlives_a_second_ctrl_c(begin, engine):
    program = begin(engine, 'hang').at_work()
    program.ctrl_c()
    program.stage.await_note('first')
    program.ctrl_c()
    program.assert_gone()
    assert program.process.returncode == -signal.SIGINT, program.said()
    assert 'KeyboardInterrupt' in program.said()


@PROCESSES
def test_nothing_outlives_many_ctrl_c(begin, engine):
    program = begin(engine, 'hang').at_work()

    def ended():
        if program.process.poll() is None:
            program.ctrl_c()
        return program.process.poll() is not None

    until(ended, 'it ends')
    program.assert_gone()
    assert program.process.returncode != 0


@ENGINES
def test_nothing_outlives_a_killed_program(begin, engine):
    program = begin(engine, 'hang_with_the_gil').at_work()  # they notice nothing by themselves
    # Ray's own agents notice it in their own time, which is about a minute.
    slow = [process for process in program.family if process.name() in ('ray::DashboardAgent', 'ray::RuntimeEnvAgent')]
    assert len(slow) == (2 if engine == 'ray' else 0)
    program.family = [process for process in program.family if process not in slow]
    os.kill(program.process.pid, signal.SIGKILL)
    program.assert_gone(but=slow)
    assert program.process.returncode == -signal.SIGKILL
    program.family += slow


@PROCESSES
def test_nothing_outlives_a_program_killed_while_its_workers_start(begin, engine):
    program = begin(engine, 'hang')
    until(lambda: psutil.Process(program.process.pid).children(), 'the first is started')
    program.family = psutil.Process(program.process.pid).children(recursive=True)
    os.kill(program.process.pid, signal.SIGKILL)
    program.assert_gone()
