"""OnPolicyCollector: makes one collect out of as many as a strictly on-policy round needs."""
from __future__ import annotations

from typing import Any, List

from .errors import BoundBroken, EverythingDropped, Stopped
from .on_policy import OnPolicyRounds
from .protocols import Collector, KeepGoing
from .segments import Collected, Piece
from .stop import StopSignal
from .weights import WeightSnapshot


class OnPolicyCollector:
    """`core.protocols.Collector` around another one. What the rounds refuse is not handed on.

    A stop lets a round that is under way fill up. A round that nothing fills ends with the stop, or with an error after
    `most_in_vain` collects.
    """

    def __init__(self, collector: Collector, rounds: OnPolicyRounds, stop: StopSignal, most_in_vain: int = 20) -> None:
        self._collector = collector
        self._rounds = rounds
        self._stop = stop
        self._most_in_vain = most_in_vain

    def load_weights(self, weights: Any, policy_version: int) -> None:
        self._collector.load_weights(weights, policy_version)

    def collect(self, snapshot: WeightSnapshot, keep_going: KeepGoing) -> Collected:
        if snapshot.policy_version != self._rounds.policy_version:
            raise BoundBroken(
                f'a round of version {self._rounds.policy_version} must be collected with it, got version '
                f'{snapshot.policy_version}'
            )
        stored: List[Piece] = []
        in_vain = env_steps = 0
        while True:
            before = self._rounds.samples_collected_this_round
            collected = self._collector.collect(snapshot, keep_going)
            env_steps += collected.env_steps
            for piece in collected.pieces:
                if self._rounds.store(piece, piece.policy_version, piece.transitions):
                    stored.append(piece)
            if not self._rounds.collection_enabled:
                return Collected(tuple(stored), env_steps, collected.random_state)
            in_vain = in_vain + 1 if self._rounds.samples_collected_this_round == before else 0
            if in_vain and self._stop.requested:
                raise Stopped('the round was left before it was full')
            if in_vain >= self._most_in_vain:
                raise EverythingDropped(
                    f'the last {in_vain} collects (max_consecutive_drops) brought no sample of version '
                    f'{snapshot.policy_version} to fill a round with'
                )
