"""RoundCounts: what was begun, finished and dropped, and how long it took."""
from __future__ import annotations

from typing import Any, Dict

from .activity import KINDS


class RoundCounts:
    """Not locked: its owner calls it under a lock of its own."""

    def __init__(self) -> None:
        self.in_flight = {kind: 0 for kind in KINDS}
        self.most_collects = 0
        """The most collects that were in flight at once."""
        self.reset()

    def reset(self) -> None:
        """Set all to zero but for what is in flight."""
        self.finished = {kind: 0 for kind in KINDS}
        self.dropped = 0
        self.max_lag = 0
        self._work_time = {kind: 0.0 for kind in KINDS}
        self._wait_time = {kind: 0.0 for kind in KINDS}

    @property
    def kept(self) -> int:
        """Rounds collected and not dropped."""
        return self.finished['collect'] - self.dropped

    @property
    def lag(self) -> int:
        return self.kept - self.finished['train']

    @property
    def outstanding(self) -> int:
        """The lag once all collects in flight are done."""
        return self.lag + self.in_flight['collect']

    def begin(self, kind: str, waited: float) -> None:
        self._wait_time[kind] += waited
        self.in_flight[kind] += 1
        self.most_collects = max(self.most_collects, self.in_flight['collect'])

    def end(self, kind: str) -> None:
        self.in_flight[kind] -= 1

    def finish(self, kind: str, seconds: float) -> None:
        self.finished[kind] += 1
        self._work_time[kind] += seconds
        self.max_lag = max(self.max_lag, self.lag)

    def state(self) -> Dict[str, Any]:
        return {
            'finished': dict(self.finished), 'dropped': self.dropped, 'max_lag': self.max_lag,
            'work_time': dict(self._work_time), 'wait_time': dict(self._wait_time),
        }

    def restore(self, state: Dict[str, Any]) -> None:
        """Go on from `state`. Rounds that were collected and not trained are gone: they count as dropped."""
        self.finished, self.dropped, self.max_lag = dict(state['finished']), state['dropped'], state['max_lag']
        self._work_time, self._wait_time = dict(state['work_time']), dict(state['wait_time'])
        self.dropped += self.lag

    def __str__(self) -> str:
        return (
            f'collect_count={self.finished["collect"]}, train_count={self.finished["train"]}, '
            f'collects in flight={self.in_flight["collect"]}'
        )

    def numbers(self) -> Dict[str, Any]:
        numbers: Dict[str, Any] = {
            'collect_count': self.finished['collect'],
            'train_count': self.finished['train'],
            'eval_count': self.finished['eval'],
            'drop_count': self.dropped,
            'collect_train_lag': self.lag,
            'max_lag': self.max_lag,
            'collects_in_flight': self.in_flight['collect'],
        }
        for kind, count in self.finished.items():
            numbers[f'{kind}_total_time'] = self._work_time[kind]
            numbers[f'{kind}_avg_time'] = self._work_time[kind] / count if count else 0.0
            numbers[f'{kind}_wait_time'] = self._wait_time[kind]
        return numbers
