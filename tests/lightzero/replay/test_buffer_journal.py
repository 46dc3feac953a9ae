"""The pages of a journal give the buffer back, whatever happened to it."""
import copy
import random

import numpy as np
import pytest
from lzero.mcts import UniZeroGameBuffer
from lzero.mcts.buffer.game_segment import GameSegment
from real_parts import compiled

from lzero_async.checkpoints.errors import StateDamaged
from lzero_async.checkpoints.trees import from_bytes, to_bytes
from lzero_async.core.segments import Stamp
from lzero_async.lightzero.replay.buffer_journal import BufferJournal
from lzero_async.lightzero.replay.replay_ages import STAMP, stamp_segment


@pytest.fixture(scope='module')
def cfg(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp('journal'))


class World:
    """A buffer with a journal, and the pages that were written of it."""

    def __init__(self, cfg, seed=0, **policy):
        self.cfg = copy.deepcopy(cfg.policy)
        self.cfg.update(policy)
        self.random = random.Random(seed)
        self.numpy = np.random.RandomState(seed)
        self.buffer, self.journal = self.make()
        self.pages = []
        self.now = 100.0

    def make(self):
        buffer = UniZeroGameBuffer(self.cfg)
        return buffer, BufferJournal(buffer, self.plain, clock=lambda: self.now)

    def plain(self):
        return GameSegment(None, self.cfg.game_segment_length, self.cfg)

    def push(self, count=3):
        segments, facts = [], []
        for _ in range(count):
            segment = self.plain()
            full = self.random.random() < 0.7
            steps = self.cfg.game_segment_length if full else self.random.randint(5, self.cfg.game_segment_length)
            padded = steps + (self.random.randint(0, 5) if full else 0)
            segment.obs_segment = self.numpy.rand(padded + 5, 4).astype(np.float32)
            segment.action_segment = self.numpy.randint(0, 2, padded)
            segment.reward_segment = self.numpy.rand(padded + 4)
            segment.child_visit_segment = self.numpy.rand(padded, 2)
            segment.root_value_segment = self.numpy.rand(padded)
            segment.action_mask_segment = np.ones((padded, 2), np.int8)
            segment.to_play_segment = np.full(padded, -1)
            segment.timestep_segment = np.arange(padded)
            segment.improved_policy_probs = np.array([])
            stamp_segment(segment, Stamp(self.random.randint(0, 50), self.random.randint(0, 9), self.now))
            segments.append(segment)
            given = self.numpy.rand(steps) if self.cfg.use_priority else None
            facts.append({'priorities': given, 'done': not full, 'unroll_plus_td_steps': 3})
        self.buffer.push_game_segments((segments, facts))
        self.buffer.remove_oldest_data_to_fit()

    def draw(self):
        if self.buffer.get_num_of_transitions() > 8:
            self.buffer._sample_orig_data(8)

    def reanalyze(self):
        if len(self.buffer.game_segment_buffer) > 4:
            for segment in self.buffer._sample_orig_reanalyze_batch(4)[0]:
                segment.child_visit_segment[0] = self.numpy.rand(2)
                segment.root_value_segment[0] = self.numpy.rand()

    def reprioritize(self):
        positions = self.buffer.get_num_of_transitions()
        chosen = self.numpy.choice(positions, min(5, positions), replace=False)
        batch = [[chosen, None, [self.buffer.clear_time + 1.0] * len(chosen)]]
        self.buffer.update_priority(batch, self.numpy.rand(len(chosen)))

    def write(self, fails=False):
        page = self.journal.page()
        content = to_bytes(page.tree())
        if fails:
            self.journal.not_written()
            return
        self.journal.written(page)
        self.pages = [
            (end, kept) for end, kept in self.pages if end > self.buffer.base_idx
        ] + [(page.end, content)]

    def restored(self):
        other = World.__new__(World)
        other.__dict__.update(self.__dict__)
        other.buffer, other.journal = other.make()
        other.now = self.now + 1000.0  # another process, another clock
        state = from_bytes(to_bytes(self.journal.state()))
        other.journal.restore(state, [from_bytes(content) for _, content in self.pages])
        return other


