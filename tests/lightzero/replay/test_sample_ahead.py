"""SampleAhead: batches that are made beside an update are those that would be made after it."""
import copy
import threading

import numpy as np
import pytest
import torch
from fakes import TIMEOUT, Broken, Gate
from lzero.mcts import UniZeroGameBuffer
from real_parts import compiled, learner_policy, real_segments

from lzero_async.core.segments import Piece, SegmentBatch, Stamp
from lzero_async.core.updates import UpdateAccount
from lzero_async.lightzero import random_streams
from lzero_async.lightzero.families import family_of
from lzero_async.lightzero.learn import LightZeroLearner
from lzero_async.lightzero.policies import RolePolicy
from lzero_async.lightzero.replay.sample_ahead import SampleAhead
from lzero_async.lightzero.replay.vector_targets import VectorTargetsBuffer
from lzero_async.lightzero.then import Then
from lzero_async.lightzero.updates import lean_transformer, native_transformer
from lzero_async.lightzero.updates.guarded_updates import GuardedUpdates
from lzero_async.lightzero.updates.lean_policy import use_lean_updates
from lzero_async.torch_weights import TorchWeights

BATCH = 16
SAMPLER = 'lzero-async-sampler'


class Material:
    """A config, real segments, and a policy that begins each time with the same weights."""

    def __init__(self, folder, rotary=True):
        self.cfg = compiled(folder)
        self.cfg.policy.model.world_model_cfg.rotary_emb = rotary
        self.segments = real_segments(self.cfg, batches=6)
        self._policy = learner_policy(self.cfg)
        torch.manual_seed(0)
        with torch.no_grad():  # the heads are all zeros at first, and with them all values
            for model in (self._policy._learn_model, self._policy._target_model):
                for parameter in model.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
        self._state = copy.deepcopy(self._policy.learn_mode.state_dict())

    def policy(self, theta=0.5):
        """`theta` is how far the target follows with each update. At 0.0 it stays, with the statistics of its norms."""
        policy = self._policy
        policy._target_model._update_kwargs['theta'] = theta
        for norm in policy._target_model.modules():
            if isinstance(norm, torch.nn.BatchNorm1d):  # it trains with each loss
                norm.momentum = 0.1 if theta else 0.0
        policy.learn_mode.load_state_dict(copy.deepcopy(self._state))
        return policy

    def own_policy(self):
        """One that no other test has, with the same weights."""
        policy = learner_policy(self.cfg)
        policy.learn_mode.load_state_dict(copy.deepcopy(self._state))
        return policy

    def lean_policy(self):
        policy = self.own_policy()
        use_lean_updates(policy)
        return policy

    def buffer(self, kind=VectorTargetsBuffer, batches=6):
        buffer = kind(self.cfg.policy)
        for batch in self.segments[:batches]:
            buffer.push_game_segments(batch)
        return buffer


@pytest.fixture(scope='module', params=[True, False], ids=['rotary', 'learned positions'])
def either_material(tmp_path_factory, request):
    return Material(tmp_path_factory.mktemp('ahead'), request.param)


@pytest.fixture(scope='module')
def material(tmp_path_factory):
    return Material(tmp_path_factory.mktemp('ahead'))


@pytest.fixture
def make_ahead():
    """`make_ahead(policy, buffer)`; closed at the end."""
    made = []

    def make(policy, buffer):
        made.append(SampleAhead(buffer, policy, BATCH))
        return made[-1]

    yield make
    for ahead in made:
        ahead.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(SAMPLER)]


def learn(policy, batch, train_iter=0):
    torch.manual_seed(1000 + train_iter)  # dropout draws from it
    return policy._forward_learn([*batch, train_iter])


def content(batch):
    """All of a batch but for the time at which it was made."""
    made_at = 6
    return [array.tobytes() for index, array in enumerate((*batch[0], *batch[1])) if index != made_at]


def watched(buffer):
    """Who samples, and from how many segments."""
    sample, seen = buffer.sample, []

    def watching(*args):
        seen.append((threading.current_thread().name.split('_')[0], len(buffer.game_segment_buffer)))
        return sample(*args)

    buffer.sample = watching
    return seen


