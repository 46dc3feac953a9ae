"""Buffers that are full and go on: what LightZero's own get wrong, and ours do not."""
import numpy as np
import pytest
from lzero.mcts import SampledUniZeroGameBuffer, UniZeroGameBuffer
from real_parts import compiled, real_segments

from lzero_async.lightzero.families import family_of
from lzero_async.lightzero.replay.sound_buffers import SoundReanalyze, SoundRemoval, sound
from lzero_async.lightzero.replay.vector_targets import VectorTargetsBuffer


@pytest.fixture(scope='module')
def material(tmp_path_factory):
    cfg = compiled(tmp_path_factory.mktemp('sound'))
    return cfg, real_segments(cfg, batches=12)


def filled(buffer_class, material, times=3):
    cfg, batches = material
    buffer = buffer_class(cfg.policy)
    buffer.replay_buffer_size = 150
    for _ in range(times):
        for batch in batches:
            buffer.push_game_segments(batch)
            buffer.remove_oldest_data_to_fit()
    assert buffer.base_idx > len(buffer.game_segment_buffer), 'the buffer was never full: the test shows nothing'
    return buffer


def samples_of(buffer):
    length = buffer._cfg.game_segment_length
    return [
        (buffer.base_idx + place, position)
        for place, segment in enumerate(buffer.game_segment_buffer)
        for position in range(min(len(segment), length))
    ]


@pytest.mark.parametrize('host_class', [UniZeroGameBuffer, VectorTargetsBuffer, SampledUniZeroGameBuffer])
def test_every_segment_that_is_kept_keeps_its_samples(material, host_class):
    buffer = filled(sound(host_class, also_removal=True), material)
    assert buffer.game_segment_game_pos_look_up == samples_of(buffer)
    assert len(buffer.game_pos_priorities) == buffer.get_num_of_transitions() <= 150


def test_lightzeros_own_keeps_segments_without_samples(material):
    """If this fails, the host is mended and SoundRemoval can go."""
    buffer = filled(UniZeroGameBuffer, material)
    assert len(buffer.game_segment_game_pos_look_up) < len(samples_of(buffer))


def test_a_full_buffer_stays_under_its_limit(material):
    buffer = filled(sound(UniZeroGameBuffer, also_removal=True), material)
    kept = len(buffer.game_segment_buffer)
    longer = filled(sound(UniZeroGameBuffer, also_removal=True), material, times=12)
    assert len(longer.game_segment_buffer) <= kept + 12 and len(samples_of(longer)) <= 150


@pytest.mark.parametrize('also_removal', [True, False])
def test_reanalyzes_what_it_draws(material, monkeypatch, also_removal):
    buffer = filled(sound(UniZeroGameBuffer, also_removal), material)
    base = buffer.base_idx
    drawn = []
    choice = np.random.choice

    def noted(*args, **kwargs):
        drawn.append(choice(*args, **kwargs))
        return drawn[-1]

    monkeypatch.setattr(np.random, 'choice', noted)
    segments, positions, places, _, _ = buffer._sample_orig_reanalyze_batch(4)
    assert buffer.base_idx == base
    assert set(places) <= {int(place) for one in drawn for place in np.atleast_1d(one)}
    for segment, place, position in zip(segments, places, positions):
        assert segment is buffer.game_segment_buffer[place] and position < len(segment)


def test_lightzeros_own_cannot_reanalyze_a_full_buffer(material):
    """If this fails, the host is mended and SoundReanalyze can go."""
    buffer = filled(UniZeroGameBuffer, material)
    buffer.base_idx += 10 ** 6
    with pytest.raises(IndexError):
        buffer._sample_orig_reanalyze_batch(4)


def test_serial_runs_sample_as_lightzero_does(material):
    cfg, _ = material
    serial = family_of('unizero').make_buffer(cfg.policy, serial=True, accelerate=True)
    beside = family_of('unizero').make_buffer(cfg.policy, serial=False, accelerate=True)
    assert isinstance(serial, SoundReanalyze) and not isinstance(serial, (SoundRemoval, VectorTargetsBuffer))
    assert isinstance(beside, SoundRemoval) and isinstance(beside, VectorTargetsBuffer)
    assert type(serial)._remove is UniZeroGameBuffer._remove
