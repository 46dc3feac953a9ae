"""The control law: who may go, as pure functions of counts.

The unit is a round: one collected batch, and the updates that it owes. A piece of work in flight holds the slot it
will count for, so that the law stays true with several collectors. With one of each it reads

    lag = collect_count - train_count
    may_collect:  degree == 0:  train_count >= collect_count     degree > 0:  lag < degree
    may_train:    degree == 0:  collect_count > train_count      degree > 0:  collect_count > 0

`max_train_ahead` bounds how many rounds training may lead: 0 trains each collected round once, None sets no bound.
"""
from __future__ import annotations

from typing import Optional

AUTO_DEGREE = -1


def may_collect(degree: int, collect_count: int, collecting: int, train_count: int) -> bool:
    """Whether one more collect may start, with `collecting` of them in flight."""
    lag = collect_count + collecting - train_count
    return lag <= 0 if degree == 0 else lag < degree


def may_train(
    degree: int, collect_count: int, train_count: int, training: int = 0, max_train_ahead: Optional[int] = None
) -> bool:
    """Whether one more round may be trained, with `training` of them in flight."""
    if collect_count == 0:
        return False
    ahead = train_count + training - collect_count
    if degree == 0:
        return ahead < 0
    return max_train_ahead is None or ahead < max_train_ahead


def auto_degree(buffer_size: int, batch_size: int) -> int:
    """The degree that `off_policy_degree=-1` stands for: a tenth of the batches that the buffer holds, at least 1."""
    return max(1, buffer_size // batch_size // 10)
