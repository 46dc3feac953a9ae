"""Positions behaves as the list of pairs that it stands in for."""
import bisect
import random

import numpy as np
import pytest

from lzero_async.lightzero.replay.positions import Positions


@pytest.mark.parametrize('seed', range(10))
def test_it_is_the_list(seed):
    draw, positions, pairs = random.Random(seed), Positions(), []
    for number in range(200):
        new = [(number, position) for position in range(draw.randint(0, 20))]
        pairs += new
        if draw.random() < 0.5:
            positions += new
        else:
            positions.extend(number, len(new))
        if draw.random() < 0.3:
            gone = draw.randint(0, 40)
            del positions[:gone]
            del pairs[:gone]
        assert len(positions) == len(pairs) and bool(positions) == bool(pairs)
    assert positions == pairs and positions[:] == pairs and list(positions) == pairs
    for place in (0, 3, -1, len(pairs) - 1):
        assert positions[place] == pairs[place]
    assert positions[5:-3:2] == pairs[5:-3:2]
    middle = (pairs[len(pairs) // 2][0], 0)
    assert bisect.bisect_left(positions, middle) == bisect.bisect_left(pairs, middle)
    places = np.random.RandomState(seed).randint(0, len(pairs), 50)
    numbers, found = positions.find(places)
    assert list(zip(numbers.tolist(), found.tolist())) == [pairs[place] for place in places]
    assert Positions(pairs) == positions and Positions(pairs[1:]) != positions


def test_past_the_end():
    positions = Positions([(0, 0), (0, 1)])
    with pytest.raises(IndexError):
        positions[2]


def test_only_the_oldest_can_be_forgotten():
    with pytest.raises(ValueError, match='only the oldest'):
        del Positions([(0, 0), (0, 1)])[1:]


def test_runs_without_samples_are_forgotten():
    positions = Positions()
    for number in range(100):
        positions.extend(number, 3)
        del positions[:len(positions) - 4]
    assert len(positions._numbers) == 2
    del positions[:]
    assert positions == [] and len(positions._numbers) == 0