def only_ahead(buffer, work):
    """Let `work()` be done before a batch is made ahead, and be told when it is made."""
    sample, made = buffer.sample, []

    def working(*args):
        if not threading.current_thread().name.startswith(SAMPLER):
            return sample(*args)
        work()
        batch = sample(*args)
        made.append('made')
        return batch

    buffer.sample = working
    return made


def fail():
    raise Broken('no such segment')


def who(seen):
    return ['ahead' if name == SAMPLER else 'directly' for name, _ in seen]


# -------------------------------------------------------------------- which batches


@pytest.mark.parametrize('kind', [UniZeroGameBuffer, VectorTargetsBuffer])
def test_while_the_target_stays_batches_made_ahead_are_those_sampled_directly(make_ahead, either_material, kind):
    def batches(sample_ahead):
        policy, buffer = either_material.policy(theta=0.0), either_material.buffer(kind)
        seen = watched(buffer)
        ahead = make_ahead(policy, buffer) if sample_ahead else None
        sampled, stream = [], np.random.RandomState(5)
        with random_streams.installed(), random_streams.drawing_from(stream):
            for update in range(4):
                batch = ahead.take(update < 3) if sample_ahead else buffer.sample(BATCH, policy)
                sampled.append(content(batch))
                learn(policy, batch, update)
        assert who(seen) == ['directly'] + 3 * ['ahead' if sample_ahead else 'directly']
        return sampled, stream.rand()

    direct, ahead = batches(False), batches(True)
    assert ahead == direct
    assert len({tuple(one) for one in direct[0]}) == 4


def test_without_a_stream_of_the_learners_own_all_draw_from_that_of_numpy(make_ahead, material):
    def batches(sample_ahead):
        policy, buffer = material.policy(theta=0.0), material.buffer()
        ahead = make_ahead(policy, buffer) if sample_ahead else None
        np.random.seed(3)
        sampled = []
        for update in range(3):
            batch = ahead.take(update < 2) if sample_ahead else buffer.sample(BATCH, policy)
            sampled.append(content(batch))
            learn(policy, batch, update)
        return sampled

    assert batches(True) == batches(False)


def test_the_copy_of_the_target_is_one_update_old(make_ahead, material):
    policy, buffer = material.policy(theta=0.5), material.buffer()
    ahead, sampled, before_the_updates = make_ahead(policy, buffer), [], []
    with random_streams.installed(), random_streams.drawing_from(np.random.RandomState(5)):
        for update in range(4):
            batch = ahead.take(update < 3)
            sampled.append(content(batch))
            before_the_updates.append(copy.deepcopy(policy._target_model.state_dict()))
            learn(policy, batch, update)

    def expected(targets):
        policy = material.policy()
        with random_streams.installed(), random_streams.drawing_from(np.random.RandomState(5)):
            first = buffer.sample(BATCH, policy)
            rest = []
            for target in targets:
                policy._target_model.load_state_dict(target)
                rest.append(content(buffer.sample(BATCH, policy)))
        return [content(first), *rest]

    assert sampled == expected(before_the_updates[:3])
    assert sampled != expected(before_the_updates[:1] * 3)  # the target has moved between the updates


def test_the_target_of_the_policy_itself_is_left_alone(make_ahead, material):
    policy, buffer = material.policy(), material.buffer()
    used = []
    sample = buffer.sample
    buffer.sample = lambda size, asked: (used.append(asked._target_model), sample(size, asked))[1]
    ahead = make_ahead(policy, buffer)
    learn(policy, ahead.take(True))
    ahead.take(False)
    assert used[0] is policy._target_model
    own = {id(tensor) for tensor in (*policy._target_model.parameters(), *policy._target_model.buffers())}
    assert not own & {id(tensor) for tensor in (*used[1].parameters(), *used[1].buffers())}


