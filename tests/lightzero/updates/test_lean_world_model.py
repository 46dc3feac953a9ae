"""The lean world model gives the numbers of LightZero's own, to the last bit."""
import copy

import numpy as np
import pytest
import torch
from lzero.mcts import UniZeroGameBuffer
from real_parts import compiled, learner_policy, real_segments

from lzero_async.lightzero.replay.vector_targets import VectorTargetsBuffer
from lzero_async.lightzero.updates.lean_world_model import first_positions, use_lean_training

UPDATES = 4


class Material:
    """A config, a buffer of real segments, and policies that all begin with the same weights."""

    def __init__(self, folder, rotary):
        self.cfg = compiled(folder)
        self.cfg.policy.model.world_model_cfg.rotary_emb = rotary
        self.segments = real_segments(self.cfg, batches=6)
        self.buffer = self.filled(UniZeroGameBuffer)
        self._policies = {lean: learner_policy(self.cfg) for lean in (False, True)}
        use_lean_training(self._policies[True])
        policy = self._policies[False]
        for model in (policy._learn_model, policy._target_model):
            scramble(model, 0, 0.1)  # else the heads are all zeros, and so is much of what is to be compared
        self.state = copy.deepcopy(policy.learn_mode.state_dict())

    def filled(self, kind):
        buffer = kind(self.cfg.policy)
        for batch in self.segments:
            buffer.push_game_segments(batch)
        return buffer

    def policy(self, lean=False):
        """As it was in the beginning. There is one of each kind, since making one takes its time."""
        policy = self._policies[lean]
        policy.learn_mode.load_state_dict(copy.deepcopy(self.state))
        policy._optimizer_world_model.zero_grad()
        return policy

    def sampled(self, policy, seed, buffer=None):
        np.random.seed(seed)
        return (buffer or self.buffer).sample(self.cfg.policy.batch_size, policy)


def scramble(model, seed, size=1.0):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn_like(parameter))


@pytest.fixture(scope='module', params=[True, False], ids=['rotary', 'learned positions'])
def material(tmp_path_factory, request):
    return Material(tmp_path_factory.mktemp('lean'), request.param)


def learn(policy, batch, train_iter):
    torch.manual_seed(1000 + train_iter)  # dropout draws from it
    return policy._forward_learn([*copy.deepcopy(batch), train_iter])


def bits(tensors):
    return {name: tensor.detach().numpy().tobytes() for name, tensor in tensors}


def gradients(policy):
    named = policy._learn_model.named_parameters()
    return bits((name, parameter.grad) for name, parameter in named if parameter.grad is not None)


def weights(model):
    return bits(model.state_dict().items())


def loss_inputs(material):
    """What LightZero's learner hands to compute_loss, for a batch that was sampled with seed 5."""
    policy, given = material.policy(), []
    world_model = policy._learn_model.world_model
    original = world_model.compute_loss
    world_model.compute_loss = lambda *args: (given.append(args), original(*args))[1]
    try:
        learn(policy, material.sampled(policy, 5), 0)
    finally:
        del world_model.compute_loss
    return given[0]


def loss_of(world_model, inputs):
    torch.manual_seed(7)
    return world_model.compute_loss(*inputs).loss_total


def plain(model):
    return getattr(model, '_orig_mod', model)


# -------------------------------------------------------------------- updates


def test_updates_are_identical(material):
    stock, lean = material.policy(), material.policy(lean=True)
    assert weights(stock._learn_model) == weights(lean._learn_model)
    for update in range(UPDATES):
        batch = material.sampled(stock, update)
        told, lean_told = learn(stock, batch, update), learn(lean, batch, update)
        assert told['weighted_total_loss'] > 0
        assert repr(lean_told) == repr(told)
        assert gradients(lean) == gradients(stock)
        assert weights(lean._learn_model) == weights(stock._learn_model)
        assert weights(lean._target_model) == weights(stock._target_model)
    moved = weights(stock._target_model)
    begun = bits(material.state['target_model'].items())
    assert any(moved[name] != begun[name] for name in moved), 'the target never moved: the test shows nothing about it'


def test_the_samples_begin_at_different_steps(material):
    """Else the positions of the transformer would not be tested."""
    policy = material.policy()
    firsts = [first_positions(material.sampled(policy, seed)[0][-1]) for seed in range(UPDATES)]
    assert all(len(set(positions)) > 3 for positions in firsts)


def test_the_names_and_the_checkpoint_stay(material):
    stock, lean = material.policy(), material.policy(lean=True)
    before, after = stock.learn_mode.state_dict(), lean.learn_mode.state_dict()
    assert before.keys() == after.keys()
    assert list(before['model']) == list(after['model'])
    assert list(before['target_model']) == list(after['target_model'])
    lean.learn_mode.load_state_dict(before)


