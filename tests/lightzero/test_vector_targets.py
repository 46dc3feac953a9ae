"""VectorTargetsBuffer gives the batches of UniZeroGameBuffer: same values, same types, same random draws."""
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from real_parts import compiled, learner_policy, real_segments

from lzero_async.lightzero.vector_targets import VectorTargetsBuffer, n_step_targets


@pytest.fixture(scope='module')
def filled(tmp_path_factory):
    """A stock and a vector buffer with the same real segments, and a policy to sample for."""
    from lzero.mcts import UniZeroGameBuffer

    cfg = compiled(tmp_path_factory.mktemp('vector'))
    segments = real_segments(cfg, batches=6)
    buffers = []
    for kind in (UniZeroGameBuffer, VectorTargetsBuffer):
        buffer = kind(cfg.policy)
        for batch in segments:
            buffer.push_game_segments(batch)
        buffers.append(buffer)
    return cfg, learner_policy(cfg), buffers


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