def test_the_sampler_has_the_torch_threads_of_the_learner(make_ahead, material):
    policy, buffer = material.policy(), material.buffer()
    sample, threads = buffer.sample, []
    buffer.sample = lambda *args: (threads.append(torch.get_num_threads()), sample(*args))[1]
    before = torch.get_num_threads()
    ahead = make_ahead(policy, buffer)
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            learn(policy, ahead.take(True))
            ahead.take(False)
    finally:
        torch.set_num_threads(before)
    assert threads == [1, 1, 2, 2]


# -------------------------------------------------------------------- when


def test_none_is_made_where_none_follows(make_ahead, material):
    policy, buffer = material.policy(), material.buffer()
    seen, ahead = watched(buffer), make_ahead(policy, buffer)
    for follows in (False, False, True, False, False):
        learn(policy, ahead.take(follows))
    assert who(seen) == ['directly', 'directly', 'directly', 'ahead', 'directly']


def test_a_batch_is_begun_as_soon_as_the_one_before_is_taken(make_ahead, material):
    policy, buffer = material.policy(), material.buffer()
    ahead, making = make_ahead(policy, buffer), Gate()
    made = only_ahead(buffer, making)
    seen = watched(buffer)
    ahead.take(True)
    making.await_arrival()  # nothing was trained in between
    assert made == []
    making.open()
    ahead.take(False)
    assert who(seen) == ['directly', 'ahead']


def test_what_is_dropped_is_forgotten(make_ahead, material):
    policy, buffer = material.policy(), material.buffer()
    seen, ahead = watched(buffer), make_ahead(policy, buffer)
    learn(policy, ahead.take(True))
    ahead.drop()
    ahead.take(True)
    ahead.drop()  # before anything was trained
    learn(policy, buffer.sample(BATCH, policy))
    assert ahead._next is None
    ahead.take(False)
    assert who(seen) == ['directly', 'ahead', 'directly', 'ahead', 'directly', 'directly']


def test_dropping_waits_for_what_is_being_made(make_ahead, material):
    policy, buffer = material.policy(), material.buffer()
    ahead, making = make_ahead(policy, buffer), Gate()
    order = only_ahead(buffer, making)
    learn(policy, ahead.take(True))
    making.await_arrival()
    dropping = threading.Thread(target=lambda: (ahead.drop(), order.append('dropped')))
    dropping.start()
    making.open()
    dropping.join(TIMEOUT)
    assert order == ['made', 'dropped']


def test_an_error_is_raised_to_who_takes(make_ahead, material):
    policy, buffer = material.policy(), material.buffer()
    ahead = make_ahead(policy, buffer)
    only_ahead(buffer, fail)
    learn(policy, ahead.take(True))
    with pytest.raises(Broken, match='no such segment'):
        ahead.take(False)


def test_an_error_in_what_is_dropped_is_nobodys(make_ahead, material):
    policy, buffer = material.policy(), material.buffer()
    ahead = make_ahead(policy, buffer)
    only_ahead(buffer, fail)
    learn(policy, ahead.take(True))
    ahead.drop()
    assert len(ahead.take(False)) == 2


# -------------------------------------------------------------------- when the loss tells


def test_where_the_loss_tells_a_batch_is_begun_just_before_the_transformers_pass(make_ahead, material, monkeypatch):
    policy, buffer = material.lean_policy(), material.buffer()
    seen, ahead, begun = watched(buffer), make_ahead(policy, buffer), []

    def watch(module, name):
        original = getattr(module, name)

        def watching(*args):
            begun.append((name, ahead._next is not None))
            return original(*args)

        monkeypatch.setattr(module, name, watching)

    watch(lean_transformer, '_draw')  # the last that is done before, and the first that is done then
    watch(native_transformer, 'can_be_used')
    for update in range(3):
        begun.clear()
        batch = ahead.take(True)
        assert ahead._next is None
        assert who(seen) == ['directly', *update * ['ahead']]
        learn(policy, batch, update)
        assert begun == [('_draw', False), ('can_be_used', True)]
    ahead.take(False)
    assert who(seen) == ['directly', *3 * ['ahead']]


