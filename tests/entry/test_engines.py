"""What a run guarantees, it guarantees wherever collectors and evaluator work: in threads, processes or Ray actors."""
import os
import pathlib
import tempfile

import pytest
import torch
from engine_runs import HERE, digest, noted_run, noting_cartpole, own_model
from real_parts import compiled
from small_configs import cartpole

from lzero_async.core.cores import core_plan
from lzero_async.lightzero.hosted import HostedRole, host_name

THREAD, PROCESS = 'thread', 'process'
RAY = pytest.param('ray', marks=pytest.mark.ray)
DEGREE, LINED_UP = 2, 6

# ------------------------------------------------------------------ one run per engine, with two collectors

_runs = {}


@pytest.fixture(scope='module')
def run_of(tmp_path_factory):
    """The run of an engine, made when it is first asked for. One that fails is not tried again."""

    def run_of(engine):
        if engine not in _runs:
            try:
                _runs[engine] = _run(engine, tmp_path_factory.mktemp(engine))
            except Exception as error:
                _runs[engine] = error
        if isinstance(_runs[engine], Exception):
            raise _runs[engine]
        return _runs[engine]

    yield run_of
    _runs.clear()


def _run(engine, folder):
    with pytest.MonkeyPatch.context() as patch:
        # The folder of the run is beside the one in which it is called for.
        (folder / 'here').mkdir()
        (folder / 'temporary').mkdir()
        patch.chdir(folder / 'here')
        patch.setenv('TMPDIR', str(folder / 'temporary'))
        patch.setenv('RAY_TMPDIR', '/tmp')  # the path of a socket must be short
        patch.setenv('PYTHONPATH', os.pathsep.join([str(HERE), str(HERE.parent)]))  # for the workers of Ray
        patch.setattr(tempfile, 'tempdir', None)
        return noted_run(
            folder, max_env_step=400, line_up_until=LINED_UP, engine=engine, num_collectors=2,
            off_policy_degree=DEGREE, replay_ratio=0.3, enable_async_eval=True, eval_freq=15,
        )


@pytest.fixture(params=[THREAD, PROCESS, RAY])
def engine(request):
    return request.param


@pytest.fixture
def run(engine, run_of):
    return run_of(engine)


def test_the_run_ends_well_and_nothing_of_it_is_left(run):
    assert run.result.ended_by == run.summary['ended_by'] == 'max_env_step'
    assert run.statistics['mode'] == 'asynchronous'
    assert run.statistics['worker_restarts'] == 0
    assert run.statistics['generation_errors'] == 0
    assert not run.left_over()
    assert ' ERROR ' not in run.log


def test_collectors_and_evaluator_work_where_they_should(run, engine):
    collectors, evaluator = run.pids_of('collector'), run.pids_of('evaluator')
    if engine == THREAD:
        assert collectors == evaluator == {os.getpid()}
    else:
        assert len(collectors) == 2 and len(evaluator) == 1
        assert not collectors & evaluator and os.getpid() not in collectors | evaluator
    assert {signature.pid for signature, _ in run.collected} == collectors


def test_lag_and_staleness_stay_within_the_degree(run):
    assert len(run.rounds) == run.statistics['train_count'] >= LINED_UP
    for record, statistics in run.rounds:
        assert 0 <= record.lag <= DEGREE and 0 <= record.staleness <= DEGREE
        assert statistics['train_count'] <= statistics['collect_count']
        assert statistics['collect_train_lag'] + statistics['collects_in_flight'] <= DEGREE
    # With both collectors at their gate as much is waiting as may be.
    assert run.summary['max_lag'] == DEGREE
    assert 1 <= run.summary['max_staleness'] <= DEGREE


def test_versions_never_go_back(run):
    published = [record.policy_version for record, _ in run.rounds]
    assert published == sorted(published) and published[-1] == run.summary['updates'] > 0
    for name in ('collector', 'collector1'):
        pulled = [signature.policy_version for signature, _ in run.collected if signature.name == name]
        assert pulled == sorted(pulled) and len(set(pulled)) > 1


def test_each_batch_has_the_version_whose_weights_collected_it(run):
    assert len({signature.weights for signature, _ in run.collected}) > 1
    for signature, _ in run.collected:
        assert signature.weights == run.digests[signature.policy_version]
    stamped = [(batch.policy_version, signature_of(batch).policy_version) for batch in run.admitted]
    assert len(stamped) == len(run.collected) - run.statistics['drop_count']
    assert all(stamp == signed for stamp, signed in stamped)


def test_segments_that_come_late_are_those_of_an_earlier_version(run):
    earlier = {'collector': set(), 'collector1': set()}
    late = 0
    for signature, collected in run.collected:
        earlier[signature.name].add(signature.policy_version)
        versions = {piece.policy_version for piece in collected.pieces}
        assert versions <= earlier[signature.name]
        late += len(versions - {signature.policy_version})
    assert late > 0


