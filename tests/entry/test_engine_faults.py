"""Workers that die, raise or hang in a real run, and runs that are killed."""
import contextlib
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
import torch
from engine_runs import HERE, Notes, below, noted_run, noting_cartpole, own_model, still_there, wait_until

from lzero_async import RoleFailed

RAY = pytest.param('ray', marks=pytest.mark.ray)


def error_lines(run):
    return [line for line in run.log.splitlines() if ' ERROR ' in line]


def assert_in_order(run):
    """The run ended as if nothing had happened: all bounds and accounts hold."""
    assert run.result.ended_by == run.summary['ended_by'] == 'max_env_step'
    statistics = run.statistics
    for record, then in run.rounds:
        assert record.lag <= 2 and record.staleness <= 2 and then['train_count'] <= then['collect_count']
    assert statistics['collect_count'] == statistics['train_count'] + statistics['drop_count'] == len(run.collected)
    assert statistics['total_generated_samples'] == statistics['processed_samples'] + statistics['dropped_samples']
    for signature, _ in run.collected:
        assert signature.weights == run.digests[signature.policy_version]
    assert (run.run_folder / 'ckpt' / f'iteration_{run.summary["updates"]}.pth.tar').is_file()
    assert not run.left_over()


def once(round, act):
    """Something to do after a round."""

    def on_round(notes, record):
        if record.round == round:
            act(notes)

    return on_round


# ------------------------------------------------------------------ a worker is killed


def kill_while_collecting(notes):
    wait_until(lambda: notes.trainer.get_statistics()['collects_in_flight'])
    os.kill(notes.collected[-1][0].pid, signal.SIGKILL)


