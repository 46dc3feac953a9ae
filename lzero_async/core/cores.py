"""How many cores this process may use, and how the roles share them."""
from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import FrozenSet, Iterator, List, Optional, Sequence

CGROUPS = Path('/sys/fs/cgroup')
OWN_CGROUPS = Path('/proc/self/cgroup')


def usable_cores() -> List[int]:
    """The numbers of the cores that this process may run on."""
    if hasattr(os, 'sched_getaffinity'):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def available_cores() -> int:
    """Whole cores' worth of time: those usable, or what a container's quota leaves of them. At least 1."""
    cores, quota = len(usable_cores()), cpu_quota()
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


def cpu_quota(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> Optional[float]:
    """The least quota of CPU time, in cores, on the way from the root of the control groups to our own."""
    quotas = [quota for folder in _own_folders(root, own) for quota in (_quota_v2(folder), _quota_v1(folder)) if quota]
    return min(quotas, default=None)


def _own_folders(root: Path, own: Path) -> Iterator[Path]:
    """Our control group's folder and all above it, for both versions of control groups."""
    # In a container the root itself is usually our own group.
    yield from (root, root / 'cpu', root / 'cpu,cpuacct')
    try:
        lines = own.read_text(encoding='utf-8').splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(':', 2)
        if controllers and 'cpu' not in controllers.split(','):
            continue
        parts = Path(path.lstrip('/')).parts
        # What is mounted as `cpu,cpuacct` may be called `cpuacct,cpu` here; `cpu` is a link to it.
        for base in (root / controllers, root / 'cpu') if controllers else (root,):
            for depth in range(1, len(parts) + 1):
                yield base.joinpath(*parts[:depth])


def _quota_v2(folder: Path) -> Optional[float]:
    words = _words(folder / 'cpu.max')
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] != 'max' else None


def _quota_v1(folder: Path) -> Optional[float]:
    quota, period = _words(folder / 'cpu.cfs_quota_us'), _words(folder / 'cpu.cfs_period_us')
    return int(quota[0]) / int(period[0]) if quota and period and int(quota[0]) > 0 else None


def _words(path: Path) -> List[str]:
    try:
        return path.read_text(encoding='utf-8').split()
    except OSError:
        return []


@dataclass(frozen=True)
class CorePlan:
    """How the cores are shared: half for the learner, the rest for the collectors in equal parts.

    The evaluator works now and then, beside both. Where there are too few cores, roles share some.
    """

    cores: Sequence[int]
    """Numbers of the cores, as many as there is time for."""
    num_collectors: int = 1

    @property
    def learner_threads(self) -> int:
        return max(1, len(self.cores) // 2)

    @property
    def collector_threads(self) -> int:
        return max(1, (len(self.cores) - self.learner_threads) // self.num_collectors)

    def cores_of(self, role: str) -> FrozenSet[int]:
        """For `learner`, `evaluator` or `collector-N`. The evaluator may use what the learner does not."""
        mine, others = self.cores[:self.learner_threads], self.cores[self.learner_threads:]
        if role == 'learner' or not others:
            return frozenset(mine)
        if role == 'evaluator':
            return frozenset(others)
        first = int(role.rsplit('-', 1)[1]) * self.collector_threads
        return frozenset(others[(first + place) % len(others)] for place in range(self.collector_threads))


def core_plan(num_collectors: int) -> CorePlan:
    return CorePlan(usable_cores()[:available_cores()], num_collectors)
