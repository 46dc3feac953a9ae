"""Channels: what the loops of one run share."""
from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Callable, Optional

from .config import AsyncConfig
from .coordinator import AsyncTrainingCoordinator
from .outstanding import OutstandingRounds
from .param_sync import ParameterSynchronizer
from .restarts import Restarts
from .samples import SampleAccount
from .segment_queue import SegmentQueue
from .segments import SegmentBatch
from .stop import StopSignal


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

    @classmethod
    def open(
        cls, coordinator: AsyncTrainingCoordinator, weights: ParameterSynchronizer, settings: AsyncConfig,
        clock: Callable[[], float] = time.monotonic, env_step: int = 0, begun: Optional[float] = None,
    ) -> 'Channels':
        """`env_step` are environment steps made before the run; `begun` is when it began, now if not given."""
        queue: 'SegmentQueue[SegmentBatch]' = SegmentQueue(
            settings.queue_bound, order=lambda batch: batch.order, nbytes=lambda batch: batch.nbytes
        )
        return cls(
            coordinator, weights, queue, settings,
            samples=SampleAccount(env_step, begun, clock),
            restarts=Restarts(settings.max_worker_restarts, settings.worker_restart_window_s, clock),
            clock=clock,
        )

    def leave(self) -> None:
        """Break off: wake all who wait, and let nothing start. What is in the queue is given up, and counted."""
        self.coordinator.close(wait=False)
        self.weights.cleanup()
        self.outstanding.close()
        for batch in self.queue.discard():
            self.samples.discarded(batch.transitions)