def signature_of(batch):
    return batch.pieces[0].segments[0][0].signature


def test_samples_add_up(run):
    statistics = run.statistics
    assert statistics['total_generated_samples'] == statistics['processed_samples'] + statistics['dropped_samples'] > 0
    assert statistics['total_generated_samples'] == sum(
        piece.transitions for _, collected in run.collected for piece in collected.pieces
    )
    assert statistics['collect_count'] == statistics['train_count'] + statistics['drop_count'] == len(run.collected)


def test_environment_steps_are_those_of_all_collectors(run):
    last = {signature.name: signature.env_steps for signature, _ in run.collected}
    assert len(last) == 2
    assert sum(last.values()) == sum(collected.env_steps for _, collected in run.collected) >= 400
    assert run.trainer._channels.samples.stepped(0) == sum(last.values())
    # The learner knows of those behind the batches that it was given.
    assert run.summary['env_steps'] == max(batch.env_step for batch in run.admitted) <= sum(last.values())


def test_updates_are_what_the_replay_ratio_owes(run):
    assert run.summary['updates'] == int(0.3 * run.owed) > 0


def test_the_first_batch_is_timed(run):
    seconds = run.statistics['time_to_first_batch']
    assert run.first_batch_at - run.started_at < seconds < run.ended_at - run.called_at
    assert f'the first batch was collected {seconds:.1f} s after the run was called for' in run.log


def test_checkpoints_are_written(run):
    saved = torch.load(run.run_folder / 'ckpt' / f'iteration_{run.summary["updates"]}.pth.tar')
    last = run.result.policy.learn_mode.state_dict()['model']
    assert all(torch.equal(saved['model'][name], tensor) for name, tensor in last.items())


def test_the_best_checkpoint_is_what_was_evaluated_best(run):
    assert len(run.evaluations) == run.statistics['eval_count'] >= 1
    best = max(evaluation.reward_mean for _, evaluation in run.evaluations)
    snapshot = next(snapshot for snapshot, evaluation in run.evaluations if evaluation.reward_mean == best)
    assert run.summary['best_evaluation']['reward_mean'] == best
    assert run.summary['best_evaluation']['policy_version'] == snapshot.policy_version
    saved = torch.load(run.run_folder / 'ckpt' / 'ckpt_best.pth.tar')
    assert saved['last_iter'] == snapshot.policy_version and saved['last_step'] == snapshot.env_step
    assert digest(saved['model']) == run.digests[snapshot.policy_version]
    assert saved['optimizer_world_model']['state'] and saved['target_model']


def test_the_best_checkpoint_loads_in_lightzero(run, tmp_path):
    from ding.policy import create_policy

    policy = create_policy(compiled(tmp_path).policy, enable_field=['learn', 'collect', 'eval'])
    saved = torch.load(run.run_folder / 'ckpt' / 'ckpt_best.pth.tar')
    assert digest(policy.learn_mode.state_dict()['model']) != digest(saved['model'])
    policy.learn_mode.load_state_dict(saved)
    assert digest(policy.learn_mode.state_dict()['model']) == digest(saved['model'])


def test_all_curves_are_in_the_one_event_file(run, run_of):
    assert len(list(run.run_folder.rglob('events.out.tfevents.*'))) == 1
    curves, of_threads = run.curves(), run_of(THREAD).curves()
    assert curves.keys() == of_threads.keys()
    for host in ('collector', 'collector1', 'evaluator'):
        assert f'{host}_iter/reward_mean' in curves and f'{host}_step/reward_mean' in curves
    assert len(curves['evaluator_iter/reward_mean']) == run.statistics['eval_count']
    assert len(curves['Async/lag']) == run.statistics['train_count']


def test_both_collectors_contribute_in_turn(run):
    # While the learner waits for both to stand at their gate, who has waited longer goes first.
    names = [signature.name for signature, _ in run.collected][DEGREE:LINED_UP]
    for done in range(1, len(names) + 1):
        assert abs(names[:done].count('collector') - names[:done].count('collector1')) <= 1
    assert {signature.name for signature, _ in run.collected} == {'collector', 'collector1'}


def test_collectors_play_different_episodes(run):
    seeds = [seed for role, _, _, seed in run.journal if role == 'collector']
    assert len(set(seeds)) == 6, 'three environments of each collector'
    assert not set(seeds) & {seed for role, _, _, seed in run.journal if role == 'evaluator'}
    played = {'collector': set(), 'collector1': set()}
    for signature, _ in run.collected:
        played[signature.name].update(signature.first_observations)
    assert played['collector'] and played['collector1'] and not played['collector'] & played['collector1']


