"""Old segments are searched anew: which, in which order, and what changes in them."""
import copy
import types

import numpy as np
import pytest
from fakes import FakeClock
from lzero.mcts.buffer.game_segment import GameSegment
from real_parts import compiled, learner_policy, real_segments

from lzero_async.checkpoints.trees import from_bytes, to_bytes
from lzero_async.core.segments import Stamp
from lzero_async.lightzero.families import family_of
from lzero_async.lightzero.replay.buffer_journal import BufferJournal
from lzero_async.lightzero.replay.reanalyze import BackgroundReanalyze
from lzero_async.lightzero.replay.replay_ages import STAMP, stamp_segment

CFG = types.SimpleNamespace(reanalyze_partition=0.5, num_unroll_steps=5, game_segment_length=10)


class Segment:
    """As many steps as it says, played by the weights of `version`, if that is known."""

    def __init__(self, version=0, steps=10):
        self.steps = steps
        self.reanalyze_time = 0
        if version is not None:
            stamp_segment(self, Stamp(version, 0, 0.0))

    def __len__(self):
        return self.steps


class Buffer:
    """Remembers what it was told to reanalyze: the number of the segment and the position in it."""

    def __init__(self, *segments):
        self.base_idx = 0
        self.game_segment_buffer = list(segments)
        self.told = []
        self.clock = FakeClock()

    def reanalyze_sequence(self, place, position, policy):
        assert 0 <= place < len(self.game_segment_buffer)
        self.told.append((self.base_idx + place, position))
        self.clock.advance(2)

    def throw_away(self, count):
        del self.game_segment_buffer[:count]
        self.base_idx += count

    def take_told(self):
        told, self.told = self.told, []
        return told


def make(buffer, **cfg):
    return BackgroundReanalyze(types.SimpleNamespace(**{**vars(CFG), **cfg}), 'policy', buffer, buffer.clock)


def all_of(background, version):
    """Go on until there is no more to do; how many slices that took."""
    slices = 0
    while background.slice(version):
        slices += 1
        assert slices < 1000, 'there is no end to it'
    return slices


# -------------------------------------------------------------------- which, and in which order


def test_the_older_part_once_for_each_version():
    buffer = Buffer(*(Segment() for _ in range(6)))
    background = make(buffer)
    for version in (1, 2, 7):
        assert all_of(background, version) == 6
        assert buffer.take_told() == [(0, 0), (0, 5), (1, 0), (1, 5), (2, 0), (2, 5)]
        assert not background.slice(version), 'it would be searched with the same weights again'
    assert background.numbers() == {'background_reanalyzed_segments': 9, 'background_reanalyze_time': 2.0 * 18}
    assert [segment.reanalyze_time for segment in buffer.game_segment_buffer] == [3, 3, 3, 0, 0, 0]


@pytest.mark.parametrize('steps, positions', [(1, [0]), (5, [0]), (6, [0, 5]), (10, [0, 5]), (14, [0, 5])])
def test_every_step_of_a_segment_and_not_what_it_is_padded_with(steps, positions):
    buffer = Buffer(Segment(steps=steps), Segment())
    all_of(make(buffer), 1)
    assert buffer.told == [(0, position) for position in positions]


def test_what_was_reanalyzed_least_often_comes_first():
    buffer = Buffer(*(Segment() for _ in range(8)))
    for segment, times in zip(buffer.game_segment_buffer, (1, 0, 2, 0)):
        segment.reanalyze_time = times
    all_of(make(buffer), 1)
    assert [number for number, position in buffer.told if position == 0] == [1, 3, 0, 2]


def test_segments_that_these_weights_have_played_have_nothing_to_gain():
    buffer = Buffer(Segment(3), Segment(4), Segment(5), Segment(None), *(Segment(5) for _ in range(4)))
    all_of(make(buffer), 4)
    assert {number for number, _ in buffer.told} == {0, 3}


@pytest.mark.parametrize('segments', [0, 1])
def test_too_few_segments(segments):
    assert not make(Buffer(*(Segment() for _ in range(segments)))).slice(1)


def test_segments_that_become_older_meanwhile():
    buffer = Buffer(*(Segment() for _ in range(4)))
    background = make(buffer)
    all_of(background, 1)
    buffer.game_segment_buffer += [Segment(), Segment()]  # admitted, and paid for in advance
    buffer.take_told()
    all_of(background, 1)
    assert buffer.told == [(2, 0), (2, 5)]


def test_a_segment_that_is_begun_is_finished_with_the_next_version():
    buffer = Buffer(*(Segment() for _ in range(6)))
    background = make(buffer)
    for version in range(1, 9):  # time for one slice only between two rounds
        assert background.slice(version)
    assert buffer.told == [(0, 0), (0, 5), (1, 0), (1, 5), (2, 0), (2, 5), (0, 0), (0, 5)]
    assert background.slice(9)
    buffer.take_told()
    all_of(background, 10)
    assert buffer.told == [(1, 5), (2, 0), (2, 5), (0, 0), (0, 5)], 'the one that was begun has had its turn'


def test_a_segment_that_was_thrown_away_is_left():
    buffer = Buffer(*(Segment() for _ in range(6)))
    background = make(buffer)
    background.slice(1)
    buffer.throw_away(2)
    all_of(background, 1)
    assert buffer.told == [(0, 0), (2, 0), (2, 5), (3, 0), (3, 5)]
    assert background.numbers()['background_reanalyzed_segments'] == 2


