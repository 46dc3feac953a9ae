"""What differs between the policies we can train."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.errors import ConfigError


@dataclass(frozen=True)
class Family:
    policy_type: str
    buffer_class: str
    """Its GameBuffer, a name in `lzero.mcts`."""

    def make_buffer(self, policy_cfg: Any) -> Any:
        import lzero.mcts

        return getattr(lzero.mcts, self.buffer_class)(policy_cfg)


FAMILIES = {
    family.policy_type: family
    for family in (
        Family('unizero', 'UniZeroGameBuffer'),
        Family('sampled_unizero', 'SampledUniZeroGameBuffer'),
    )
}


def family_of(policy_type: str) -> Family:
    if policy_type not in FAMILIES:
        supported = ', '.join(repr(name) for name in FAMILIES)
        raise ConfigError(f'create_config.policy.type must be one of {supported}, got {policy_type!r}')
    return FAMILIES[policy_type]
