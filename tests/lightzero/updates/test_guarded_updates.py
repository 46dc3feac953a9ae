"""Updates with a loss or gradients that are not finite change nothing, and are kept to look at."""
import copy

import numpy as np
import pytest
import torch
from real_parts import compiled, learner_policy

from lzero_async.checkpoints.trees import from_bytes
from lzero_async.lightzero.updates.guarded_updates import BadUpdate, GuardedUpdates


@pytest.fixture
def guarded(tmp_path):
    policy = learner_policy(compiled(tmp_path))
    return policy, GuardedUpdates(policy, str(tmp_path / 'exp'))


def state_of(policy):
    return copy.deepcopy(policy.learn_mode.state_dict())


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def step(policy, gradient):
    """What the host does: backward, step, target update."""
    for parameter in policy._learn_model.world_model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    policy._optimizer_world_model.step()
    policy._target_model.update(policy._learn_model.state_dict())
    return ['told']


BATCH = [[np.arange(4.0), np.array([7, 3])], [np.full(2, np.nan)], 12]


@pytest.mark.parametrize('gradient', [float('nan'), float('inf')])
def test_gradients_that_are_not_finite_change_nothing(guarded, gradient, tmp_path):
    policy, guard = guarded
    assert guard.update(BATCH, lambda batch: step(policy, 0.1)) == ['told']
    before = state_of(policy)
    assert guard.update(BATCH, lambda batch: step(policy, gradient)) is None
    assert same(state_of(policy), before)
    assert (guard.bad_updates, guard.in_a_row) == (1, 1)
    assert guard.update(BATCH, lambda batch: step(policy, 0.1)) == ['told']
    assert (guard.bad_updates, guard.in_a_row) == (1, 0)
    assert not same(state_of(policy), before)


def test_the_batch_is_written_down_with_its_indices(guarded, tmp_path):
    policy, guard = guarded
    guard.update(BATCH, lambda batch: step(policy, float('nan')))
    kept = from_bytes((tmp_path / 'exp' / 'quarantine' / 'batch_000001.safetensors').read_bytes())
    assert kept['reason'] == 'its gradients are not finite'
    assert np.array_equal(kept['batch'][0][1], [7, 3]) and kept['batch'][2] == 12


def test_what_else_is_raised_is_not_its_matter(guarded):
    _, guard = guarded

    def broken(batch):
        raise RuntimeError('out of memory')

    with pytest.raises(RuntimeError, match='out of memory'):
        guard.update(BATCH, broken)
    assert guard.bad_updates == 0


def test_a_loss_that_is_not_finite(guarded, monkeypatch):
    policy, guard = guarded
    checked = policy._learn_model.world_model.compute_loss

    class Losses:
        loss_total = torch.tensor(float('nan'))

    checked._fn = lambda *args: Losses
    assert guard.update(BATCH, lambda batch: checked(batch)) is None
    with pytest.raises(BadUpdate):
        checked(BATCH)


def test_a_copy_of_the_model_is_not_guarded(guarded):
    policy, _ = guarded
    model = copy.deepcopy(policy._learn_model)
    assert type(model.world_model.compute_loss).__name__ != 'Then'
