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
    has_vector_targets: bool

    def make_buffer(self, policy_cfg: Any, accelerate: bool) -> Any:
        import lzero.mcts

        if accelerate and self.has_vector_targets:
            from .vector_targets import VectorTargetsBuffer

            return VectorTargetsBuffer(policy_cfg)
        return getattr(lzero.mcts, self.buffer_class)(policy_cfg)


FAMILIES = {
    family.policy_type: family
    for family in (
        Family('unizero', 'UniZeroGameBuffer', has_vector_targets=True),
        Family('sampled_unizero', 'SampledUniZeroGameBuffer', has_vector_targets=False),
    )
}


def family_of(policy_type: str) -> Family:
    if policy_type not in FAMILIES:
        supported = ', '.join(repr(name) for name in FAMILIES)
        raise ConfigError(f'create_config.policy.type must be one of {supported}, got {policy_type!r}')
    return FAMILIES[policy_type]
