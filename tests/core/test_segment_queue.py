import dataclasses

import pytest
from fakes import TIMEOUT, start, watch
from hypothesis import given
from hypothesis import strategies as st

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


def test_the_smallest_order_first_and_among_equals_the_first_in():
    queue = SegmentQueue(9, order=len)
    for item in ('ccc', 'a', 'bb', 'AA', 'A', ''):
        queue.put(item)
    assert [queue.take() for _ in range(6)] == ['', 'a', 'A', 'bb', 'AA', 'ccc']


@given(st.lists(st.tuples(st.integers(0, 3), st.integers()), max_size=12))
def test_whatever_the_items_only_their_order_is_compared(items):
    queue = SegmentQueue(12, order=lambda item: item[0])
    for item in items:
        queue.put(item)
    assert [queue.take() for _ in items] == sorted(items, key=lambda item: item[0])


def test_the_first_is_looked_at_and_left():
    queue = SegmentQueue(9, order=len)
    assert queue.first() is None
    for item, first in [('bb', 'bb'), ('ccc', 'bb'), ('a', 'a')]:
        queue.put(item)
        assert queue.first() == first
    assert queue.statistics().total_consumed == 0
    assert queue.take() == 'a'
    assert queue.first() == 'bb'


def test_put_waits_at_the_bound_until_something_is_taken():
    queue, condition = filled(2, 'ab')
    putter = start(lambda: queue.put('c'), 'putter')
    condition.await_blocked('putter')
    assert queue.statistics().queue_size == 2
    assert queue.take() == 'a'
    putter.result(TIMEOUT)
    assert [queue.take(), queue.take()] == ['b', 'c']


def test_what_comes_before_all_others_is_let_in_though_the_queue_is_full():
    queue = SegmentQueue(1, order=len)
    condition = watch(queue)
    queue.put('bb')
    putters = [start(lambda item=item: queue.put(item), item) for item in ('BB', 'ccc')]
    condition.await_blocked('BB')  # as good as the first is not before it
    condition.await_blocked('ccc')
    queue.put('a')
    queue.put('')
    assert queue.statistics().queue_size == 3
    assert [queue.take(), queue.take(), queue.take()] == ['', 'a', 'bb']
    assert sorted([queue.take(), queue.take()]) == ['BB', 'ccc']
    for putter in putters:
        putter.result(TIMEOUT)


def test_an_item_that_was_seen_can_be_taken_wherever_it_stands():
    queue = SegmentQueue(9, order=len, nbytes=len)
    queue.put('bb')
    seen = queue.first()
    queue.put('a')
    queue.put('ccc')
    queue.put('')
    queue.remove(seen)
    assert queue.statistics() == QueueStatistics(3, total_produced=4, total_consumed=1, discarded=0, nbytes=4)
    assert [queue.take(), queue.take(), queue.take()] == ['', 'a', 'ccc']


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.data())
def test_the_rest_stays_in_order_when_one_is_removed(numbers, data):
    items = [[number] for number in numbers]
    queue = SegmentQueue(12, order=lambda item: item[0])
    for item in items:
        queue.put(item)
    place = data.draw(st.integers(0, len(items) - 1))
    queue.remove(items[place])
    rest = sorted(items[:place] + items[place + 1:], key=lambda item: item[0])
    assert all(queue.take() is item for item in rest)
    assert queue.statistics().queue_size == 0


def test_room_that_a_removal_makes_is_used():
    queue, condition = filled(1, 'a')
    putter = start(lambda: queue.put('b'), 'putter')
    condition.await_blocked('putter')
    queue.remove(queue.first())
    putter.result(TIMEOUT)
    assert queue.take() == 'b'


def test_an_item_that_was_discarded_cannot_be_taken():
    queue, _ = filled(2, 'ab')
    seen = queue.first()
    queue.discard()
    with pytest.raises(QueueClosed, match='what was in it is discarded'):
        queue.remove(seen)
    assert queue.statistics().total_consumed == 0


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


# -------------------------------------------------------------------- waits that take nothing


def test_wait_for_so_many():
    queue, condition = filled(3, 'a')
    assert queue.wait_for(1, timeout=0)
    assert not queue.wait_for(2, timeout=0.01)
    waiter = start(lambda: queue.wait_for(3), 'waiter')
    condition.await_blocked('waiter')
    queue.put('b')
    condition.await_blocked('waiter')
    queue.put('c')
    assert waiter.result(TIMEOUT) is True
    assert queue.statistics().queue_size == 3


