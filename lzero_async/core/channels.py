"""Channels: what the loops of one run share."""
from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional

from .config import AsyncConfig
from .coordinator import AsyncTrainingCoordinator
from .outstanding import OutstandingRounds
from .param_sync import ParameterSynchronizer
from .restarts import Restarts
from .samples import SampleAccount
from .segment_queue import SegmentQueue
from .segments import SegmentBatch
from .stop import StopSignal
from .whereabouts import Whereabouts


@dataclass(frozen=True)
class Channels:
    coordinator: AsyncTrainingCoordinator
    """Who may go."""
    weights: ParameterSynchronizer
    """From learner to collectors and evaluator."""
    queue: 'SegmentQueue[SegmentBatch]'
    """From collectors to learner."""
    settings: AsyncConfig
    outstanding: OutstandingRounds = field(default_factory=OutstandingRounds)
    samples: SampleAccount = field(default_factory=SampleAccount)
    restarts: Restarts = field(default_factory=Restarts)
    stop: StopSignal = field(default_factory=StopSignal)
    clock: Callable[[], float] = time.monotonic
    whereabouts: Whereabouts = field(default_factory=Whereabouts)
    """For who wants to know why nothing happens."""
    left_over: List[SegmentBatch] = field(default_factory=list)
    """What nobody has trained when the run was broken off."""

    @classmethod
    def open(
        cls, coordinator: AsyncTrainingCoordinator, weights: ParameterSynchronizer, settings: AsyncConfig,
        clock: Callable[[], float] = time.monotonic, env_step: int = 0, begun: Optional[float] = None,
        resumed: Optional[Mapping[str, Any]] = None,
    ) -> 'Channels':
        """`env_step` are environment steps made before the run; `begun` is when it began, now if not given.

        `resumed` is the `state` of the run that this one goes on with.
        """
        queue: 'SegmentQueue[SegmentBatch]' = SegmentQueue(
            settings.queue_bound, order=lambda batch: batch.order, nbytes=lambda batch: batch.nbytes
        )
        channels = cls(
            coordinator, weights, queue, settings,
            outstanding=OutstandingRounds(0 if resumed is None else coordinator.train_count),
            samples=SampleAccount(env_step, begun, clock),
            restarts=Restarts(settings.max_worker_restarts, settings.worker_restart_window_s, clock),
            clock=clock,
            whereabouts=Whereabouts(clock),
        )
        if resumed is not None:
            channels.samples.restore(resumed['samples'])
            channels.weights.restore(resumed['weights'])
            channels.restarts.restore(resumed['worker_restarts'])
        return channels

    def state(self) -> Dict[str, Any]:
        """Plain values."""
        return {
            'coordinator': self.coordinator.state(),
            'samples': self.samples.state(),
            'weights': self.weights.state(),
            **self.restarts.numbers(),
        }

    def leave(self) -> None:
        """Break off: wake all who wait, and let nothing start. What is in the queue is `left_over`."""
        self.coordinator.close(wait=False)
        self.weights.cleanup()
        self.outstanding.close()
        self.left_over.extend(self.queue.discard())
