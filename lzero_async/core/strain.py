"""Whether training shows strain: a signal that jumps, or that keeps rising above its own past."""
from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Dict, List, Mapping, Optional, Sequence

SLOW, FAST = 1 / 32, 1 / 4
"""Weights of the newest round in the long and the short mean."""
HELD = 1 / 256
"""Its weight in the long mean while the signal is up: strain that lasts is not to pass for the past."""
WARM_UP = 16
"""Rounds before a signal is judged."""
JUMP_DEVIATIONS = 10.0
JUMP_RATIO = 2.0
RISE_DEVIATIONS = 1.5
RISE_RATIO = 1.4
RISE_ROUNDS = 8


@dataclass(frozen=True)
class TrainingSignals:
    """What a learner can say of one round, as means over its updates. None: not known."""

    loss: Optional[float] = None
    value_error: Optional[float] = None
    policy_divergence: Optional[float] = None
    """Between the policy that collected the samples and the one that learns from them."""


class StrainGauge:
    """Watches one signal. `reason` is asked once per round, with the newest value."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rounds = 0
        self._slow = self._fast = self._deviation = 0.0
        self._rising = 0

    def state(self) -> List[float]:
        return [self._rounds, self._slow, self._fast, self._deviation, self._rising]

    def restore(self, state: Sequence[float]) -> None:
        rounds, self._slow, self._fast, self._deviation, rising = state
        self._rounds, self._rising = int(rounds), int(rising)

    def reason(self, value: float) -> Optional[str]:
        """Why this value means strain, if it does."""
        if not math.isfinite(value):
            return f'{self._name} is {value}'
        self._rounds += 1
        if self._rounds == 1:
            self._slow = self._fast = value
            self._deviation = abs(value) / 4
            return None
        past, deviation = self._slow, self._deviation
        most = past + max(JUMP_DEVIATIONS * deviation, (JUMP_RATIO - 1) * abs(past))
        judged, jumped = self._rounds > WARM_UP, deviation > 0 and value > most
        taken = most if jumped else value  # a jump enters the means only in part
        error = abs(taken - self._fast)
        self._fast += FAST * (taken - self._fast)
        up = self._fast > past + max(RISE_DEVIATIONS * deviation, (RISE_RATIO - 1) * abs(past))
        self._rising = self._rising + 1 if up else 0
        weight = max(SLOW, 1 / self._rounds)  # at first a plain mean, so that the first value does not count for more
        self._slow += (HELD if judged and up else weight) * (taken - past)
        self._deviation += weight * (error - deviation)
        if judged and jumped:
            return f'{self._name} jumped to {value:.4g} from about {past:.4g}'
        if judged and self._rising >= RISE_ROUNDS:
            return f'{self._name} rose to {self._fast:.4g} from about {past:.4g}'
        return None


class StrainGauges:
    """One gauge per signal."""

    def __init__(self) -> None:
        self._gauges = {field.name: StrainGauge(field.name) for field in fields(TrainingSignals)}

    def state(self) -> Dict[str, List[float]]:
        return {name: gauge.state() for name, gauge in self._gauges.items()}

    def restore(self, state: Mapping[str, Sequence[float]]) -> None:
        for name, gauge in self._gauges.items():
            gauge.restore(state[name])

    def reason(self, signals: TrainingSignals) -> Optional[str]:
        found = [
            gauge.reason(value)
            for name, gauge in self._gauges.items()
            for value in [getattr(signals, name)]
            if value is not None
        ]
        return next((reason for reason in found if reason is not None), None)