def test_where_the_loss_tells_batches_are_made_beside_the_update(make_ahead, material):
    policy, buffer = material.lean_policy(), material.buffer()
    ahead, making = make_ahead(policy, buffer), Gate()
    made = only_ahead(buffer, making)
    learn(policy, ahead.take(True))  # to its end, while nothing is made
    making.await_arrival()
    assert made == []
    making.open()
    ahead.take(False)
    assert made == ['made']


def test_where_the_loss_tells_none_is_made_where_none_follows(make_ahead, material):
    policy, buffer = material.lean_policy(), material.buffer()
    seen, ahead = watched(buffer), make_ahead(policy, buffer)
    for follows in (False, False, True, False, False):
        learn(policy, ahead.take(follows))
        assert (ahead._next is not None) == follows
    assert who(seen) == ['directly', 'directly', 'directly', 'ahead', 'directly']


def test_where_the_loss_tells_it_is_one_batch_for_each_that_is_taken(make_ahead, material):
    policy, buffer = material.lean_policy(), material.buffer()
    seen, ahead = watched(buffer), make_ahead(policy, buffer)
    batch = ahead.take(True)
    learn(policy, batch, 0)
    begun = ahead._next
    learn(policy, batch, 1)  # an update that took none
    assert ahead._next is begun
    ahead.take(False)
    assert who(seen) == ['directly', 'ahead']


def test_what_is_dropped_before_the_loss_is_never_begun(make_ahead, material):
    policy, buffer = material.lean_policy(), material.buffer()
    seen, ahead = watched(buffer), make_ahead(policy, buffer)
    batch = ahead.take(True)
    ahead.drop()
    learn(policy, batch)
    assert ahead._next is None
    learn(policy, ahead.take(True))  # another is begun as ever
    ahead.drop()
    ahead.take(False)
    assert who(seen) == ['directly', 'directly', 'ahead', 'directly']


def test_where_the_loss_tells_batches_made_ahead_are_those_sampled_directly(make_ahead, material):
    def batches(sample_ahead):
        policy, buffer = material.own_policy(), material.buffer()
        policy._target_model._update_kwargs['theta'] = 0.0
        for norm in policy._target_model.modules():
            if isinstance(norm, torch.nn.BatchNorm1d):
                norm.momentum = 0.0
        use_lean_updates(policy)
        ahead = make_ahead(policy, buffer) if sample_ahead else None
        sampled, stream = [], np.random.RandomState(5)
        with random_streams.installed(), random_streams.drawing_from(stream):
            for update in range(4):
                batch = ahead.take(update < 3) if sample_ahead else buffer.sample(BATCH, policy)
                sampled.append(content(batch))
                learn(policy, batch, update)
        return sampled, stream.rand()

    direct, ahead = batches(False), batches(True)
    assert ahead == direct
    assert len({tuple(one) for one in direct[0]}) == 4


@pytest.mark.parametrize('order', ['guard, lean, ahead', 'lean, guard, ahead', 'lean, ahead, guard'])
def test_a_guard_may_look_at_the_loss_that_tells(make_ahead, material, tmp_path, order):
    policy, buffer, parts = material.own_policy(), material.buffer(), {}
    seen = watched(buffer)
    for part in order.split(', '):
        if part == 'guard':
            parts[part] = GuardedUpdates(policy, str(tmp_path))
        elif part == 'ahead':
            parts[part] = make_ahead(policy, buffer)
        else:
            use_lean_updates(policy)
    assert isinstance(policy._learn_model.world_model.compute_loss, Then)
    ahead, guard = parts['ahead'], parts['guard']
    for update in range(3):
        batch = ahead.take(update < 2)
        assert ahead._next is None
        assert guard.update(batch, lambda batch, update=update: learn(policy, batch, update)) is not None
        assert (ahead._next is not None) == (update < 2)
    bad = copy.deepcopy(ahead.take(True))
    bad[0][0][0, 0] = np.nan
    assert guard.update(bad, lambda batch: learn(policy, batch, 3)) is None
    ahead.take(False)  # the batch that was begun beside a bad update is a good one
    assert who(seen) == ['directly', 'ahead', 'ahead', 'directly', 'ahead']


# -------------------------------------------------------------------- beside other roles


