import dataclasses

import pytest
from fakes import TIMEOUT, start, watch

from lzero_async.core.errors import ConfigError, QueueClosed
from lzero_async.core.segment_queue import QueueStatistics, SegmentQueue


def filled(maxsize, items):
    queue = SegmentQueue(maxsize)
    condition = watch(queue)
    for item in items:
        queue.put(item)
    return queue, condition


@pytest.mark.parametrize('maxsize', [0, -1, True, 1.0, None])
def test_the_bound_is_a_positive_int(maxsize):
    with pytest.raises(ConfigError, match=f'^data_queue_size must be .*>= 1, got {maxsize!r}$'):
        SegmentQueue(maxsize)


def test_first_in_first_out():
    queue, _ = filled(3, 'abc')
    assert [queue.take(), queue.take(), queue.take()] == ['a', 'b', 'c']


def test_take_nowait():
    queue, _ = filled(2, 'ab')
    assert [queue.take_nowait(), queue.take_nowait(), queue.take_nowait()] == ['a', 'b', None]
    assert queue.statistics().total_consumed == 2


def test_put_waits_at_the_bound_until_something_is_taken():
    queue, condition = filled(2, 'ab')
    putter = start(lambda: queue.put('c'), 'putter')
    condition.await_blocked('putter')
    assert queue.statistics().queue_size == 2
    assert queue.take() == 'a'
    putter.result(TIMEOUT)
    assert [queue.take(), queue.take()] == ['b', 'c']


def test_take_waits_until_something_is_put():
    queue, condition = filled(1, '')
    taker = start(queue.take, 'taker')
    condition.await_blocked('taker')
    queue.put('a')
    assert taker.result(TIMEOUT) == 'a'


def test_one_item_satisfies_one_of_two_takers():
    queue, condition = filled(5, '')
    takers = [start(queue.take, f'taker-{index}') for index in range(2)]
    for index in range(2):
        condition.await_blocked(f'taker-{index}')
    queue.put('a')
    queue.put('b')
    assert sorted(taker.result(TIMEOUT) for taker in takers) == ['a', 'b']


# -------------------------------------------------------------------- the end


def test_a_closed_queue_still_drains():
    queue, _ = filled(3, 'ab')
    queue.close()
    queue.close()
    with pytest.raises(QueueClosed, match='nothing more can be put'):
        queue.put('c')
    assert queue.take() == 'a'
    assert queue.take_nowait() == 'b'
    for take in (queue.take, queue.take_nowait):
        with pytest.raises(QueueClosed, match='nothing more will come'):
            take()
    assert queue.statistics() == QueueStatistics(queue_size=0, total_produced=2, total_consumed=2, discarded=0)


def test_close_wakes_a_taker():
    queue, condition = filled(1, '')
    taker = start(queue.take, 'taker')
    condition.await_blocked('taker')
    queue.close()
    assert isinstance(taker.exception(TIMEOUT), QueueClosed)


@pytest.mark.parametrize('end', ['close', 'discard'])
def test_the_end_wakes_a_putter_whose_item_was_never_in(end):
    queue, condition = filled(1, 'a')
    putter = start(lambda: queue.put('b'), 'putter')
    condition.await_blocked('putter')
    getattr(queue, end)()
    assert isinstance(putter.exception(TIMEOUT), QueueClosed)
    assert queue.statistics().total_produced == 1


def test_discard_hands_over_the_rest_and_counts_it():
    queue, _ = filled(5, 'abc')
    queue.take()
    assert queue.discard() == ['b', 'c']
    assert queue.discard() == []
    assert queue.statistics() == QueueStatistics(queue_size=0, total_produced=3, total_consumed=1, discarded=2)
    with pytest.raises(QueueClosed):
        queue.take()
    with pytest.raises(QueueClosed):
        queue.put('d')


# -------------------------------------------------------------------- the counts


def test_statistics_are_a_frozen_copy():
    queue, _ = filled(3, 'a')
    before = queue.statistics()
    queue.put('b')
    assert before == QueueStatistics(queue_size=1, total_produced=1, total_consumed=0, discarded=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.queue_size = 7