def test_the_seeds_of_processes_and_actors_are_those_of_threads(run, run_of):
    def seeds(run):
        return {(role, seed) for role, _, _, seed in run.journal}

    assert seeds(run) == seeds(run_of(THREAD))


def test_workers_put_their_own_folders_away(run):
    assert not list((run.folder / 'temporary').glob('lzero-async-*'))
    assert {path.name for path in run.folder.iterdir()} == {'here', 'temporary', 'run', 'journal'}
    assert not list((run.folder / 'here').iterdir())


def test_workers_write_to_no_other_folder(run):
    assert not list((run.folder / 'temporary').rglob('*_logger.txt'))


# ------------------------------------------------------------------ seeds of workers, without a run


def hosted(name='collector-0', seed=0, restart=0):
    return HostedRole(
        cfg=None, name=name, seed=seed, restart=restart, device='cpu', accelerate=True, threads=1, cores=None,
        model=None,
    )


def test_each_worker_has_its_own_seed_and_the_same_again():
    workers = [
        (name, seed, restart) for name in ('collector-0', 'collector-1', 'evaluator') for seed in (0, 1)
        for restart in (0, 1, 2)
    ]
    first, again = ([hosted(*worker).env_seed() for worker in workers] for _ in range(2))
    assert first == again
    assert len(set(first)) == len(workers)
    # The host adds the number of the environment: neighbours must not meet.
    assert min(abs(one - other) for one in first for other in first if one != other) > 100


def test_the_first_collector_has_the_name_that_lightzero_gives():
    assert [host_name(f'collector-{index}') for index in range(3)] == ['collector', 'collector1', 'collector2']


# ------------------------------------------------------------------ mixed engines and other settings


@pytest.fixture(scope='module')
def process_collector(tmp_path_factory):
    """A collector in a process beside an evaluator in a thread; pinned to its cores, with random episodes to begin
    with.
    """
    return noted_run(
        tmp_path_factory.mktemp('mixed'), max_env_step=250, collector_engine='process', off_policy_degree=2,
        enable_async_eval=True, cpu_affinity='auto', random_collect_episode_num=3, eval_freq=10, update_per_collect=5,
    )


def test_a_process_collector_beside_a_thread_evaluator(process_collector):
    assert process_collector.result.ended_by == 'max_env_step'
    assert os.getpid() not in process_collector.pids_of('collector')
    assert process_collector.pids_of('evaluator') == {os.getpid()}
    assert process_collector.statistics['eval_count'] >= 1
    assert not process_collector.left_over()


def test_a_process_is_pinned_to_the_cores_of_its_role(process_collector):
    ours = core_plan(1).cores_of('collector-0')
    assert {signature.cores for signature, _ in process_collector.collected} == {ours}
    if len(os.sched_getaffinity(0)) > 1:
        assert ours < os.sched_getaffinity(0), 'and this process is as free as before'


def test_random_episodes_of_a_process_fill_the_buffer_and_owe_nothing(process_collector):
    played = sum(collected.env_steps for _, collected in process_collector.collected)
    random_steps = process_collector.summary['env_steps'] - played
    assert random_steps > 0
    # Every round finds enough to train on, thanks to them, and they owe no updates.
    assert process_collector.summary['updates'] == 5 * process_collector.statistics['train_count']
    assert {signature.env_steps for signature, _ in process_collector.collected[-1:]} == {
        process_collector.summary['env_steps']
    }


def test_a_model_of_the_users_own_in_a_process(tmp_path):
    run = noted_run(
        tmp_path, max_env_step=100, model=own_model(tmp_path), collector_engine='process', off_policy_degree=2,
        eval_freq=10 ** 6, max_worker_restarts=0,
    )
    assert any(name.endswith('mark') for name in run.result.policy.learn_mode.state_dict()['model'])
    assert len(run.collected) > 1
    for signature, _ in run.collected:
        assert signature.weights == run.digests[signature.policy_version]


@pytest.fixture(scope='module')
def process_evaluator(tmp_path_factory):
    """A collector in a thread beside an evaluator in a process; evaluation blocks the learner."""
    return noted_run(
        tmp_path_factory.mktemp('mixed'), max_env_step=150, evaluator_engine='process', off_policy_degree=2,
        enable_async_eval=False, eval_freq=10, replay_ratio=0.3,
    )


def test_a_thread_collector_beside_a_process_evaluator(process_evaluator):
    assert process_evaluator.result.ended_by == 'max_env_step'
    assert process_evaluator.pids_of('collector') == {os.getpid()}
    evaluators = process_evaluator.pids_of('evaluator')
    assert len(evaluators) == 1 and os.getpid() not in evaluators
    assert process_evaluator.statistics['eval_count'] == len(process_evaluator.evaluations) >= 2
    assert (process_evaluator.run_folder / 'ckpt' / 'ckpt_best.pth.tar').is_file()
    assert not process_evaluator.left_over()


