"""What differs between the policies we can train."""
from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, NamedTuple, Type

from ..core.errors import ConfigError


class RoleClasses(NamedTuple):
    learner: Type[Any]
    collector: Type[Any]
    evaluator: Type[Any]


@dataclass(frozen=True)
class Family:
    policy_type: str
    buffer_class: str
    """Its GameBuffer, a name in `lzero.mcts`."""
    has_vector_targets: bool
    roles: str = 'lzero_async.lightzero.host_roles'
    """The module whose ROLES are the classes of learner, collector and evaluator, and whose `check_config` knows what
    they can work with."""
    light_search: bool = False
    """Whether an accelerated search of it seldom holds the GIL."""
    cannot_reanalyze: str = ''
    """Why its segments cannot be reanalyzed in the background, if so."""

    def check(self, main: Any, create: Any) -> None:
        """Refuse what the roles cannot work with."""
        importlib.import_module(self.roles).check_config(main, create)

    def role_classes(self) -> RoleClasses:
        classes: RoleClasses = importlib.import_module(self.roles).ROLES
        return classes

    def make_buffer(self, policy_cfg: Any, serial: bool, accelerate: bool) -> Any:
        """A serial run draws the samples that LightZero draws, also where it forgets some of them."""
        import lzero.mcts

        from .replay.reanalyze import choosing
        from .replay.sound_buffers import sound

        buffer_class = getattr(lzero.mcts, self.buffer_class)
        if accelerate and self.has_vector_targets and not serial:
            from .replay.vector_targets import VectorTargetsBuffer

            buffer_class = VectorTargetsBuffer
        buffer_class = sound(buffer_class, also_removal=not serial)
        return (buffer_class if serial else choosing(buffer_class))(policy_cfg)


FAMILIES = {
    family.policy_type: family
    for family in (
        Family('unizero', 'UniZeroGameBuffer', has_vector_targets=True, light_search=True),
        Family(
            'sampled_unizero', 'SampledUniZeroGameBuffer', has_vector_targets=False,
            cannot_reanalyze='LightZero cannot reanalyze its segments',
        ),
        Family(
            'priorzero', 'UniZeroGameBuffer', has_vector_targets=True, roles='lzero_async.priorzero.roles',
            cannot_reanalyze='LightZero reanalyzes without the prior',
        ),
    )
}


def family_of(policy_type: str) -> Family:
    if policy_type not in FAMILIES:
        supported = ', '.join(repr(name) for name in FAMILIES)
        raise ConfigError(f'create_config.policy.type must be one of {supported}, got {policy_type!r}')
    return FAMILIES[policy_type]
