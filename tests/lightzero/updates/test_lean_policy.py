"""A policy with lean updates learns what LightZero's own learns from the same batches, up to rounding."""
import copy
import logging
import os
import types

import numpy as np
import pytest
import torch
from ding.config import compile_config
from ding.worker import BaseLearner
from lzero.mcts import UniZeroGameBuffer
from native_libraries import without_kernels
from real_parts import compiled, learner_policy, real_segments
from small_configs import zoo_config
from tensorboardX import SummaryWriter

from lzero_async.lightzero.learner_state import capture_policy, restore_policy
from lzero_async.lightzero.native import kernels
from lzero_async.lightzero.then import Then
from lzero_async.lightzero.updates import lean_loss, lean_update, native_heads, native_transformer
from lzero_async.lightzero.updates.guarded_updates import GuardedUpdates
from lzero_async.lightzero.updates.lean_loss import LeanLoss
from lzero_async.lightzero.updates.lean_policy import use_lean_updates
from lzero_async.lightzero.updates.lean_update import LeanUpdate
from lzero_async.lightzero.updates.native_steps import NativeAdamW

UPDATES = 200
LOSSES = (
    'weighted_total_loss', 'obs_loss', 'reward_loss', 'value_loss', 'policy_loss', 'orig_policy_loss', 'policy_entropy',
)


class Material:
    def __init__(self, cfg, batches=6):
        self.cfg = cfg
        self.buffer = UniZeroGameBuffer(cfg.policy)
        for batch in real_segments(cfg, batches):
            self.buffer.push_game_segments(batch)

    def pair(self):
        """LightZero's own policy and a lean one, with the same weights; none of them zero, as some are at first."""
        stock, lean = learner_policy(self.cfg), learner_policy(self.cfg)
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in stock._learn_model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        stock._target_model.update(stock._learn_model.state_dict(), direct=True)
        lean.learn_mode.load_state_dict(copy.deepcopy(stock.learn_mode.state_dict()))
        use_lean_updates(lean)
        return stock, lean

    def batch(self, policy, seed):
        np.random.seed(seed)
        return self.buffer.sample(self.cfg.policy.batch_size, policy)


