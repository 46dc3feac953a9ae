"""The ages of drawn samples are heard, and hearing changes nothing that is drawn."""
from types import SimpleNamespace

import numpy as np
from fakes import FakeClock
from lzero.mcts import UniZeroGameBuffer
from real_parts import compiled, real_segments

from lzero_async.core.protocols import SampleAges
from lzero_async.core.segments import Stamp
from lzero_async.lightzero.replay.replay_ages import ReplayAges, stamp_segment
from lzero_async.lightzero.updates.training_signals import RoundSignals


def test_ages_of_a_round():
    segments = [SimpleNamespace() for _ in range(3)]
    stamp_segment(segments[0], Stamp(10, 1, 100.0))
    stamp_segment(segments[1], Stamp(40, 4, 103.0))
    buffer = SimpleNamespace(_sample_orig_data=lambda size: (segments[:size], 'rest'))
    ages = ReplayAges(buffer, FakeClock(110.0))
    ages.begin_round(6)
    assert ages.of_round() is None
    assert buffer._sample_orig_data(3) == (segments, 'rest')
    buffer._sample_orig_data(1)
    # staleness 5, 2 and 5, ages 10, 7 and 10; the third segment's weights are not known
    assert ages.of_round() == SampleAges(3, staleness_mean=4.0, staleness_max=5, age_mean=9.0, age_max=10.0)
    ages.begin_round(7)
    assert ages.of_round() is None


def test_the_same_samples_are_drawn(tmp_path):
    cfg = compiled(tmp_path)
    batches = real_segments(cfg, 4)

    def drawn(listening):
        buffer = UniZeroGameBuffer(cfg.policy)
        for segments in batches:
            buffer.push_game_segments(segments)
        if listening:
            ReplayAges(buffer)
        np.random.seed(3)
        _, positions, indices, weights, _ = buffer._sample_orig_data(16)
        return positions, indices.tolist(), weights.tolist(), np.random.rand()

    assert drawn(True) == drawn(False)


def test_signals_are_means_over_the_round():
    signals = RoundSignals()
    signals.add({'weighted_total_loss': 2.0, 'value_loss': 1.0, 'orig_policy_loss': 0.9, 'target_policy_entropy': 0.4})
    signals.add({'weighted_total_loss': 4.0, 'value_loss': 3.0, 'orig_policy_loss': 1.1, 'target_policy_entropy': 0.4})
    taken = signals.take()
    assert (taken.loss, taken.value_error) == (3.0, 2.0)
    assert abs(taken.policy_divergence - 0.6) < 1e-9
    signals.add({'policy_loss': 1.0})
    assert signals.take().__dict__ == {'loss': None, 'value_error': None, 'policy_divergence': None}
