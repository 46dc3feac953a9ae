"""How much better an action turned out than the world model had expected."""
from __future__ import annotations

from typing import Sequence, Tuple

import numpy as np


def n_step_advantages(
    rewards: Sequence[float], root_values: Sequence[float], predicted_values: Sequence[float], td_steps: int,
    discount: float,
) -> Tuple[float, ...]:
    """One for each of `predicted_values`: sum of discounted rewards plus the value where they end, less what was
    predicted.

    `rewards` and `root_values` go on after those steps as far as the game was played. Where it was over before
    `td_steps` have passed, nothing follows the last reward.
    """
    brought, valued = np.asarray(rewards, float).reshape(-1), np.asarray(root_values, float).reshape(-1)
    found = []
    for step, predicted in enumerate(predicted_values):
        ahead = brought[step:step + td_steps]
        target = float((ahead * discount ** np.arange(len(ahead))).sum())
        if step + td_steps < len(valued):
            target += discount ** td_steps * float(valued[step + td_steps])
        found.append(target - float(predicted))
    return tuple(found)