@pytest.mark.parametrize('lean', [False, True])
def test_a_copy_of_the_model_makes_no_batches(make_ahead, material, lean):
    policy, buffer = material.own_policy(), material.buffer()
    if lean:
        use_lean_updates(policy)
    seen, ahead = watched(buffer), make_ahead(policy, buffer)
    world_model, given = policy._learn_model.world_model, []
    compute_loss = world_model.compute_loss
    world_model.compute_loss = lambda *args: (given.append(args), compute_loss(*args))[1]
    learn(policy, ahead.take(True))
    world_model.compute_loss = compute_loss

    ahead.take(lean)
    model = policy._learn_model
    made = copy.deepcopy(getattr(model, '_orig_mod', model))
    torch.manual_seed(7)
    loss = made.world_model.compute_loss(*given[0]).loss_total
    assert (who(seen), ahead._next) == (['directly', 'ahead'], None)
    loss.backward()
    assert any(parameter.grad is not None for parameter in made.parameters())
    torch.manual_seed(7)
    assert torch.equal(world_model.compute_loss(*given[0]).loss_total, loss)
    assert (ahead._next is not None) == lean  # that was the learner's own
    ahead.take(False)


def test_a_role_may_be_seated_beside_a_learner_that_samples_ahead(make_ahead, material):
    policy = material.policy()
    make_ahead(policy, material.buffer())
    role = RolePolicy.beside(policy, 'collect', 'cpu', accelerate=True)
    role.load_weights(TorchWeights().read(policy._learn_model), 3)


def test_the_copy_forgets_its_caches_at_the_end_of_a_round(make_ahead, material):
    policy, buffer = material.policy(), material.buffer()
    ahead = make_ahead(policy, buffer)
    world_model = ahead._view._target_model.world_model
    world_model.past_kv_cache_recurrent_infer['key'] = 1
    world_model.past_kv_cache_init_infer_envs[0]['key'] = 1
    ahead.round_ended()
    assert not world_model.past_kv_cache_recurrent_infer
    assert not any(world_model.past_kv_cache_init_infer_envs)


# -------------------------------------------------------------------- in the learner


class Host:
    """Stands in for BaseLearner: one update at a time, without its logs and checkpoints."""

    def __init__(self, policy):
        self._policy = policy
        self.train_iter = 0

    def train(self, batch, env_step):
        self.train_iter += 1
        return [learn(self._policy, batch[:2], batch[2])]


class Curves:
    def add_scalar(self, *_):
        pass


@pytest.fixture
def make_learner(material):
    made = []

    def make(updates, buffer=None, sample_ahead=True, background_reanalyze=False, theta=0.5, **settings):
        cfg = copy.deepcopy(material.cfg)
        cfg.policy.update({'buffer_reanalyze_freq': 0, **settings})
        policy = material.policy(theta)
        made.append(LightZeroLearner(
            cfg, policy, Host(policy), buffer or VectorTargetsBuffer(cfg.policy), Curves(),
            UpdateAccount(0.25, updates, carry_fraction=True), TorchWeights(), sample_ahead,
            background_reanalyze=background_reanalyze,
        ))
        return made[-1]

    yield make
    for learner in made:
        learner.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(SAMPLER)]


def batch_of(material, number):
    segments = material.segments[number]
    transitions = sum(len(segment) for segment in segments[0])
    return SegmentBatch((Piece(0, segments, transitions),), 1000 * (number + 1), Stamp(0, 0, 0.0), (), 0.0, number)


def admitted(learner, material, count):
    for number in range(count):
        learner.admit(batch_of(material, number))
    return learner


def test_none_is_made_across_the_end_of_a_round(make_learner, material):
    learner = admitted(make_learner(updates=3), material, 2)
    seen = watched(learner._buffer)
    first = len(learner._buffer.game_segment_buffer)
    owed = learner._account.owed
    assert learner.train_round(lambda: True).updates == owed
    assert learner._ahead._next is None
    learner.admit(batch_of(material, 3))
    second = len(learner._buffer.game_segment_buffer)
    learner.train_round(lambda: True)
    # Each round's batches come from all that the buffer holds then.
    assert [size for _, size in seen] == owed * [first] + 3 * [second]
    assert second > first
    assert who(seen) == ['directly', *(owed - 1) * ['ahead'], 'directly', 'ahead', 'ahead']


