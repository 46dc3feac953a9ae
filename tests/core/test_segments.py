import dataclasses

import pytest

from lzero_async.core.segments import Collected, SegmentBatch

BATCH = SegmentBatch(
    Collected(segments=[1], transitions=1, env_step=1), policy_version=40, rounds_at_pull=4, pulled_at=100.0,
    collected_at=102.5,
)


@pytest.mark.parametrize('train_count, staleness', [(4, 0), (5, 1), (9, 5)])
def test_staleness_is_the_rounds_finished_since_the_pull(train_count, staleness):
    assert BATCH.staleness(train_count) == staleness


def test_age_is_the_time_since_the_pull():
    assert BATCH.age(103.0) == 3.0


@pytest.mark.parametrize('value, name', [(BATCH, 'policy_version'), (BATCH.collected, 'env_step')])
def test_what_crosses_threads_is_frozen(value, name):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, 5)