def test_a_checkpoint_is_learned_from(material):
    """Weights that are loaded after the policy was made lean are those it learns from, and its target follows."""
    stock, lean = material.policy(), material.policy(lean=True)
    learn(stock, material.sampled(stock, 3), 0)
    lean.learn_mode.load_state_dict(copy.deepcopy(stock.learn_mode.state_dict()))
    batch = material.sampled(stock, 4)
    for policy in (stock, lean):
        learn(policy, batch, 1)
    assert weights(lean._learn_model) == weights(stock._learn_model)
    assert weights(lean._target_model) == weights(stock._target_model)


# -------------------------------------------------------------------- the target


def test_soft_updates_are_identical(material):
    stock, lean = material.policy(), material.policy(lean=True)
    for update in range(20):
        for policy in (stock, lean):
            scramble(policy._learn_model, update)
            policy._target_model.update(policy._learn_model.state_dict())
        assert weights(lean._target_model) == weights(stock._target_model)
    assert weights(lean._target_model) != weights(lean._learn_model)


def test_a_target_does_not_share_its_weights_with_the_learner(material):
    lean = material.policy(lean=True)
    lean._target_model.update(lean._learn_model.state_dict())
    before = weights(lean._target_model)
    scramble(lean._learn_model, 1)
    assert weights(lean._target_model) == before


def test_a_direct_update_takes_all_of_what_is_given(material):
    lean, other = material.policy(lean=True), material.policy()
    scramble(other._learn_model, 1)
    lean._target_model.update(other._learn_model.state_dict(), direct=True)
    assert weights(lean._target_model) == weights(other._learn_model)


def test_a_target_that_is_assigned_now_and_then_is_left_to_the_host(material):
    policy = learner_policy(material.cfg)
    policy._target_model._update_type, policy._target_model._update_kwargs = 'assign', {'freq': 2}
    use_lean_training(policy)
    scramble(policy._learn_model, 1)
    for follows in (False, True):
        policy._target_model.update(policy._learn_model.state_dict())
        assert (weights(policy._target_model) == weights(policy._learn_model)) is follows


# -------------------------------------------------------------------- copies


def test_a_copy_works_on_its_own_parameters(material):
    inputs, lean = loss_inputs(material), material.policy(lean=True)
    original = plain(lean._learn_model)
    made = copy.deepcopy(original)
    before = loss_of(original.world_model, inputs)
    assert torch.equal(loss_of(made.world_model, inputs), before)

    scramble(lean._learn_model, 1)
    alone = loss_of(made.world_model, inputs)
    assert torch.equal(alone, before)  # though the original has changed
    assert not torch.equal(loss_of(original.world_model, inputs), before)

    alone.backward()
    assert all(parameter.grad is None for parameter in original.parameters())
    assert any(parameter.grad is not None for parameter in made.parameters())
    scramble(made, 2)
    assert not torch.equal(loss_of(made.world_model, inputs), before)


def test_a_copy_of_a_copy_gives_the_loss_of_the_host(material):
    inputs = loss_inputs(material)
    lean = material.policy(lean=True)
    made = copy.deepcopy(copy.deepcopy(plain(lean._learn_model).train()))
    expected = loss_of(material.policy()._learn_model.world_model, inputs)
    assert torch.equal(loss_of(made.world_model, inputs), expected)


# -------------------------------------------------------------------- beside training


@pytest.mark.parametrize('kind', [UniZeroGameBuffer, VectorTargetsBuffer])
def test_batches_for_a_lean_target_are_identical(material, kind):
    stock, lean = material.policy(), material.policy(lean=True)
    for update in range(2):
        batch = material.sampled(stock, update)
        for policy in (stock, lean):
            learn(policy, batch, update)
        expected = material.sampled(stock, 10 + update)[1]
        assert expected[1].any()
        got = material.sampled(lean, 10 + update, material.filled(kind))[1]
        assert [target.tobytes() for target in got] == [target.tobytes() for target in expected]


def test_searching_with_a_lean_model_is_identical(material):
    def searched(lean):
        policy = material.policy(lean)
        model, outputs = plain(policy._learn_model).eval(), []
        observations = torch.from_numpy(material.sampled(policy, 3)[0][0][:3, :4]).float()
        with torch.no_grad():
            first = model.initial_inference(observations, [-1, -1, -1], observations, [0, 3, 7])
            outputs += [first.value, first.policy_logits, first.latent_state]
        return [np.asarray(output).tobytes() for output in outputs]

    assert searched(lean=True) == searched(lean=False)


@pytest.mark.parametrize('timesteps, first', [
    ([[3, 4, 5], [0, 1, 2]], [3, 0]),
    (torch.tensor([[3, 4], [9, 10]]), [3, 9]),
    (np.array([[[3], [4]], [[9], [10]]]), [3, 9]),
    (torch.tensor([[3], [0]]), [3, 0]),
])
def test_the_first_position_of_each_sequence(timesteps, first):
    got = first_positions(timesteps)
    assert got == first
    assert all(type(position) is int for position in got)