def test_none_is_made_across_the_end_of_a_round_in_advance(make_learner, material):
    learner = admitted(make_learner(updates=2), material, 2)
    learner.train_round(lambda: True)
    seen = watched(learner._buffer)
    made = learner.train_ahead(lambda: True).updates
    assert who(seen) == ['directly', *(made - 1) * ['ahead']]
    assert learner._ahead._next is None


def test_none_is_made_before_a_reanalyze(make_learner, material):
    learner = make_learner(updates=3, buffer_reanalyze_freq=2, reanalyze_batch_size=1)
    buffer = admitted(learner, material, 2)._buffer
    order, sample, reanalyze = [], buffer.sample, buffer.reanalyze_buffer

    def sampling(*args):
        order.append('ahead' if threading.current_thread().name.startswith(SAMPLER) else 'directly')
        return sample(*args)

    def reanalyzing(*args):
        assert learner._ahead._next is None
        order.append('reanalyze')
        return reanalyze(*args)

    buffer.sample, buffer.reanalyze_buffer = sampling, reanalyzing
    updates = learner._account.owed
    assert updates >= 4
    learner.train_round(lambda: True)
    interval = updates // 2
    expected = []
    for done in range(updates):
        expected += ['reanalyze', 'directly'] if done % interval == 0 else ['ahead']
    assert order == expected


@pytest.mark.parametrize('leave_after', [2, 100])
def test_none_is_made_beside_idle_work_which_owes_and_pays_nothing(make_learner, material, leave_after):
    buffer = family_of('unizero').make_buffer(material.cfg.policy, serial=False, accelerate=True)
    learner = admitted(make_learner(4, buffer, background_reanalyze=True, reanalyze_partition=0.75), material, 2)
    learner.train_round(lambda: learner.train_iter < leave_after)
    before = learner._account.state(), learner.train_iter, TorchWeights().read(learner._policy._learn_model)
    reanalyze = buffer.reanalyze_buffer

    def alone(*args):
        assert learner._ahead._next is None
        reanalyze(*args)

    buffer.reanalyze_buffer = alone
    while learner.idle_work():
        pass
    assert learner.idle_numbers()['background_reanalyzed_segments'] == int(len(buffer.game_segment_buffer) * 0.75) > 0
    assert (learner._account.state(), learner.train_iter) == before[:2]
    after = TorchWeights().read(learner._policy._learn_model)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before[2].items())


def test_a_round_that_is_left_leaves_no_batch_behind(make_learner, material):
    learner = admitted(make_learner(updates=5), material, 2)
    seen = watched(learner._buffer)
    assert learner.train_round(lambda: learner.train_iter < 2).updates == 2
    assert learner._ahead._next is None
    assert who(seen) == ['directly', 'ahead', 'ahead']
    learner.train_round(lambda: learner.train_iter < 3)
    assert who(seen)[3] == 'directly'


@pytest.mark.parametrize('settings', [{'use_priority': True}, {'sample_ahead': False}])
def test_where_batches_depend_on_the_update_before_all_are_sampled_directly(make_learner, material, settings):
    learner = admitted(make_learner(updates=3, **settings), material, 2)
    seen = watched(learner._buffer)
    learner.train_round(lambda: True)
    assert len(seen) >= 3
    assert set(who(seen)) == {'directly'}
    assert not any(thread.name.startswith(SAMPLER) for thread in threading.enumerate())


def test_a_learner_trains_the_same_ahead_or_not_while_the_target_stays(make_learner, material):
    def trained(sample_ahead):
        learner = admitted(make_learner(updates=3, sample_ahead=sample_ahead, theta=0.0), material, 2)
        with random_streams.installed(), random_streams.drawing_from(np.random.RandomState(5)):
            learner.train_round(lambda: True)
        return {name: tensor.numpy().tobytes() for name, tensor in learner._policy._learn_model.state_dict().items()}

    assert trained(True) == trained(False)