def test_whether_so_many_are_there():
    queue = SegmentQueue(3)
    assert not queue.has(1)
    queue.put('a')
    assert queue.has(1) and not queue.has(2)
    queue.close()
    assert queue.has(2), 'no more can come'


def test_wait_for_another_first():
    queue = SegmentQueue(9, order=len)
    condition = watch(queue)
    queue.put('bb')
    bb = queue.first()
    assert not queue.wait_for_other_first(bb, timeout=0.01)
    waiter = start(lambda: queue.wait_for_other_first(bb), 'waiter')
    condition.await_blocked('waiter')
    queue.put('ccc')
    condition.await_blocked('waiter')
    queue.put('a')
    assert waiter.result(TIMEOUT) is True
    assert queue.first() == 'a'
    assert queue.wait_for_other_first('x', timeout=0)


def test_who_waits_for_another_is_woken_when_it_will_not_come():
    queue, condition = filled(2, 'a')
    first, wakes = queue.first(), queue.wakes
    waiter = start(lambda: queue.wait_for_other_first(first, wakes=wakes), 'waiter')
    condition.await_blocked('waiter')
    queue.wake()
    assert waiter.result(TIMEOUT) is True
    assert queue.wait_for_other_first(first, timeout=0, wakes=wakes)  # also if that was before the wait
    assert not queue.wait_for_other_first(first, timeout=0, wakes=queue.wakes)
    assert not queue.wait_for_other_first(first, timeout=0)


def test_an_equal_item_is_another():
    queue = SegmentQueue(2, order=lambda item: item[0])
    first, equal = [1], [1]
    queue.put(first)
    assert not queue.wait_for_other_first(first, timeout=0)
    assert queue.wait_for_other_first(equal, timeout=0)


@pytest.mark.parametrize('wait', ['wait_for', 'wait_for_other_first'])
@pytest.mark.parametrize('end', ['close', 'discard'])
def test_the_end_ends_every_wait(wait, end):
    queue, condition = filled(9, 'a')
    asked = 5 if wait == 'wait_for' else queue.first()
    waiter = start(lambda: getattr(queue, wait)(asked), 'waiter')
    condition.await_blocked('waiter')
    getattr(queue, end)()
    assert waiter.result(TIMEOUT) is True
    assert getattr(queue, wait)(asked) is True


# -------------------------------------------------------------------- the end


def test_a_closed_queue_still_drains():
    queue, _ = filled(3, 'ab')
    assert not queue.closed
    queue.close()
    queue.close()
    assert queue.closed
    with pytest.raises(QueueClosed, match='nothing more can be put'):
        queue.put('c')
    assert queue.take() == 'a'
    assert queue.first() == queue.take() == 'b'
    for take in (queue.take, queue.first):
        with pytest.raises(QueueClosed, match='nothing more will come'):
            take()
    assert queue.statistics() == QueueStatistics(0, total_produced=2, total_consumed=2, discarded=0, nbytes=0)


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
    assert queue.statistics() == QueueStatistics(0, total_produced=3, total_consumed=1, discarded=2, nbytes=0)
    with pytest.raises(QueueClosed):
        queue.take()
    with pytest.raises(QueueClosed):
        queue.put('d')


# -------------------------------------------------------------------- the counts


def test_discard_hands_over_in_order():
    queue = SegmentQueue(9, order=len)
    for item in ('ccc', 'a', 'bb', 'A'):
        queue.put(item)
    assert queue.discard() == ['a', 'A', 'bb', 'ccc']


def test_the_memory_of_what_is_queued():
    queue = SegmentQueue(9, nbytes=len)
    seen = []
    for name, *item in [('put', 'aaa'), ('put', 'bb'), ('take',), ('put', 'c'), ('discard',)]:
        getattr(queue, name)(*item)
        seen.append(queue.statistics().nbytes)
    assert seen == [3, 5, 2, 3, 0]


def test_statistics_are_a_frozen_copy():
    queue, _ = filled(3, 'a')
    before = queue.statistics()
    queue.put('b')
    assert before == QueueStatistics(queue_size=1, total_produced=1, total_consumed=0, discarded=0, nbytes=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.queue_size = 7