@pytest.fixture(scope='module', autouse=True)
def one_thread():
    """Beside other work the threads of one operation mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope='module', params=[True, False], ids=['rotary', 'learned positions'])
def material(tmp_path_factory, request):
    cfg = compiled(tmp_path_factory.mktemp('lean_updates'))
    # So wide that there are native kernels for all of it, see `test_all_kernels_are_used`.
    cfg.policy.model.world_model_cfg.update(rotary_emb=request.param, embed_dim=32)
    return Material(cfg)


@pytest.fixture(scope='module')
def small(tmp_path_factory):
    return Material(compiled(tmp_path_factory.mktemp('small')))


@pytest.fixture(params=['native', 'torch'])
def way(request):
    """How updates are made: by the kernels, or by torch as where there are none."""
    if request.param == 'native':
        if kernels() is None:
            pytest.skip('there are no kernels here')
        yield request.param
    else:
        with without_kernels():
            yield request.param


def learn(policy, batch, train_iter):
    torch.manual_seed(1000 + train_iter)  # dropout draws from it
    told = policy.learn_mode.forward([*copy.deepcopy(batch), train_iter])
    return told, torch.get_rng_state()


def plain(model):
    return getattr(model, '_orig_mod', model)


def apart(one, other):
    """The largest difference between the parameters of two models, but for those that change no result.

    Such are a bias before batch norm and, without rotations, that of the keys: their gradients are rounding alone, of
    which AdamW makes steps as large as any.
    """
    without = ['fc_representation.0.bias']
    if not other.world_model.config.rotary_emb:
        without.append('attn.key.bias')
    others = dict(other.named_parameters())
    return max(
        float((parameter - others[name]).abs().max()) for name, parameter in one.named_parameters()
        if not name.endswith(tuple(without))
    )


# -------------------------------------------------------------------- equal


def test_many_updates_are_those_of_lightzero(material):
    assert_many_updates_are_those_of_lightzero(material)


def test_many_updates_without_kernels_are_those_of_lightzero(small):
    with without_kernels():
        assert_many_updates_are_those_of_lightzero(small)


def assert_many_updates_are_those_of_lightzero(material):
    stock, lean = material.pair()
    assert isinstance(lean._forward_learn, LeanUpdate)
    assert isinstance(lean._learn_model.world_model.compute_loss, LeanLoss)
    begun = copy.deepcopy(plain(stock._learn_model))
    for update in range(UPDATES):
        batch = material.batch(stock, update)
        (told, drawn), (lean_told, lean_drawn) = learn(stock, batch, update), learn(lean, batch, update)
        assert torch.equal(drawn, lean_drawn)
        assert lean_told.keys() == told.keys()
        for name, value in told.items():
            # Measured over all updates: 3e-7 for the total loss, 8e-6 for the smallest of its parts, 6e-5 for the rest.
            loose = 5e-5 if name in LOSSES else 5e-4
            assert lean_told[name] == pytest.approx(value, rel=loose, abs=1e-7), (update, name)
    assert apart(begun, plain(stock._learn_model)) > 0.01, 'nothing was learned'
    assert apart(plain(lean._learn_model), plain(stock._learn_model)) < 1e-5  # measured: 4e-7
    assert apart(plain(lean._target_model._model), plain(stock._target_model._model)) < 1e-5


def test_all_kernels_are_used(material, way, monkeypatch):
    _, lean = material.pair()
    used = []

    def watch(module, name):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: (used.append(name), original(*args))[1])

    watch(native_transformer, 'transform')
    watch(native_heads, 'cross_entropy')
    watch(native_heads, 'divergence')
    learn(lean, material.batch(lean, 0), 0)
    assert sorted(used) == ([*3 * ['cross_entropy'], 'divergence', 'transform'] if way == 'native' else [])
    assert isinstance(lean._optimizer_world_model, NativeAdamW) == (way == 'native')


def test_gradients_are_those_of_lightzero(material):
    stock, lean = material.pair()
    batch = material.batch(stock, 0)
    learn(stock, batch, 0)
    learn(lean, batch, 0)
    ours = dict(lean._learn_model.named_parameters())
    for name, parameter in stock._learn_model.named_parameters():
        assert (ours[name].grad is None) == (parameter.grad is None), name
        if parameter.grad is not None:
            torch.testing.assert_close(ours[name].grad, parameter.grad, rtol=1e-3, atol=1e-6, msg=name)


def test_statistics_of_batch_norm_are_those_of_lightzero(material):
    stock, lean = material.pair()
    batch = material.batch(stock, 0)
    learn(stock, batch, 0)
    learn(lean, batch, 0)
    for one, other in ((lean._learn_model, stock._learn_model), (lean._target_model, stock._target_model)):
        ours = dict(one.named_buffers())
        running = [name for name, _ in other.named_buffers() if 'running' in name]
        assert running
        for name, buffer in other.named_buffers():
            torch.testing.assert_close(ours[name], buffer, msg=name)


def test_cartpole_as_it_is_configured(tmp_path):
    main, create = zoo_config('cartpole_unizero_segment_async_config')
    main.exp_name, main.policy.device = os.path.relpath(tmp_path / 'run'), 'cpu'
    main.policy.num_simulations = 2  # of the search that collects
    cfg = compile_config(main, seed=0, env=None, auto=True, create_cfg=create, save_cfg=False)
    material = Material(cfg, batches=3)
    stock, lean = material.pair()
    for update in range(5):
        batch = material.batch(stock, update)
        told, lean_told = learn(stock, batch, update)[0], learn(lean, batch, update)[0]
        for name, value in told.items():
            assert lean_told[name] == pytest.approx(value, rel=1e-5 if name in LOSSES else 1e-4, abs=1e-7), name
    assert apart(plain(lean._learn_model), plain(stock._learn_model)) < 1e-5


@pytest.mark.parametrize('shape', ['whole', 'cut', 'with holes'])
def test_padding_counts_nowhere(small, shape):
    stock, lean = small.pair()
    batch = small.batch(stock, 0)
    mask = batch[0][3]
    mask[:] = 1
    if shape != 'whole':
        mask[:, 2:-1] = np.random.RandomState(0).rand(*mask[:, 2:-1].shape) < 0.5
    if shape == 'cut':
        mask[:] = np.minimum.accumulate(mask, axis=1)
    told, lean_told = learn(stock, batch, 0)[0], learn(lean, batch, 0)[0]
    for name in told if shape != 'with holes' else LOSSES:  # no buffer makes holes; the analysis would count otherwise
        assert lean_told[name] == pytest.approx(told[name], rel=1e-4, abs=1e-6, nan_ok=True), name
    assert apart(plain(lean._learn_model), plain(stock._learn_model)) < 1e-5


def test_gradients_are_accumulated(small):
    stock, lean = small.pair()
    for policy in (stock, lean):
        policy.accumulation_steps = 2
    for update in range(4):
        batch = small.batch(stock, update)
        told, lean_told = learn(stock, batch, update)[0], learn(lean, batch, update)[0]
        assert lean_told['total_grad_norm_before_clip_wm'] == pytest.approx(
            told['total_grad_norm_before_clip_wm'], rel=1e-4
        )
        assert (told['total_grad_norm_before_clip_wm'] > 0) == (update % 2 == 1)
    assert apart(plain(lean._learn_model), plain(stock._learn_model)) < 1e-5


# -------------------------------------------------------------------- beside the other parts of a learner


def test_lightzeros_learner_trains_with_it(small, tmp_path):
    _, lean = small.pair()
    learner = BaseLearner(
        small.cfg.policy.learn.learner, lean.learn_mode, SummaryWriter(str(tmp_path)),
        exp_name=os.path.relpath(tmp_path / 'exp'),
    )
    before = copy.deepcopy(lean._learn_model.state_dict())
    told = learner.train([*small.batch(lean, 0), 0], 0)
    assert set(lean._monitor_vars_learn()) & set(told[0])
    assert any(not torch.equal(before[name], value) for name, value in lean._learn_model.state_dict().items())


def test_it_may_come_before_and_after_what_looks_at_the_loss(small):
    policy, seen = learner_policy(small.cfg), []
    world_model = policy._learn_model.world_model
    world_model.compute_loss = Then(world_model.compute_loss, lambda losses: seen.append('first'))
    world_model.compute_loss = Then(world_model.compute_loss, lambda losses: seen.append('second'))
    use_lean_updates(policy)
    world_model.compute_loss = Then(world_model.compute_loss, lambda losses: seen.append('third'))
    learn(policy, small.batch(policy, 0), 0)
    assert seen == ['first', 'second', 'third']
    assert isinstance(copy.deepcopy(world_model).compute_loss, LeanLoss)


def test_a_bad_update_is_left_out(small, tmp_path):
    _, lean = small.pair()
    guard = GuardedUpdates(lean, str(tmp_path))
    batch = small.batch(lean, 0)
    before = copy.deepcopy(lean._learn_model.state_dict())
    batch[0][0][0, 0] = np.nan
    assert guard.update([*batch, 0], lean.learn_mode.forward) is None
    assert all(torch.equal(before[name], value) for name, value in lean._learn_model.state_dict().items())
    assert guard.update([*small.batch(lean, 1), 0], lean.learn_mode.forward) is not None


def test_without_a_guard_a_loss_that_is_not_finite_fails(small):
    _, lean = small.pair()
    batch = small.batch(lean, 0)
    batch[0][0][0, 0] = np.nan
    with pytest.raises(AssertionError, match='the loss is nan'):
        learn(lean, batch, 0)


def test_models_that_were_switched_to_evaluation_train_again(small):
    _, lean = small.pair()
    batch = small.batch(lean, 0)
    lean._learn_model.eval()
    lean._target_model.eval()
    learn(lean, batch, 0)
    assert all(module.training for module in lean._learn_model.world_model.modules())
    assert all(module.training for module in lean._target_model.world_model.modules())


# -------------------------------------------------------------------- saved and loaded


def test_a_checkpoint_looks_like_lightzeros(small, way):
    stock, lean = small.pair()
    for policy in (stock, lean):
        learn(policy, small.batch(stock, 0), 0)
    expected, got = stock.learn_mode.state_dict(), lean.learn_mode.state_dict()
    assert got['optimizer_world_model']['param_groups'] == expected['optimizer_world_model']['param_groups']
    for index, state in expected['optimizer_world_model']['state'].items():
        ours = got['optimizer_world_model']['state'][index]
        assert [(name, value.dtype, value.shape) for name, value in ours.items()] == [
            (name, value.dtype, value.shape) for name, value in state.items()
        ]


@pytest.mark.parametrize('of_lean', [False, True])
def test_it_goes_on_from_a_checkpoint(small, of_lean, way):
    stock, lean = small.pair()
    source, other = (lean, stock) if of_lean else (stock, lean)
    learn(source, small.batch(stock, 0), 0)
    restore_policy(other, copy.deepcopy(capture_policy(source)))
    kind, fused = (NativeAdamW, None) if way == 'native' else (torch.optim.AdamW, True)
    assert type(lean._optimizer_world_model) is kind
    assert lean._optimizer_world_model.param_groups[0]['fused'] is fused
    batch = small.batch(stock, 1)
    told, lean_told = learn(stock, batch, 1)[0], learn(lean, batch, 1)[0]
    assert lean_told['weighted_total_loss'] == pytest.approx(told['weighted_total_loss'], rel=1e-5)
    assert apart(plain(lean._learn_model), plain(stock._learn_model)) < 1e-5


# -------------------------------------------------------------------- what is left to LightZero


@pytest.mark.parametrize('setting', ['continuous_action_space', 'analysis_dormant_ratio', 'gru_gating'])
def test_a_loss_that_is_not_known_is_lightzeros(small, setting, caplog):
    policy = learner_policy(small.cfg)
    policy._learn_model.world_model.config = copy.deepcopy(policy._learn_model.world_model.config)
    policy._learn_model.world_model.config[setting] = True
    with caplog.at_level(logging.INFO):
        use_lean_updates(policy)
    assert not isinstance(policy._learn_model.world_model.compute_loss, LeanLoss)
    assert f'the loss is computed by LightZero: {setting}' in caplog.text


def test_a_world_model_of_the_users_own_is_left_to_it(small):
    world_model = learner_policy(small.cfg)._learn_model.world_model
    assert lean_loss.why_not(world_model) is None
    hook = world_model.transformer.ln_f.register_forward_hook(lambda *_: None)
    assert 'hooks' in lean_loss.why_not(world_model)
    hook.remove()
    assert lean_loss.why_not(world_model) is None
    world_model.compute_loss = lambda *args: None
    assert 'of the user' in lean_loss.why_not(world_model)
    del world_model.compute_loss
    world_model.__class__ = type('Own', (type(world_model),), {})
    assert lean_loss.why_not(world_model) == 'Own in the place of WorldModel'


@pytest.mark.parametrize('setting', ['use_augmentation', 'use_wandb', 'analysis_sim_norm'])
def test_an_update_that_is_not_known_is_lightzeros(small, setting):
    policy = learner_policy(small.cfg)
    policy._cfg = copy.deepcopy(policy._cfg)
    policy._cfg[setting] = True
    use_lean_updates(policy)
    assert not isinstance(policy._forward_learn, LeanUpdate)
    assert isinstance(policy._learn_model.world_model.compute_loss, LeanLoss)


def test_a_policy_of_the_users_own_makes_its_updates_itself(small):
    policy = learner_policy(small.cfg)
    policy.__class__ = type('Own', (type(policy),), {'_forward_learn': lambda self, data: {}})
    assert lean_update.why_not(policy) == '_forward_learn of Own'


def test_lightzeros_update_works_with_the_lean_loss(small):
    stock, lean = small.pair()
    batch = small.batch(stock, 0)
    del lean._forward_learn
    told, lean_told = learn(stock, batch, 0)[0], learn(lean, batch, 0)[0]
    assert lean_told['weighted_total_loss'] == pytest.approx(told['weighted_total_loss'], rel=1e-5)


def test_an_optimizer_that_torch_cannot_fuse_stays_as_it_is(small):
    policy = learner_policy(small.cfg)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2, device='meta'))])
    policy._optimizer_world_model = optimizer
    use_lean_updates(policy)
    assert not optimizer.param_groups[0]['fused']


# -------------------------------------------------------------------- to a GPU


def test_a_batch_goes_to_a_gpu_from_pinned_memory_without_a_wait(monkeypatch):
    calls = []
    pinned = types.SimpleNamespace(to=lambda device, non_blocking: calls.append((device, non_blocking)) or 'there')
    monkeypatch.setattr(torch, 'from_numpy', lambda array: types.SimpleNamespace(pin_memory=lambda: pinned))
    assert lean_update.on_device(np.zeros(2), 'cuda:1') == 'there'
    assert calls == [('cuda:1', True)]


def test_on_a_cpu_a_batch_is_not_copied():
    array = np.zeros(2)
    assert lean_update.on_device(array, 'cpu').data_ptr() == array.ctypes.data