def test_evaluations_come_when_they_are_due(process_evaluator):
    versions = [snapshot.policy_version for snapshot, _ in process_evaluator.evaluations]
    assert min(later - earlier for earlier, later in zip([0, *versions], versions)) >= 10


@pytest.fixture(scope='module')
def grandchildren(tmp_path_factory):
    """Collector and evaluator in processes whose environments are processes, too; the degree tunes itself."""
    folder = tmp_path_factory.mktemp('grandchildren')
    main, create = noting_cartpole(folder)
    create.env_manager.type = 'subprocess'
    return noted_run(
        folder, (main, create), max_env_step=150, engine='process', off_policy_degree=-1, replay_buffer_size=480,
        enable_async_eval=True, eval_freq=10,
    )


def test_environments_in_processes_of_a_process(grandchildren):
    assert grandchildren.result.ended_by == 'max_env_step'
    of_collector = {(pid, parent) for role, pid, parent, _ in grandchildren.journal if role == 'collector'}
    assert len({pid for pid, _ in of_collector}) == 3, 'each environment has a process'
    assert {parent for _, parent in of_collector} == {signature.pid for signature, _ in grandchildren.collected}
    of_evaluator = {parent for role, _, parent, _ in grandchildren.journal if role == 'evaluator'}
    assert len(of_evaluator) == 1 and not of_evaluator & {parent for _, parent in of_collector}
    assert grandchildren.pids_of('collector') <= {process.pid for process in grandchildren.processes}
    assert not grandchildren.left_over()


def test_a_degree_that_tunes_itself_with_processes(grandchildren):
    most = 480 // 16 // 10
    assert most == 3
    for record, _ in grandchildren.rounds:
        assert record.lag <= record.off_policy_degree <= most and record.staleness <= most
    assert grandchildren.summary['max_lag'] >= 1


def test_auto_says_what_it_picked_and_why(tmp_path):
    run = noted_run(tmp_path, max_env_step=40, engine='auto', off_policy_degree=2, eval_freq=10 ** 6)
    (line,) = [line for line in run.log.splitlines() if "engine 'auto' is " in line]
    picked = line.split("engine 'auto' is '")[1].split("'")[0]
    assert line.split(f"'{picked}': ")[1].strip(), 'and why'
    assert picked in (THREAD, PROCESS)
    assert (run.pids_of('collector') == {os.getpid()}) == (picked == THREAD)
    assert not run.left_over()


# ------------------------------------------------------------------ refusals


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(pathlib.Path().iterdir()), 'a refused run left something behind'


@pytest.mark.parametrize('policy, message', [
    ({'engine': 'process'}, "engine must be 'thread' or 'auto' when off_policy_degree is 0 .*got 'process'"),
    ({'engine': 'ray'}, "engine must be 'thread' or 'auto' when off_policy_degree is 0 .*got 'ray'"),
    ({'collector_engine': 'process'}, "collector_engine must be 'thread' or 'auto' when off_policy_degree is 0"),
    ({'evaluator_engine': 'process', 'enable_async_eval': False}, "evaluator_engine must be .*enable_async_eval is "),
    ({'num_collectors': 2}, 'num_collectors must be 1 when off_policy_degree is 0 .*got 2'),
    ({'engine': 'fork', 'off_policy_degree': 2}, "engine must be .*'thread'.*'process'.*'ray'.*'auto'.*got 'fork'"),
    ({'collector_engine': 5, 'off_policy_degree': 2}, 'collector_engine must be .*got 5'),
    ({'num_collectors': 0, 'off_policy_degree': 2}, 'num_collectors must be >= 1, got 0'),
    ({'cpu_affinity': 'all', 'off_policy_degree': 2}, "cpu_affinity must be .*'auto'.*got 'all'"),
    ({'ray_address': 'auto', 'off_policy_degree': 2}, "ray_address must be None unless an engine is 'ray' or 'auto'"),
    ({'max_worker_restarts': -1}, 'max_worker_restarts must be >= 0, got -1'),
    ({'enginee': 'process', 'off_policy_degree': 2}, r'policy\.enginee .*did you mean engine\?'),
], ids=lambda value: str(value)[:40])
def test_what_cannot_work_is_refused(empty_folder, policy, message):
    from lzero_async import ConfigError, train_unizero_segment_async

    with pytest.raises(ConfigError, match=message):
        train_unizero_segment_async(cartpole('run', **{'off_policy_degree': 0, **policy}))
