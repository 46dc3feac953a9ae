"""VectorTargetsBuffer gives the batches of UniZeroGameBuffer: same values, same types, same random draws."""
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lzero.mcts import UniZeroGameBuffer
from made_segments import push_made
from made_segments import settings as settings_of
from real_parts import compiled, learner_policy, real_segments

from lzero_async.lightzero.replay.sound_buffers import sound
from lzero_async.lightzero.replay.vector_targets import ValueContext, VectorTargetsBuffer, n_step_targets


@pytest.fixture(scope='module', params=[16, 64], ids=['16 wide', '64 wide'])
def filled(tmp_path_factory, request):
    """A stock and a vector buffer with the same real segments, and a policy to sample for.

    Models that are narrower than 32 know no exact kernels.
    """
    cfg = compiled(tmp_path_factory.mktemp('vector'))
    cfg.policy.model.world_model_cfg.embed_dim = request.param
    segments = real_segments(cfg, batches=6)
    buffers = []
    for kind in (UniZeroGameBuffer, VectorTargetsBuffer):
        buffer = kind(cfg.policy)
        for batch in segments:
            buffer.push_game_segments(batch)
        buffers.append(buffer)
    policy = learner_policy(cfg)
    torch.manual_seed(0)
    with torch.no_grad():  # the heads are all zeros at first, and with them all values
        for parameter in policy._target_model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return cfg, policy, buffers


def sampled(buffer, policy, seed):
    np.random.seed(seed)
    torch.manual_seed(seed)
    current, target = buffer.sample(16, policy)
    return current, target, np.random.get_state()[1].tolist()


@pytest.mark.parametrize('seed', range(25))
def test_batches_are_identical(filled, seed):
    _, policy, (stock, vector) = filled
    expected, got = sampled(stock, policy, seed), sampled(vector, policy, seed)
    make_time = 6  # the clock's reading, the one thing that two calls cannot share
    for index, (left, right) in enumerate(zip(expected[0] + expected[1], got[0] + got[1])):
        if index != make_time:
            assert left.dtype == right.dtype, index
            assert left.tobytes() == right.tobytes(), index
    assert expected[2] == got[2]


@pytest.mark.parametrize('change', [{'td_steps': 1}, {'td_steps': 12}, {'num_unroll_steps': 9}])
def test_other_horizons(filled, change):
    cfg, _, (stock, vector) = filled
    before = {key: cfg.policy[key] for key in change}
    for buffer in (stock, vector):
        buffer._cfg.update(change)
    try:
        test_batches_are_identical(filled, 3)
    finally:
        for buffer in (stock, vector):
            buffer._cfg.update(before)


# -------------------------------------------------------------------- segments made by hand


def pair(config):
    """The host's buffer and ours. Neither forgets other samples than those of old segments."""
    return [sound(kind, also_removal=True)(config) for kind in (UniZeroGameBuffer, VectorTargetsBuffer)]


def assert_same_batches(buffers, policy, seeds=range(3)):
    for seed in seeds:
        expected, got = (sampled(buffer, policy, seed) for buffer in buffers)
        for index, (left, right) in enumerate(zip(expected[0] + expected[1], got[0] + got[1])):
            if index != 6:
                assert (left.dtype, left.shape) == (right.dtype, right.shape), index
                assert left.tobytes() == right.tobytes(), index
        assert expected[2] == got[2]


@pytest.mark.parametrize('change', [
    {}, {'use_priority': True}, {'reanalyze_outdated': True}, {'td_steps': 1}, {'td_steps': 12},
    {'num_unroll_steps': 9}, {'sample_type': 'episode'}, {'use_priority': True, 'priority_prob_alpha': 0.3},
], ids=str)
@pytest.mark.parametrize('seed', range(3))
def test_unequal_segments_in_a_buffer_that_is_full(filled, seed, change):
    cfg, policy, _ = filled
    config = settings_of(cfg, replay_buffer_size=260, **change)
    draw, buffers = np.random.RandomState(seed), pair(config)
    episodes = {'steps': config.game_segment_length} if 'sample_type' in change else {}
    for count in (20, *[8] * 6):
        push_made(buffers, config, draw, count, **episodes)
        assert_same_batches(buffers, policy, seeds=range(2))
    assert buffers[1].base_idx > 0 and buffers[0].base_idx == buffers[1].base_idx
    assert buffers[1].game_segment_game_pos_look_up == buffers[0].game_segment_game_pos_look_up
    assert buffers[1].game_pos_priorities.tobytes() == buffers[0].game_pos_priorities.tobytes()


@pytest.mark.parametrize('kind', [
    {'rewards': 'f4'}, {'rewards': 'i8'}, {'steps': 1}, {'steps': 2},
], ids=str)
def test_other_types_and_lengths(filled, kind):
    cfg, policy, _ = filled
    config = settings_of(cfg)
    buffers = pair(config)
    push_made(buffers, config, np.random.RandomState(1), 40, **kind)
    assert_same_batches(buffers, policy)


def test_segments_that_were_reanalyzed(filled):
    cfg, policy, _ = filled
    config = settings_of(cfg, reanalyze_partition=0.75)
    buffers = pair(config)
    push_made(buffers, config, np.random.RandomState(1), 30)
    for buffer in buffers:
        np.random.seed(5)
        for segment in buffer._sample_orig_reanalyze_batch(8)[0]:
            segment.child_visit_segment[:] = np.random.dirichlet([1.0, 1.0], len(segment.child_visit_segment))
    assert_same_batches(buffers, policy)