@pytest.fixture(scope='module', params=['process', RAY])
def killed_collector(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('PYTHONPATH', os.pathsep.join([str(HERE), str(HERE.parent)]))  # for the workers of Ray
        folder = tmp_path_factory.mktemp('killed')
        patch.setenv('TMPDIR', str(folder))  # a killed actor leaves its folder behind
        patch.setenv('RAY_TMPDIR', '/tmp')  # the path of a socket must be short
        return noted_run(
            folder, max_env_step=250, collector_engine=request.param, off_policy_degree=2, eval_freq=10 ** 6,
            model=own_model(folder) if request.param == 'ray' else None, on_round=once(3, kill_while_collecting),
        )


def test_a_killed_collector_is_replaced_and_the_run_ends_well(killed_collector):
    assert_in_order(killed_collector)
    assert killed_collector.statistics['worker_restarts'] == 1
    assert len({signature.pid for signature, _ in killed_collector.collected}) == 2
    assert sum(collected.env_steps for _, collected in killed_collector.collected) >= 250


def test_a_killed_collector_is_an_error_in_the_log(killed_collector):
    (line,) = error_lines(killed_collector)
    assert 'collector-0 is replaced, 1 of 3 times within 600 s: collector-0 (' in line
    assert 'killed by SIGKILL' in line or 'is lost: ActorDiedError' in line


def test_who_takes_its_place_plays_other_episodes(killed_collector):
    seeds = {}
    for role, pid, _, seed in killed_collector.journal:
        if role == 'collector':
            seeds.setdefault(pid, set()).add(seed)
    first, second = seeds.values()
    assert len(first) == len(second) == 3 and not first & second


def test_ray_takes_a_model_of_the_users_own(killed_collector):
    state = killed_collector.result.policy.learn_mode.state_dict()['model']
    engine = type(killed_collector.worker('collector-0')).__name__
    # All was collected with all of its weights, of which this is one: see assert_in_order.
    assert any(name.endswith('mark') for name in state) == (engine == 'RayWorker')


def test_a_killed_evaluator_is_replaced_and_evaluates(tmp_path):
    killed = []

    def kill(notes):
        if not killed and notes.evaluations:
            killed.append(notes.worker('evaluator').pid)
            os.kill(killed[0], signal.SIGKILL)

    run = noted_run(
        tmp_path, max_env_step=250, evaluator_engine='process', off_policy_degree=2, enable_async_eval=False,
        eval_freq=15, replay_ratio=0.3, on_round=lambda notes, record: kill(notes),
    )
    assert_in_order(run)
    assert run.statistics['worker_restarts'] == 1
    assert len(run.pids_of('evaluator')) == 2 and killed[0] in run.pids_of('evaluator')
    assert run.statistics['eval_count'] == len(run.evaluations) >= 2
    (line,) = error_lines(run)
    assert f'evaluator is replaced, 1 of 3 times within 600 s: evaluator (process {killed[0]})' in line
    assert 'killed by SIGKILL' in line
    # What was best before is remembered: a new worker does not begin anew.
    best = max(evaluation.reward_mean for _, evaluation in run.evaluations)
    first_best = next(snapshot for snapshot, evaluation in run.evaluations if evaluation.reward_mean == best)
    assert torch.load(run.run_folder / 'ckpt' / 'ckpt_best.pth.tar')['last_iter'] == first_best.policy_version


# ------------------------------------------------------------------ its environment raises, or hangs


def test_an_environment_that_raises_once(tmp_path):
    fault = {'role': 'collector', 'how': 'raise', 'after': 25, 'once': str(tmp_path / 'raised')}
    run = noted_run(
        tmp_path, noting_cartpole(tmp_path, fault), max_env_step=200, collector_engine='process', off_policy_degree=2,
        eval_freq=10 ** 6,
    )
    assert_in_order(run)
    assert (tmp_path / 'raised').exists()
    assert run.statistics['worker_restarts'] == run.statistics['generation_errors'] == 1
    (line,) = error_lines(run)
    assert 'collector-0 is replaced, 1 of 3 times' in line and 'the simulator is gone' in line
    traceback = run.log[run.log.index(line):]
    assert 'The traceback from there:' in traceback and 'engine_runs.py", line ' in traceback


def test_an_environment_that_always_raises_ends_the_run_in_order(tmp_path):
    fault = {'role': 'collector', 'how': 'raise', 'after': 40}
    run = Notes(tmp_path)
    with pytest.raises(RoleFailed, match='collector-0 failed: RestartsExhausted: collector-0 was replaced 1 ') as met:
        noted_run(
            tmp_path, noting_cartpole(tmp_path, fault), notes=run, max_env_step=10 ** 6, collector_engine='process',
            off_policy_degree=2, eval_freq=10 ** 6, max_worker_restarts=1,
        )
    chain, error = [], met.value
    while error is not None:
        chain.append(error)
        error = error.__cause__
    assert [type(one).__name__ for one in chain] == ['RoleFailed', 'RestartsExhausted', 'WorkerLost']
    assert 'the simulator is gone' in str(chain[-1]) and 'engine_runs.py", line ' in str(chain[-1])

    summary = json.loads((run.run_folder / 'async_summary.json').read_text())
    assert summary['ended_by'] == 'failure' and 'the simulator is gone' in summary['error']
    statistics = summary['statistics']
    assert statistics['worker_restarts'] == 1
    assert statistics['collect_count'] == statistics['train_count'] + statistics['drop_count'] > 0, 'all is trained'
    saved = torch.load(run.run_folder / 'ckpt' / f'iteration_{summary["updates"]}.pth.tar')
    assert saved['last_iter'] == summary['updates'] > 0
    assert not run.left_over()


def test_an_environment_that_hangs_once(tmp_path):
    fault = {'role': 'collector', 'how': 'hang', 'after': 25, 'once': str(tmp_path / 'hung')}
    run = noted_run(
        tmp_path, noting_cartpole(tmp_path, fault), max_env_step=200, collector_engine='process', off_policy_degree=2,
        eval_freq=10 ** 6, generation_timeout=5.0,
    )
    assert_in_order(run)
    assert (tmp_path / 'hung').exists()
    assert run.statistics['worker_restarts'] == 1
    (line,) = error_lines(run)
    assert 'collector-0 hung: nothing came of collect for 5 s' in line


def test_an_environment_that_raises_once_while_random_episodes_are_collected(tmp_path):
    fault = {'role': 'collector', 'how': 'raise', 'after': 3, 'once': str(tmp_path / 'raised')}
    run = noted_run(
        tmp_path, noting_cartpole(tmp_path, fault), max_env_step=100, collector_engine='process', off_policy_degree=2,
        eval_freq=10 ** 6, random_collect_episode_num=2,
    )
    assert run.result.ended_by == 'max_env_step' and not run.left_over()
    (line,) = error_lines(run)
    assert 'collector-0 is replaced, 1 of 3 times within ' in line


def test_an_environment_that_cannot_be_made_is_said_at_once(tmp_path):
    main, create = noting_cartpole(tmp_path, off_policy_degree=2, engine='process')
    main.env.env_id = 'NoSuchPole-v0'
    run = Notes(tmp_path)
    with pytest.raises(RoleFailed, match='collector-0 failed: RemoteError: collector-0 could not be made') as met:
        noted_run(tmp_path, (main, create), notes=run, eval_freq=10 ** 6)
    assert 'NoSuchPole' in str(met.value) and 'The traceback from there:' in str(met.value)
    assert not below(psutil.Process())


# ------------------------------------------------------------------ the whole run is killed, or interrupted

SCRIPT = """
import sys
sys.path[:0] = {folders!r}
from small_configs import cartpole
main_config, create_config = cartpole(
    'run', engine={engine!r}, off_policy_degree=2, enable_async_eval=True, eval_freq=5, show_progress=True
)
create_config.env_manager.type = 'subprocess'
"""

RAYS_AGENTS = ('ray::DashboardAgent', 'ray::RuntimeEnvAgent')
"""They end by themselves, but only a minute after the rest of a Ray that was killed."""


class Program:
    """A training in a program of its own, with environments in processes of their own."""

    def __init__(self, folder, engine):
        self.folder = folder
        self.shared_memory = set(os.listdir('/dev/shm'))
        (folder / 'config.py').write_text(SCRIPT.format(folders=[str(HERE.parent)], engine=engine))
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'lzero_async.entry.cli', 'train', 'config.py'], cwd=folder, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, 'TMPDIR': str(folder), 'RAY_TMPDIR': '/tmp'},
        )
        self.begun = []
        for line in self.process.stdout:
            self.begun.append(line)
            if 'round ' in line and 'round 0' not in line:
                break
        # Three environments of the collector and two of the evaluator play.
        wait_until(lambda: self.process.poll() is not None or len(self._environments()) >= 5)
        assert self.process.poll() is None, ''.join(self.begun) + self.process.stdout.read()
        self.processes = [
            one for one in psutil.Process(self.process.pid).children(recursive=True) if one.name() not in RAYS_AGENTS
        ]

    def _environments(self):
        with_parent = [one.ppid() for one in below(psutil.Process(self.process.pid)) if one.is_running()]
        return [parent for parent in with_parent if parent != self.process.pid and with_parent.count(parent) >= 2]

    def left_over(self):
        return still_there(self.processes)

    def new_shared_memory(self):
        return set(os.listdir('/dev/shm')) - self.shared_memory


