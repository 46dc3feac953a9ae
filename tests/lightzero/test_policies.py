"""Weights out of the learner and into a role's policy: copied whole, loaded whole, caches forgotten."""
import copy

import pytest
import torch
from real_parts import compiled, learner_policy

from lzero_async.lightzero.policies import RolePolicy, export_learner_state
from lzero_async.torch_weights import TorchWeights


@pytest.fixture
def policy(tmp_path):
    return learner_policy(compiled(tmp_path))


def export_weights(module):
    return TorchWeights().read(module)


def change(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5)


def test_a_snapshot_does_not_follow_later_updates(policy):
    weights = export_weights(policy._learn_model)
    state = export_learner_state(policy, 3, 40)
    before = copy.deepcopy((weights, state))
    change(policy._learn_model)
    for left, right in zip(before[0].values(), weights.values()):
        assert torch.equal(left, right)
    for left, right in zip(before[1]['model'].values(), state['model'].values()):
        assert torch.equal(left, right)
    assert (state['last_iter'], state['last_step']) == (3, 40)


@pytest.mark.parametrize('field', ['collect', 'eval'])
def test_names_are_those_of_the_plain_module(policy, field):
    role = RolePolicy.beside(policy, field, 'cpu', accelerate=False)
    assert export_weights(policy._learn_model).keys() == role.policy._model.state_dict().keys()


@pytest.mark.parametrize('accelerate', [True, False])
def test_load_takes_every_weight_and_clears_the_caches(policy, accelerate):
    role = RolePolicy.beside(policy, 'collect', 'cpu', accelerate)
    change(policy._learn_model)
    world_model = role.policy._model.world_model
    world_model.past_kv_cache_recurrent_infer['key'] = 1
    world_model.past_kv_cache_init_infer_envs[0]['key'] = 1
    weights = export_weights(policy._learn_model)
    role.load_weights(weights, 7)
    for name, tensor in role.policy._model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    assert not world_model.past_kv_cache_recurrent_infer
    assert not any(world_model.past_kv_cache_init_infer_envs)


def test_weights_that_do_not_fit_leave_the_policy_as_it_was(policy):
    role = RolePolicy.beside(policy, 'collect', 'cpu', accelerate=False)
    before = copy.deepcopy(role.policy._model.state_dict())
    change(policy._learn_model)
    weights = export_weights(policy._learn_model)
    last = list(weights)[-1]
    weights[last] = torch.zeros(3, 3, 3)
    with pytest.raises(ValueError, match=last):
        role.load_weights(weights, 7)
    for name, tensor in role.policy._model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_roles_do_not_share_tensors_with_the_learner(policy):
    role = RolePolicy.beside(policy, 'collect', 'cpu', accelerate=True)
    before = copy.deepcopy(role.policy._model.state_dict())
    change(policy._learn_model)
    for name, tensor in role.policy._model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_checkpoint_state_loads_in_the_host(policy, tmp_path):
    from lzero_async.lightzero.checkpoint import save_checkpoint

    path = save_checkpoint(export_learner_state(policy, 3, 40), str(tmp_path), 'ckpt_best.pth.tar')
    other = learner_policy(compiled(tmp_path))
    other.learn_mode.load_state_dict(torch.load(path))
    for name, tensor in policy._learn_model.state_dict().items():
        assert torch.equal(tensor, other._learn_model.state_dict()[name])
    assert [entry.name for entry in (tmp_path / 'ckpt').iterdir()] == ['ckpt_best.pth.tar']
