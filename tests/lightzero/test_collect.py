"""Every segment is handed on under the version that played it."""
import pytest
from lzero.mcts.buffer.game_segment import GameSegment
from real_parts import compiled, learner_policy, make_collector, snapshot_of

from lzero_async.lightzero.replay.buffer_memory import array_bytes

COLLECTS = 10


@pytest.fixture
def played(monkeypatch):
    """id of a segment -> the versions of its steps, as they are played. Segments are kept, so that ids stay unique."""
    now, versions, kept = [0], {}, []
    append = GameSegment.append

    def noted(self, *args, **kwargs):
        kept.append(self)
        versions.setdefault(id(self), []).append(now[0])
        return append(self, *args, **kwargs)

    monkeypatch.setattr(GameSegment, 'append', noted)
    return now, versions


def test_pieces_are_under_the_version_that_played_them(tmp_path, played):
    now, versions = played
    cfg = compiled(tmp_path)
    policy = learner_policy(cfg)
    collector = make_collector(cfg, policy)
    late = 0
    try:
        for version in range(1, COLLECTS):
            now[0] = version
            collected = collector.collect(snapshot_of(policy, version), lambda: True)
            assert len({piece.policy_version for piece in collected.pieces}) == len(collected.pieces)
            for piece in collected.pieces:
                segments, facts = piece.segments
                assert len(segments) == len(facts) > 0
                assert piece.transitions == sum(min(len(segment), cfg.policy.game_segment_length)
                                                for segment in segments)
                assert piece.nbytes == sum(map(array_bytes, segments)) > 0
                for segment in segments:
                    assert set(versions[id(segment)]) == {piece.policy_version}
                late += piece.policy_version < version
    finally:
        collector.close()
    assert late  # else this test shows nothing
