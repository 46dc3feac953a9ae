"""The Ray engine on a cluster of several nodes, of which some go; and how it is joined."""
import logging
import os
import subprocess
import sys
import threading

import pytest

ray = pytest.importorskip('ray')

import acting_roles  # noqa: E402
from acting_roles import Acting, Stage  # noqa: E402
from fakes import logged, make_run  # noqa: E402
from hiring import ENVIRONMENT, PATIENCE, ray_settings, until, yes  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from test_engine_runs import TorchLearner  # noqa: E402

from lzero_async.core.config import AsyncConfig  # noqa: E402
from lzero_async.core.errors import ConfigError  # noqa: E402
from lzero_async.engines.ray_engine import RayEngine, resources_asked_for  # noqa: E402
from lzero_async.engines.remote import Patience, RemoteCollector  # noqa: E402
from lzero_async.torch_weights import ParameterSynchronizer  # noqa: E402

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

SEAT = {'seat': 1.0}


@pytest.fixture(scope='module')
def cluster(importable):
    """A head without room for actors, and two nodes with two seats each."""
    quickly = {
        'health_check_initial_delay_ms': 0, 'health_check_period_ms': 500, 'health_check_failure_threshold': 4,
    }
    cluster = Cluster(
        initialize_head=True,
        head_node_args={'num_cpus': 0, 'include_dashboard': False, '_system_config': quickly},
    )
    for _ in range(2):
        cluster.add_node(num_cpus=1, resources={'seat': 2})
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def joined(cluster):
    """`joined(...)`: an engine that has joined the cluster by its address."""
    engines = []

    def join(**settings):
        engines.append(RayEngine(ray_settings(
            **{'ray_address': cluster.address, 'collector_resources': SEAT, 'num_collectors': 2, **settings}
        )))
        return engines[-1]

    yield join
    for engine in engines:
        engine.close()
    assert not ray.is_initialized()


@pytest.fixture
def team(joined, tmp_path):
    """`team(engine)`: two collectors on the cluster, and their stages."""
    roles = []

    def make(engine, **acting):
        stages = []
        for index in range(2):
            name = f'collector-{index}'
            stage = Stage(tmp_path / name)
            stage.folder.mkdir()
            stages.append(stage)
            make_role = Acting(str(stage.folder), on_make=acting_roles.note_node, **acting)
            roles.append(RemoteCollector(
                name, lambda restart, name=name, make_role=make_role: engine.launch(name, make_role), engine.place,
                Patience(PATIENCE, PATIENCE, PATIENCE),
            ))
            roles[-1].start()
        return roles, stages

    yield make
    for role in roles:
        role.close()


def node_named(cluster, node_id):
    return next(node for node in cluster.worker_nodes if node.node_id == node_id)


def test_actors_are_spread_and_one_that_loses_its_node_is_replaced_on_another(cluster, joined, team):
    engine = joined()
    roles, stages = team(engine, on_work=acting_roles.step_a_little)
    for role in roles:
        role.await_ready(yes)
    homes = [stage.await_note('node') for stage in stages]
    assert len(set(homes)) == 2
    run = make_run(
        3, collectors=roles, learner=TorchLearner(), max_worker_restarts=3,
        synchronizer=ParameterSynchronizer(AsyncConfig(max_sync_retries=0, sync_timeout=PATIENCE)),
    )

    def lose_a_node():
        stages[0].await_note('working', 5)
        cluster.remove_node(node_named(cluster, homes[0]), allow_graceful=False)
        stages[0].await_note('node', 2)
        seen = len(stages[0].notes('working'))
        until(lambda: len(stages[0].notes('working')) > seen + 3, 'the new one works')
        run.trainer.request_stop('seen enough')

    loser = threading.Thread(target=lose_a_node)
    loser.start()
    try:
        assert run.trainer.run().ended_by == 'seen enough'
    finally:
        loser.join()
        cluster.add_node(num_cpus=1, resources={'seat': 2})
    assert stages[0].notes('node') == homes and stages[1].notes('node') == homes[1:]
    counts = run.trainer.get_statistics()
    # Two, where Ray has placed the next one on the same node, which it did not know to be gone yet.
    assert counts['worker_restarts'] in (1, 2) and counts['collect_count'] == counts['train_count']
    assert counts['dropped_samples'] == 0
    assert all(batch.pieces[0].segments['loaded'] == batch.policy_version for batch in run.learner.admitted)


def test_a_demand_that_the_cluster_cannot_meet_is_told_and_waits(joined, team, caplog):
    caplog.set_level(logging.WARNING)
    joined(num_collectors=9, collector_num_cpus=0.0, evaluator_num_cpus=0.0)
    told = [line for line in logged(caplog, logging.WARNING) if 'need' in line]
    assert told == ['the actors of this run need 9 seat, and Ray has 4: some wait until it has more']


def test_a_demand_that_can_be_met_is_not_mentioned(joined, caplog):
    caplog.set_level(logging.WARNING)
    joined()
    assert [line for line in logged(caplog, logging.WARNING) if 'need' in line] == []


def test_a_ray_that_is_joined_already_is_used_and_left_alone(cluster):
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        for address in (None, cluster.address):
            engine = RayEngine(ray_settings(ray_address=address))
            assert not engine.on_this_machine
            engine.close()
            assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_a_wrong_address_is_refused_by_its_name():
    with pytest.raises(ConfigError, match=r"^ray_address must be that of a running Ray cluster, got 'nonsense'"):
        RayEngine(ray_settings(ray_address='nonsense'))
    assert not ray.is_initialized()


def test_an_address_where_nobody_answers_is_refused_by_its_name(tmp_path):
    program = '''
from hiring import ray_settings
from lzero_async.core.errors import ConfigError
from lzero_async.engines.ray_engine import RayEngine
try:
    RayEngine(ray_settings(ray_address='127.0.0.1:1'))
except ConfigError as error:
    print(str(error).splitlines()[0])
'''
    # Left to itself, Ray tries for a quarter of an hour.
    impatient = dict.fromkeys((
        'RAY_gcs_server_port_wait_time_s', 'RAY_py_gcs_connect_timeout_s', 'RAY_gcs_rpc_server_connect_timeout_s',
    ), '1')
    ended = subprocess.run(
        [sys.executable, '-c', program], env={**os.environ, **ENVIRONMENT, **impatient}, capture_output=True, text=True,
        check=False, cwd=tmp_path,
    )
    told = "ray_address must be that of a running Ray cluster, got '127.0.0.1:1'"
    assert ended.stdout.startswith(told), ended.stderr


def test_what_all_actors_of_a_run_need_together():
    settings = ray_settings(num_collectors=3, collector_num_cpus=0.5, collector_resources=SEAT, collector_num_gpus=0.25)
    assert resources_asked_for(settings) == {'CPU': 1.6, 'GPU': 0.75, 'seat': 3.0}
    settings = ray_settings(engine='process', evaluator_engine='ray', evaluator_resources={'seat': 2})
    assert resources_asked_for(settings) == {'CPU': 0.1, 'GPU': 0.0, 'seat': 2.0}
