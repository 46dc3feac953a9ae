"""Channels: what the loops of one run share."""
from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Callable

from .config import AsyncConfig
from .coordinator import AsyncTrainingCoordinator
from .outstanding import OutstandingRounds
from .param_sync import ParameterSynchronizer
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
    stop: StopSignal = field(default_factory=StopSignal)
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def open(
        cls, coordinator: AsyncTrainingCoordinator, weights: ParameterSynchronizer, settings: AsyncConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> 'Channels':
        queue: 'SegmentQueue[SegmentBatch]' = SegmentQueue(
            settings.queue_bound, order=lambda batch: batch.order, nbytes=lambda batch: batch.nbytes
        )
        return cls(coordinator, weights, queue, settings, clock=clock)

    def leave(self) -> None:
        """Break off: wake all who wait, and let nothing start. What is in the queue is given up, and counted."""
        self.coordinator.close(wait=False)
        self.weights.cleanup()
        self.outstanding.close()
        for batch in self.queue.discard():
            self.samples.discarded(batch.transitions)
