"""The memory account agrees with walking the buffer, through pushes and removals."""
import pytest
from pympler.asizeof import asizeof
from real_parts import compiled, real_segments

from lzero_async.lightzero.replay.buffer_memory import BufferMemory


class Curves:
    def __init__(self):
        self.last = {}

    def add_scalar(self, name, value, step):
        self.last[name] = value


@pytest.fixture(scope='module')
def material(tmp_path_factory):
    cfg = compiled(tmp_path_factory.mktemp('memory'))
    return cfg, real_segments(cfg, batches=12)


def test_agrees_with_a_walk(material):
    from lzero.mcts import UniZeroGameBuffer

    cfg, batches = material
    buffer = UniZeroGameBuffer(cfg.policy)
    buffer.replay_buffer_size = 150
    curves = Curves()
    memory = BufferMemory(buffer, curves)
    assert memory.update() == 0
    removed = 0
    for batch in batches:
        buffer.push_game_segments(batch)
        buffer.remove_oldest_data_to_fit()
        memory.log(0)
        removed = buffer.base_idx
        walked = asizeof(buffer.game_segment_buffer) - asizeof(buffer.game_segment_buffer[0].action_space)
        assert memory.update() == pytest.approx(walked, rel=0.15)
        assert curves.last['Buffer/num_of_transitions'] == buffer.get_num_of_transitions()
        assert curves.last['Buffer/memory_usage/game_segment_buffer'] == memory.update() / 1024 ** 2
    assert removed > 0, 'the buffer was never full: the test shows nothing about removal'


def test_looks_at_new_segments_only(material, monkeypatch):
    from lzero.mcts import UniZeroGameBuffer

    from lzero_async.lightzero.replay import buffer_memory

    cfg, batches = material
    buffer = UniZeroGameBuffer(cfg.policy)
    memory = BufferMemory(buffer, Curves())
    looked_at = []
    measured = buffer_memory.segment_bytes
    monkeypatch.setattr(buffer_memory, 'segment_bytes', lambda one: looked_at.append(one) or measured(one))
    for batch in batches:
        looked_at.clear()
        buffer.push_game_segments(batch)
        memory.update()
        assert len(looked_at) == len(batch[0])
    looked_at.clear()
    memory.update()
    assert not looked_at


def test_more_removed_at_once_than_was_known(material):
    from lzero.mcts import UniZeroGameBuffer

    cfg, batches = material
    buffer = UniZeroGameBuffer(cfg.policy)
    memory = BufferMemory(buffer, Curves())
    buffer.push_game_segments(batches[0])
    memory.update()
    for batch in batches[1:4]:
        buffer.push_game_segments(batch)
    buffer._remove(len(batches[0][0]) + 2)
    rest = sum(map(_bytes, buffer.game_segment_buffer))
    assert memory.update() == rest


def _bytes(segment):
    from lzero_async.lightzero.replay.buffer_memory import segment_bytes

    return segment_bytes(segment)