@pytest.mark.parametrize('slices', range(7))
def test_one_that_is_restored_goes_on_where_the_first_was(slices):
    def told(stop_after):
        buffer = Buffer(*(Segment() for _ in range(6)))
        background = make(buffer)
        for _ in range(stop_after):
            background.slice(1)
        other = make(buffer)
        other.restore(from_bytes(to_bytes(background.state())))
        all_of(other, 1)
        return buffer.told, other.numbers()

    assert told(slices) == told(0)


# -------------------------------------------------------------------- with LightZero's own parts


@pytest.fixture(scope='module')
def material(tmp_path_factory):
    cfg = compiled(tmp_path_factory.mktemp('reanalyze'), reanalyze_partition=0.75)
    return cfg, learner_policy(cfg), real_segments(cfg, batches=8)


def filled(material, accelerate=True, size=10 ** 6):
    cfg, _, batches = material
    buffer = family_of('unizero').make_buffer(cfg.policy, serial=False, accelerate=accelerate)
    buffer.replay_buffer_size = size
    journal = BufferJournal(buffer, lambda: plain(cfg))
    for segments, facts in copy.deepcopy(batches):
        for segment in segments:
            stamp_segment(segment, Stamp(0, 0, 0.0))
        buffer.push_game_segments((segments, facts))
        buffer.remove_oldest_data_to_fit()
    return buffer, journal


def plain(cfg):
    return GameSegment(None, game_segment_length=cfg.policy.game_segment_length, config=cfg.policy)


def targets(buffer):
    return [segment.child_visit_segment.copy() for segment in buffer.game_segment_buffer]


def changed_rows(before, after):
    """The places of the segments that differ, with the positions in them."""
    found = {}
    for place, (one, other) in enumerate(zip(before, after)):
        rows = np.flatnonzero((one != other).any(axis=1)).tolist()
        if rows:
            found[place] = rows
    return found


@pytest.mark.parametrize('accelerate', [True, False])
@pytest.mark.parametrize('size', [10 ** 6, 120], ids=['not full', 'full'])
def test_one_sequence_gets_new_targets_and_nothing_else_changes(material, accelerate, size):
    cfg, policy, _ = material
    buffer, _ = filled(material, accelerate, size)
    assert (buffer.base_idx > 0) == (size == 120)
    place = max(range(len(buffer.game_segment_buffer)), key=lambda one: len(buffer.game_segment_buffer[one]))
    segment, steps = buffer.game_segment_buffer[place], cfg.policy.num_unroll_steps
    before, values = targets(buffer), segment.root_value_segment.copy()
    for _ in range(5):  # a search may come to what it came to before
        buffer.reanalyze_sequence(place, steps, policy)
    (changed,) = changed_rows(before, targets(buffer)).items()
    assert changed[0] == place and set(changed[1]) <= set(range(steps, 2 * steps + 1))
    assert np.allclose(segment.child_visit_segment.sum(axis=1), 1.0)
    assert np.array_equal(segment.root_value_segment, values)


def test_lightzeros_own_draw_is_as_before(material):
    _, policy, _ = material
    buffer, _ = filled(material)
    buffer.reanalyze_sequence(0, 0, policy)
    times = [segment.reanalyze_time for segment in buffer.game_segment_buffer]
    buffer.reanalyze_buffer(8, policy)
    # Two sequences to a segment of ten steps.
    assert sum(segment.reanalyze_time for segment in buffer.game_segment_buffer) == sum(times) + 4


def test_a_search_that_fails_leaves_the_draw_as_it_was(material, monkeypatch):
    _, policy, _ = material
    buffer, _ = filled(material)
    monkeypatch.setattr(type(buffer), '_compute_target_policy_reanalyzed', None)
    with pytest.raises(TypeError):
        buffer.reanalyze_sequence(0, 0, policy)
    assert buffer._chosen is None


def test_the_whole_older_part_of_a_real_buffer(material):
    cfg, policy, _ = material
    buffer, _ = filled(material, size=120)
    before = targets(buffer)
    older = int(len(before) * 0.75)
    background = BackgroundReanalyze(cfg.policy, policy, buffer)
    all_of(background, 1)
    assert background.numbers()['background_reanalyzed_segments'] == older > 3
    changed = changed_rows(before, targets(buffer))
    assert changed and max(changed) < older
    assert [segment.reanalyze_time for segment in buffer.game_segment_buffer] == (
        older * [1] + (len(before) - older) * [0]
    )


def test_what_was_reanalyzed_is_on_the_next_page_of_the_journal_and_nothing_else(material):
    cfg, policy, _ = material
    buffer, journal = filled(material, size=120)
    pages = [journal.page()]
    journal.written(pages[0])
    pages[0] = from_bytes(to_bytes(pages[0].tree()))
    background = BackgroundReanalyze(cfg.policy, policy, buffer)
    for _ in range(3):
        background.slice(1)
    pages.append(journal.page())
    assert len(pages[1].numbers) == len(set(pages[1].numbers)) <= 3
    pages[1] = from_bytes(to_bytes(pages[1].tree()))
    other = family_of('unizero').make_buffer(cfg.policy, serial=False, accelerate=True)
    BufferJournal(other, lambda: plain(cfg)).restore(journal.state(), pages)
    for one, restored in zip(buffer.game_segment_buffer, other.game_segment_buffer):
        for name, value in vars(one).items():
            if name not in (STAMP, 'action_space'):
                assert np.array_equal(value, getattr(restored, name)), name
    again = BackgroundReanalyze(cfg.policy, policy, other)
    again.restore(background.state())
    assert all_of(again, 1) == all_of(background, 1)