def assert_same(one, other, age=1000.0):
    assert other.game_segment_game_pos_look_up == one.game_segment_game_pos_look_up
    assert np.array_equal(other.game_pos_priorities, one.game_pos_priorities)
    for name in ('base_idx', 'num_of_collected_episodes', 'clear_time'):
        assert getattr(other, name) == getattr(one, name), name
    assert len(other.game_segment_buffer) == len(one.game_segment_buffer)
    for mine, theirs in zip(one.game_segment_buffer, other.game_segment_buffer):
        assert set(vars(mine)) == set(vars(theirs))
        for name, value in vars(mine).items():
            if name == STAMP:
                found = getattr(theirs, name)
                assert (found.policy_version, found.rounds_at_pull) == (value.policy_version, value.rounds_at_pull)
                assert found.pulled_at == pytest.approx(value.pulled_at + age), 'as old as it was'
            elif isinstance(value, np.ndarray):
                assert value.dtype == getattr(theirs, name).dtype and np.array_equal(value, getattr(theirs, name)), name
            else:
                assert value == getattr(theirs, name), name


@pytest.mark.parametrize('use_priority', [False, True])
@pytest.mark.parametrize('seed', range(12))
def test_whatever_happens_the_pages_give_the_buffer_back(cfg, seed, use_priority):
    world = World(cfg, seed, use_priority=use_priority, replay_buffer_size=400, reanalyze_partition=0.75)
    steps = [
        world.push, world.push, world.draw, world.reanalyze,
        lambda: world.write(fails=world.random.random() < 0.3),
    ]
    if use_priority:
        steps.append(world.reprioritize)
    world.push()
    for _ in range(60):
        world.random.choice(steps)()
    world.write()
    assert world.buffer.base_idx > 0, 'some segments have gone'
    assert_same(world.buffer, world.restored().buffer)


def test_a_restored_one_goes_on_as_the_first(cfg):
    world = World(cfg, replay_buffer_size=400)
    for _ in range(10):
        world.push()
        world.draw()
        world.write()
    other = world.restored()
    other.pages = list(world.pages)
    other.random, other.numpy = random.Random(5), np.random.RandomState(5)
    for _ in range(10):
        other.push()
        other.draw()
        other.write()
    assert_same(other.buffer, other.restored().buffer)


def test_an_empty_buffer(cfg):
    world = World(cfg)
    world.write()
    other = world.restored()
    assert len(other.buffer.game_segment_buffer) == 0
    other.push()
    assert other.buffer.get_num_of_transitions() > 0


def test_a_page_holds_what_is_new_and_nothing_else(cfg):
    world = World(cfg)
    sizes = []
    for _ in range(20):
        world.push(4)
        world.draw()
        world.write()
        sizes.append(len(world.pages[-1][1]))
    assert max(sizes[10:]) < 1.5 * max(sizes[:3])


def test_segments_that_change_after_the_page_was_taken_are_written_as_they_were_and_once_more(cfg):
    world = World(cfg, reanalyze_partition=0.75)
    world.push(6)
    page = world.journal.page()
    before = [segment.child_visit_segment.copy() for segment in world.buffer.game_segment_buffer]
    world.reanalyze()
    taken = from_bytes(to_bytes(page.tree()))['content']['columns']
    visits = next(column['values'] for column in taken if column['name'] == 'child_visit_segment')
    assert np.array_equal(visits, np.concatenate(before))
    world.pages = [(page.end, to_bytes(page.tree()))]
    world.journal.written(page)
    world.write()
    assert_same(world.buffer, world.restored().buffer)


def test_what_users_hang_on_segments_is_saved_if_it_is_plain(cfg, caplog):
    world = World(cfg)
    world.push(2)
    first, second = world.buffer.game_segment_buffer
    first.note, second.note = ['a', 1, 2.5], 'b'
    first.raw, second.raw = np.array(['x', 'yy']), np.array([[1], [1, 2]], dtype=object)
    first.thing = object()
    world.write()
    one, other = world.restored().buffer.game_segment_buffer
    assert (one.note, other.note) == (['a', 1, 2.5], 'b') and not hasattr(one, 'thing')
    assert one.raw.tolist() == ['x', 'yy'] and other.raw.tolist() == [[1], [1, 2]]
    assert 'thing of segments is not saved' in caplog.text


def test_a_page_that_is_missing_is_told_by_its_segments(cfg):
    world = World(cfg)
    for _ in range(3):
        world.push(2)
        world.write()
    del world.pages[1]
    with pytest.raises(StateDamaged, match='segments 2 to 3 of the replay buffer are on none of its pages'):
        world.restored()
