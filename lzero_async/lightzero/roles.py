"""What a role's thread needs around its work: torch threads, a device and a random stream of its own."""
from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Callable, ContextManager, Dict, FrozenSet, Iterator, Optional

import numpy as np
import torch

from ..core.config import AsyncConfig
from ..core.cores import CorePlan, core_plan
from . import random_streams
from .policies import on_device


def role_contexts(
    settings: AsyncConfig, seed: int, learner_device: str, sees_pictures: bool
) -> Callable[[str], ContextManager[Any]]:
    """The context for each role's thread, by the role's name (`collector-0`, `learner`, `evaluator`)."""
    plan = core_plan(settings.num_collectors)
    threads = {
        'collector': settings.collector_threads or plan.collector_threads,
        'learner': settings.learner_threads or _learner_threads(plan, settings, sees_pictures),
        'evaluator': settings.evaluator_threads or 1,
    }
    devices = {
        'collector': settings.collector_device,
        'learner': learner_device,
        'evaluator': settings.evaluator_device,
    }
    streams: Dict[str, np.random.RandomState] = {}

    @contextlib.contextmanager
    def role_context(role: str) -> Iterator[None]:
        kind = role.split('-')[0]
        stream = streams.setdefault(role, random_streams.role_stream(seed, role))
        cores = plan.cores_of(role) if settings.cpu_affinity is not None else None
        with pinned_to(cores), torch_threads(threads[kind]), on_device(devices[kind]), \
                random_streams.drawing_from(stream):
            yield

    return role_context


def _learner_threads(plan: CorePlan, settings: AsyncConfig, sees_pictures: bool) -> int:
    """Convolutions keep all cores busy, and an accelerated search beside them needs little. Small kernels do not."""
    alone = settings.accelerate and settings.cpu_affinity is None
    return len(plan.cores) if sees_pictures and alone else plan.learner_threads


@contextlib.contextmanager
def pinned_to(cores: Optional[FrozenSet[int]]) -> Iterator[None]:
    """Keep the calling thread, and what it starts, on these cores, for a while. None: wherever it may run now."""
    if cores is None or not hasattr(os, 'sched_setaffinity'):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the calling thread's torch threads, for a while. torch keeps this number per thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def switch_interval(seconds: Optional[float]) -> Iterator[None]:
    """How long a thread may keep the GIL from another that wants it, for a while."""
    before = sys.getswitchinterval()
    if seconds is not None:
        sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