def test_priorities_that_change_between_two_batches(filled):
    cfg, policy, _ = filled
    config = settings_of(cfg, use_priority=True)
    buffers = pair(config)
    push_made(buffers, config, np.random.RandomState(1), 30)
    for turn in range(4):
        assert_same_batches(buffers, policy, seeds=[turn])
        places = np.random.RandomState(turn).choice(buffers[0].get_num_of_transitions(), 20, replace=False)
        for buffer in buffers:
            buffer.update_priority([[places, None, np.full(20, buffer.clear_time + 1)]], np.linspace(0.1, 9, 20))


def test_segments_without_priorities_get_the_highest(filled):
    cfg, _, _ = filled
    config = settings_of(cfg, use_priority=True)
    buffers, draw = pair(config), np.random.RandomState(1)
    for told in (True, False, True, False, False):
        config.use_priority = told
        push_made(buffers, config, draw, 3)
        assert buffers[1].game_pos_priorities.tobytes() == buffers[0].game_pos_priorities.tobytes()


@pytest.mark.parametrize('frames', [1, 4])
@pytest.mark.parametrize('observations', ['f4', 'f8', 'u1'])
def test_pictures(filled, frames, observations):
    """All but the network, which is the host's own for pictures, too."""
    cfg, _, _ = filled
    config = settings_of(cfg, model={
        'observation_shape': (3 * frames, 6, 6), 'image_channel': 3, 'frame_stack_num': frames, 'model_type': 'conv',
    })
    buffers = pair(config)
    push_made(buffers, config, np.random.RandomState(1), 40, shape=(3, 6, 6), observations=observations)
    made = []
    for buffer in buffers:
        np.random.seed(3)
        made.append(buffer._make_batch(16, 0))
    (host, _, _, expected), (ours, _, _, got) = made
    assert isinstance(ours, ValueContext)
    for index in (0, 1, 2, 3, 4, 5, 7):
        assert expected[index].dtype == got[index].dtype and expected[index].tobytes() == got[index].tobytes(), index
    asked_for = np.array(host[0]).reshape(16, -1, frames, 3, 6, 6)[:, :-1]
    assert asked_for.dtype == ours.observations.dtype and asked_for.tobytes() == ours.observations.tobytes()
    assert np.array(host[1]).tolist() == ours.inside.reshape(-1).tolist()


@pytest.mark.parametrize('spoil', [
    lambda segment: setattr(segment, 'action_segment', segment.action_segment.astype(float)),
    lambda segment: setattr(segment, 'reward_segment', segment.reward_segment[:, None]),
    lambda segment: setattr(segment, 'action_space_size', 1),
])
def test_what_is_not_covered_is_made_by_the_host_of_the_same_samples(filled, spoil):
    cfg, _, _ = filled
    config = settings_of(cfg)
    buffers, heard = pair(config), []
    push_made(buffers, config, np.random.RandomState(1), 40)
    for buffer in buffers:
        for segment in buffer.game_segment_buffer[::2]:
            spoil(segment)
    draw = buffers[1]._sample_orig_data
    buffers[1]._sample_orig_data = lambda size: (heard.append(size), draw(size))[1]
    made = []
    for buffer in buffers:
        np.random.seed(3)
        made.append((buffer._make_batch(16, 0)[3], np.random.rand()))
    (expected, after), (got, ours_after) = made
    assert heard == [16] and after == ours_after
    for index in (0, 1, 2, 3, 4, 5, 7):
        assert expected[index].dtype == got[index].dtype and expected[index].tobytes() == got[index].tobytes(), index


# -------------------------------------------------------------------- sums


def looped_targets(values, rewards, starts, td_steps, steps, discount):
    """The sums as a plain loop."""
    target_rewards, target_values, index = [], [], 0
    for reward, start in zip(rewards, starts):
        for position in range(start, start + steps):
            value = float(values[index])
            for ahead in range(td_steps[index]):
                if position + ahead < len(reward):
                    value += reward[position + ahead] * discount ** ahead
            target_values.append(value)
            target_rewards.append(reward[position] if position < len(reward) else 0.0)
            index += 1
    return np.array(target_rewards), np.array(target_values)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), count=st.integers(1, 6), steps=st.integers(1, 8), discount=st.floats(0.5, 1.0))
def test_n_step_targets_equal_a_loop(data, count, steps, discount):
    draw = np.random.RandomState(data.draw(st.integers(0, 2 ** 31)))
    rewards = [draw.randn(draw.randint(1, 15)).astype(data.draw(st.sampled_from(['f4', 'f8']))) for _ in range(count)]
    starts = np.array([draw.randint(0, len(reward)) for reward in rewards])
    td_steps = np.repeat(draw.randint(1, 7, count).astype(np.int32), steps)
    values = draw.randn(count * steps)
    expected = looped_targets(values, [reward.astype('f8') for reward in rewards], starts, td_steps, steps, discount)
    got = n_step_targets(values.copy(), rewards, starts, td_steps, steps, discount)
    assert got[1].reshape(-1).tobytes() == expected[1].tobytes()
    assert np.array_equal(got[0].reshape(-1), expected[0])