@contextlib.contextmanager
def program(folder, engine):
    run = Program(folder, engine)
    try:
        yield run
    finally:
        for process in (run.process, *run.processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        run.process.communicate()


@pytest.mark.parametrize('engine', ['process', RAY])
def test_a_run_that_is_killed_leaves_nothing_behind(tmp_path, engine):
    with program(tmp_path, engine) as run:
        assert len(run.processes) >= 8, 'collector, evaluator and their environments'
        run.process.kill()
        run.process.wait()
        assert not run.left_over()
        wait_until(lambda: not run.new_shared_memory())


@pytest.fixture(scope='module')
def interrupted(tmp_path_factory):
    with program(tmp_path_factory.mktemp('interrupted'), 'process') as run:
        os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does: to every process of the program
        run.rest, _ = run.process.communicate(timeout=120)
        yield run


def test_ctrl_c_ends_processes_in_order(interrupted):
    assert interrupted.process.returncode == 130, interrupted.rest
    assert 'interrupt' in interrupted.rest and 'Traceback' not in interrupted.rest
    assert not interrupted.left_over() and not interrupted.new_shared_memory()
    folder = interrupted.folder / 'run'
    summary = json.loads((folder / 'async_summary.json').read_text())
    assert summary['ended_by'] == 'interrupt' and summary['statistics']['worker_restarts'] == 0
    assert (folder / 'ckpt' / f'iteration_{summary["updates"]}.pth.tar').is_file()
    for role in ('collector-0', 'evaluator'):
        assert 'Traceback' not in (folder / 'log' / f'{role}.log').read_text()


def test_what_children_say_is_in_their_log_files(interrupted):
    said = ''.join(interrupted.begun) + interrupted.rest
    assert 'round ' in said
    assert 'Warning' not in said and 'WARNING' not in said


# ------------------------------------------------------------------ Ray is not installed

WITHOUT_RAY = """
import sys
sys.path.insert(0, {tests!r})
sys.modules['ray'] = None  # whoever imports it gets a ModuleNotFoundError
from small_configs import cartpole
from lzero_async import ConfigError, train_unizero_segment_async

for setting in ('engine', 'collector_engine', 'evaluator_engine'):
    try:
        train_unizero_segment_async(cartpole('run', off_policy_degree=2, **{{setting: 'ray'}}))
    except ConfigError as error:
        print('refused:', error)
"""


def test_ray_where_it_cannot_be_imported_is_refused_in_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, '-c', WITHOUT_RAY.format(tests=str(HERE.parent))], cwd=tmp_path, capture_output=True,
        text=True, timeout=300,
    )
    assert done.returncode == 0, done.stderr
    refused = "refused: engine 'ray' needs Ray, which is not installed: pip install 'lzero-async[ray]'"
    assert done.stdout.splitlines() == 3 * [refused]
    assert not list(tmp_path.iterdir())
