"""WeightedDraw draws what np.random.choice draws, and leaves the same random numbers behind."""
import numpy as np
import pytest

from lzero_async.lightzero.replay.priorities import Priorities, WeightedDraw


def outcome(draw):
    try:
        return draw().tolist(), np.random.get_state()[1].tolist(), np.random.get_state()[2]
    except ValueError as error:
        return str(error)


def assert_same_draws(probabilities, size, seed, draws=3, all_equal=False):
    weighted = WeightedDraw(probabilities, all_equal)
    before = probabilities.copy()
    np.random.seed(seed)
    expected = [
        outcome(lambda: np.random.choice(len(probabilities), size, p=probabilities, replace=False))
        for _ in range(draws)
    ]
    np.random.seed(seed)
    assert [outcome(lambda: weighted.draw(len(probabilities), size)) for _ in range(draws)] == expected
    assert probabilities.tobytes() == before.tobytes()
    return expected


@pytest.mark.parametrize('seed', range(60))
def test_draws_are_those_of_numpy(seed):
    draw = np.random.RandomState(seed)
    count = int(draw.choice([3, 17, 300, 5000]))
    kind = seed % 3
    numbers = np.ones(count) if kind == 0 else draw.rand(count) ** (1 if kind == 1 else 8)
    if kind == 2:
        numbers[draw.rand(count) < 0.2] = 0
    size = min(int(draw.randint(1, 257)), np.count_nonzero(numbers))
    assert_same_draws(numbers / numbers.sum(), size, seed)


@pytest.mark.parametrize('seed', range(20))
@pytest.mark.parametrize('count', [1, 2, 63, 1000, 300_000])
def test_draws_among_equals_are_those_of_numpy(count, seed):
    weights = np.ones(count) ** 0.6 + 1e-6
    assert_same_draws(weights / weights.sum(), min(count, 256), seed, all_equal=True)


def test_where_nearly_all_are_drawn():
    assert_same_draws(np.full(64, 1 / 64), 64, 3)


@pytest.mark.parametrize('numbers, size', [
    ([0.5, 0.5, 0.0], 3), ([1.5, -0.5], 1), ([np.nan, 1.0], 1), ([np.inf, 1.0], 1), ([0.5, 0.5], 3),
])
def test_what_numpy_refuses_is_refused(numbers, size):
    expected = assert_same_draws(np.array(numbers), size, 0, draws=1)
    assert isinstance(expected[0], str)


def test_more_probabilities_than_samples_are_refused():
    with pytest.raises(ValueError, match='must have same size'):
        WeightedDraw(np.full(4, 0.25)).draw(3, 1)


@pytest.mark.parametrize('count', [1, 7, 129, 8193, 100_003])
def test_equal_priorities_have_the_probabilities_of_the_host(count):
    priorities = Priorities()
    priorities.append(np.random.RandomState(0).rand(count))
    priorities.all_become_one()
    expected = np.ones(count) ** 0.6 + 1e-6
    expected /= expected.sum()
    assert priorities.weighted_draw(0.6).probabilities.tobytes() == expected.tobytes()


def test_a_draw_is_kept_until_a_priority_may_have_changed():
    priorities = Priorities()
    priorities.append(np.array([0.5, 2.0]))
    first = priorities.weighted_draw(0.6)
    assert priorities.weighted_draw(0.6) is first and priorities.highest() == 2.0
    priorities.handed_out()[0] = 3.0
    assert priorities.highest() == 3.0 and priorities.weighted_draw(0.6) is not first
    priorities.append(np.array([4.0, 0.0]))
    assert priorities.highest() == 4.0
    priorities.assign(priorities.handed_out()[3:])
    assert priorities.highest() == 0.0 and len(priorities.weighted_draw(0.6).probabilities) == 1
    priorities.all_become_one()
    assert priorities.handed_out().tolist() == [1.0]
