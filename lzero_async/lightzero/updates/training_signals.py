"""What LightZero's learner says of its updates, as the signals that the degree listens to."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from ...core.strain import TrainingSignals


class RoundSignals:
    """Means over the updates of one round."""

    def __init__(self) -> None:
        self._values: Dict[str, List[float]] = {}

    def add(self, log_vars: Mapping[str, Any]) -> None:
        self._note('loss', log_vars.get('weighted_total_loss'))
        self._note('value_error', log_vars.get('value_loss'))
        # The targets are visit counts of the policy that collected. The cross-entropy of the learning policy to them,
        # less their own entropy, is the divergence from the one to the other.
        cross_entropy = log_vars.get('orig_policy_loss', log_vars.get('policy_loss'))
        entropy = log_vars.get('target_policy_entropy')
        if cross_entropy is not None and entropy is not None:
            self._note('policy_divergence', cross_entropy - entropy)

    def take(self) -> TrainingSignals:
        """The means since the last call."""
        values, self._values = self._values, {}
        return TrainingSignals(**{name: sum(numbers) / len(numbers) for name, numbers in values.items()})

    def _note(self, name: str, value: Optional[float]) -> None:
        if value is not None:
            self._values.setdefault(name, []).append(float(value))
