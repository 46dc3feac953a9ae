"""A bounded queue between collectors and learner that can be closed, counts, and drops nothing by itself."""
from __future__ import annotations

import heapq
import threading
from dataclasses import dataclass
from typing import Any, Callable, Generic, List, Optional, Tuple, TypeVar

from .checks import integer
from .errors import QueueClosed

T = TypeVar('T')


@dataclass(frozen=True)
class QueueStatistics:
    queue_size: int
    total_produced: int
    total_consumed: int
    discarded: int
    """Items still queued when the queue was closed for good; produced = consumed + discarded + queue_size."""
    nbytes: int
    """Memory that the queued items hold."""


class SegmentQueue(Generic[T]):
    """First in, first out among items of equal `order`; else the smallest first. Any thread may call any member."""

    def __init__(
        self, maxsize: int, order: Callable[[T], Any] = lambda item: 0, nbytes: Callable[[T], int] = lambda item: 0
    ) -> None:
        self._maxsize = integer(1)('data_queue_size', maxsize)
        self._order = order
        self._size_of = nbytes
        # Guards all that follows; putters and takers both wait on it.
        self._changed = threading.Condition(threading.Lock())
        self._items: List[Tuple[Any, int, T]] = []  # a heap
        self._closed = False
        self._produced = 0
        self._consumed = 0
        self._discarded = 0
        self._nbytes = 0
        self._wakes = 0

    def put(self, item: T, timeout: Optional[float] = None) -> bool:
        """Add, waiting while the queue is full. Raises QueueClosed if it is closed before there is room.

        False if `timeout` seconds passed first. One that comes before all that are queued is let in even so: the taker
        may be waiting for it, and take no other.
        """
        order, nbytes = self._order(item), self._size_of(item)

        def has_room() -> bool:
            return len(self._items) < self._maxsize or bool(order < self._items[0][0])

        with self._changed:
            in_time = self._changed.wait_for(lambda: self._closed or has_room(), timeout)
            if self._closed:
                raise QueueClosed('the queue is closed: nothing more can be put')
            if not in_time:
                return False
            heapq.heappush(self._items, (order, self._produced, item))
            self._produced += 1
            self._nbytes += nbytes
            self._changed.notify_all()
            return True

    def take(self) -> T:
        """Remove the first item, waiting for one. Raises QueueClosed once the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._items))
            if not self._items:
                raise QueueClosed('the queue is closed: nothing more will come')
            return self._pop(0)

    def remove(self, item: T) -> None:
        """Take this very item, which was seen queued, wherever it stands by now. Raises QueueClosed if it is discarded.
        """
        with self._changed:
            places = [place for place, (_, _, queued) in enumerate(self._items) if queued is item]
            if not places:
                raise QueueClosed('the queue is closed: what was in it is discarded')
            self._pop(places[0])

    def first(self) -> Optional[T]:
        """The item that `take` would give, left in its place. Raises QueueClosed as `take` does."""
        with self._changed:
            if not self._items and self._closed:
                raise QueueClosed('the queue is closed: nothing more will come')
            return self._items[0][2] if self._items else None

    def has(self, count: int) -> bool:
        """Whether `count` items are queued or no more can come: what `wait_for` waits for."""
        with self._changed:
            return self._closed or len(self._items) >= count

    def wait_for(self, count: int, timeout: Optional[float] = None) -> bool:
        """Wait until `count` items are queued or no more can come. False if `timeout` seconds passed first."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or len(self._items) >= count, timeout)

    def wait_for_other_first(self, item: T, timeout: Optional[float] = None, wakes: Optional[int] = None) -> bool:
        """Wait until another item comes first, no more can come, or there were more than `wakes` calls of `wake`.

        False if `timeout` seconds passed first.
        """

        def other() -> bool:
            woken = wakes is not None and self._wakes > wakes
            return woken or self._closed or not self._items or self._items[0][2] is not item

        with self._changed:
            return self._changed.wait_for(other, timeout)

    def wake(self) -> None:
        """Somebody who was expected to put an item will not."""
        with self._changed:
            self._wakes += 1
            self._changed.notify_all()

    @property
    def wakes(self) -> int:
        with self._changed:
            return self._wakes

    @property
    def closed(self) -> bool:
        with self._changed:
            return self._closed

    def close(self) -> None:
        """Refuse further items; those inside can still be taken. Closing twice is closing once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def discard(self) -> List[T]:
        """Close, and hand over what nobody will take any more."""
        with self._changed:
            self._closed = True
            left = [item for _, _, item in sorted(self._items, key=lambda entry: entry[:2])]
            self._items.clear()
            self._nbytes = 0
            self._discarded += len(left)
            self._changed.notify_all()
            return left

    def statistics(self) -> QueueStatistics:
        with self._changed:
            return QueueStatistics(len(self._items), self._produced, self._consumed, self._discarded, self._nbytes)

    def _pop(self, place: int) -> T:
        item = self._items[place][2]
        self._items[place] = self._items[-1]
        self._items.pop()
        heapq.heapify(self._items)
        self._consumed += 1
        self._nbytes -= self._size_of(item)
        self._changed.notify_all()
        return item
