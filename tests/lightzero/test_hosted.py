"""What a collector that works elsewhere hands over."""
import pickle

import pytest
from real_parts import compiled

from lzero_async.core.weights import WeightSnapshot
from lzero_async.lightzero.hosted import HostedRole


class OfOldGym:
    """An action space that arrives nowhere, like that of Atari's gym with a numpy of today."""

    n = 2

    def __reduce__(self):
        return _cannot_be_made, ()


def _cannot_be_made():
    raise TypeError('takes from 0 to 1 positional arguments but 2 were given')


@pytest.fixture
def hosted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    role = HostedRole(
        cfg=compiled(tmp_path), name='collector-0', seed=0, restart=0, device='cpu', accelerate=False, threads=1,
        cores=None, model=None,
    )()
    yield role
    role.close()


def test_segments_travel_without_the_action_space_of_their_environment(hosted):
    hosted._collector._env._action_space = OfOldGym()
    told = hosted.collect(WeightSnapshot(0, 0, None), lambda: True)
    segments = [segment for piece in pickle.loads(pickle.dumps(told)).result.pieces for segment in piece.segments[0]]
    assert segments and all(len(segment) for segment in segments)
