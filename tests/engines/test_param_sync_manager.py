"""ParameterSyncManager: the synchronizer as a Ray actor, between workers that are Ray actors, too."""
import pytest

ray = pytest.importorskip('ray')

import torch  # noqa: E402
from hiring import PATIENCE  # noqa: E402

from lzero_async import ParameterSyncManager  # noqa: E402
from lzero_async.core.errors import ConfigError  # noqa: E402
from lzero_async.engines.param_sync_manager import RayParameterSynchronizer  # noqa: E402

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

SPEC_KEYS = {
    'sync_count', 'sync_failures', 'last_sync_time', 'sync_group_initialized', 'current_param_version',
    'current_version', 'is_ready',
}
ONE_TRY = {'max_sync_retries': 0, 'sync_timeout': PATIENCE, 'sync_retry_delay': 0}


class Actor:
    """Gives weights; each update makes them one more."""

    def __init__(self):
        self.value = 0.0

    def update(self, value=None):
        self.value = self.value + 1 if value is None else value

    def get_weights(self):
        return {'w': torch.full((2, 3), self.value), 'b': torch.tensor([True])}


class Rollout:
    def __init__(self):
        self.loaded = []
        self.broken = False

    def break_down(self, broken):
        self.broken = broken

    def load_weights(self, weights, policy_version):
        if self.broken:
            raise ValueError('broken over there')
        self.loaded.append((policy_version, weights['w'][0, 0].item()))

    def what(self):
        return self.loaded


class Module:
    """By the names of torch."""

    def __init__(self):
        self.weights = {'w': torch.full((2, 3), 5.0)}

    def state_dict(self):
        return self.weights

    def load_state_dict(self, weights):
        self.weights = weights


class Watched(RayParameterSynchronizer):
    def count_targets(self):
        return len(self._targets)


@pytest.fixture(scope='module', autouse=True)
def own_ray(importable):
    ray.init(address='local', num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope='module')
def hired(own_ray):
    """Workers, shared by the tests here: to start one takes seconds. What they did before stays with them."""
    def remote(cls):
        return ray.remote(cls).options(num_cpus=0).remote()

    return {'actor': remote(Actor), 'rollouts': [remote(Rollout), remote(Rollout)], 'module': remote(Module)}


@pytest.fixture
def manager(own_ray):
    actor = ParameterSyncManager.options(num_cpus=0).remote(ONE_TRY)
    yield actor
    ray.kill(actor)


@pytest.fixture
def here(own_ray):
    """The same at work in this process, between the same workers: it needs no start."""
    synchronizer = RayParameterSynchronizer(ONE_TRY)
    yield synchronizer
    synchronizer.cleanup()


def ask(answer):
    return ray.get(answer, timeout=PATIENCE)


def test_weights_go_from_registered_actors_to_rollouts(manager, hired):
    actor, rollouts = hired['actor'], hired['rollouts']
    before = ask(manager.get_statistics.remote())
    assert before.keys() >= SPEC_KEYS
    assert (before['is_ready'], before['sync_group_initialized'], before['last_sync_time']) == (False, False, 0.0)
    assert ask(manager.register_workers.remote([actor], rollouts))
    assert ask(manager.get_statistics.remote())['is_ready'] is True
    for value in (10.0, 11.0):
        ask(actor.update.remote(value))
        assert ask(manager.sync_parameters.remote())
    for rollout in rollouts:
        assert ask(rollout.what.remote())[-2:] == [(1, 10.0), (2, 11.0)]
    after = ask(manager.get_statistics.remote())
    assert (after['sync_count'], after['sync_failures'], after['sync_group_initialized']) == (2, 0, True)
    assert after['current_version'] == after['current_param_version'] == 2 and after['last_sync_time'] > 0
    info = ask(manager.get_weights_info.remote())
    assert [tuple(one) for one in info] == [('w', (2, 3), 'torch.float32'), ('b', (1,), 'torch.bool')]
    ask(manager.cleanup.remote())
    with pytest.raises(ray.exceptions.RayTaskError, match='cleaned up'):
        ask(manager.sync_parameters.remote())
    ask(manager.cleanup.remote())


def test_a_rollout_that_fails_counts_a_failure_and_the_others_get_theirs(manager, hired):
    actor, (broken, sound) = hired['actor'], hired['rollouts']
    ask(actor.update.remote(20.0))
    ask(manager.register_workers.remote([actor], [broken, sound]))
    ask(broken.break_down.remote(True))
    assert not ask(manager.sync_parameters.remote())
    counts = ask(manager.get_statistics.remote())
    assert (counts['sync_count'], counts['sync_failures'], counts['current_version']) == (0, 1, 0)
    assert ask(sound.what.remote())[-1] == (1, 20.0)
    ask(broken.break_down.remote(False))
    assert ask(manager.sync_parameters.remote())
    assert ask(broken.what.remote())[-1][1] == 20.0
    assert ask(manager.get_statistics.remote())['sync_count'] == 1


def test_weights_that_are_not_finite_are_not_carried(here, hired):
    actor, rollouts = hired['actor'], hired['rollouts']
    had = ask(rollouts[0].what.remote())
    ask(actor.update.remote(float('nan')))
    here.register_workers([actor], rollouts)
    assert not here.sync_parameters()
    assert ask(rollouts[0].what.remote()) == had
    ask(actor.update.remote(0.0))


def test_workers_may_have_the_names_of_torch(here, hired):
    assert here.sync_weights([hired['module']], [hired['module']])
    assert ask(hired['module'].state_dict.remote())['w'].tolist() == [[5.0] * 3] * 2


def test_a_rollout_that_is_dead_counts_a_failure(here, hired):
    dead = ray.remote(Rollout).options(num_cpus=0).remote()
    ray.kill(dead)
    assert not here.sync_weights([hired['actor']], [dead])
    assert here.get_statistics()['sync_failures'] == 1


def test_workers_that_cannot_be_synced_are_refused(here, hired):
    with pytest.raises(ConfigError, match='rollout_workers must have load_weights'):
        here.register_workers([hired['actor']], [hired['actor']])


def test_a_worker_that_is_given_with_every_sync_is_known_again(hired):
    manager = ray.remote(Watched).options(num_cpus=0).remote(ONE_TRY)
    try:
        for _ in range(3):
            assert ask(manager.sync_weights.remote([hired['actor']], [hired['rollouts'][0]]))
        assert ask(manager.count_targets.remote()) == 1
    finally:
        ray.kill(manager)
