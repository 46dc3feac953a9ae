"""A bounded queue between collectors and learner that can be closed, counts, and drops nothing by itself."""
from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Deque, Generic, List, Optional, TypeVar

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


class SegmentQueue(Generic[T]):
    """First in, first out. Any thread may call any member."""

    def __init__(self, maxsize: int) -> None:
        self._maxsize = integer(1)('data_queue_size', maxsize)
        # Guards all that follows; putters and takers both wait on it.
        self._changed = threading.Condition(threading.Lock())
        self._items: Deque[T] = deque()
        self._closed = False
        self._produced = 0
        self._consumed = 0
        self._discarded = 0

    def put(self, item: T) -> None:
        """Append, waiting while the queue is full. Raises QueueClosed if it is closed before there is room."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._maxsize)
            if self._closed:
                raise QueueClosed('the queue is closed: nothing more can be put')
            self._items.append(item)
            self._produced += 1
            self._changed.notify_all()

    def take(self) -> T:
        """Remove the oldest item, waiting for one. Raises QueueClosed once the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._items))
            if not self._items:
                raise QueueClosed('the queue is closed: nothing more will come')
            return self._pop()

    def take_nowait(self) -> Optional[T]:
        """The oldest item, or None if there is none right now. Raises QueueClosed as `take` does."""
        with self._changed:
            if not self._items and self._closed:
                raise QueueClosed('the queue is closed: nothing more will come')
            return self._pop() if self._items else None

    def close(self) -> None:
        """Refuse further items; those inside can still be taken. Closing twice is closing once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def discard(self) -> List[T]:
        """Close, and hand over what nobody will take any more."""
        with self._changed:
            self._closed = True
            left = list(self._items)
            self._items.clear()
            self._discarded += len(left)
            self._changed.notify_all()
            return left

    def statistics(self) -> QueueStatistics:
        with self._changed:
            return QueueStatistics(len(self._items), self._produced, self._consumed, self._discarded)

    def _pop(self) -> T:
        item = self._items.popleft()
        self._consumed += 1
        self._changed.notify_all()
        return item
