"""SampleAhead: makes the next batch while the learner trains on the one before."""
from __future__ import annotations

import contextlib
import copy
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, List, Optional, Tuple

import torch

from .. import random_streams
from ..policies import forget_caches
from ..then import Then
from ..updates.lean_loss import LeanLoss


class SampleAhead:
    """Called from the learner's thread only.

    A batch that is made ahead comes from the buffer as it is in its round, and from a copy of the target network that
    is at most one update old: the network itself changes while the learner trains. What changes the buffer must come
    between two batches, with none made ahead.

    Making one begins with Python, and so at a time when the learner needs none: where its loss tells when that is,
    then, else at once.
    """

    def __init__(self, buffer: Any, policy: Any, batch_size: int) -> None:
        self._buffer = buffer
        self._policy = policy
        self._batch_size = batch_size
        self._wanted = False
        self._next: 'Optional[Future[List[Any]]]' = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix='lzero-async-sampler')
        loss = policy._learn_model.world_model.compute_loss
        loss = loss.innermost if isinstance(loss, Then) else loss
        self._is_told = isinstance(loss, LeanLoss)
        if isinstance(loss, LeanLoss):
            loss.when_busy = self._begin
        target = policy._target_model
        own = copy.deepcopy(_plain(target))
        # All that the buffer asks a policy for is its target network.
        self._view = copy.copy(policy)
        self._view._target_model = own
        self._tensors: List[Tuple[torch.Tensor, torch.Tensor]] = [
            *zip(own.parameters(), target.parameters()), *zip(own.buffers(), target.buffers())
        ]

    def take(self, another_follows: bool) -> List[Any]:
        """The next batch. If another follows, it is made while the learner trains on this one."""
        if self._next is not None:
            batch, self._next = self._next.result(), None
        else:
            batch = self._buffer.sample(self._batch_size, self._policy)
        self._wanted = another_follows
        if not self._is_told:
            self._begin()
        return batch

    def drop(self) -> None:
        """No batch is wanted any more."""
        self._wanted = False
        if self._next is not None:
            self._next.exception()
            self._next = None

    def round_ended(self) -> None:
        forget_caches(self._view._target_model, self._policy.cfg)

    def close(self) -> None:
        self._thread.shutdown()

    def _begin(self) -> None:
        if not self._wanted:
            return
        self._wanted = False
        with torch.no_grad():
            for own, target in self._tensors:
                own.copy_(target)
        self._next = self._thread.submit(self._sample, random_streams.current(), torch.get_num_threads())

    def _sample(self, stream: Any, threads: int) -> List[Any]:
        torch.set_num_threads(threads)
        with random_streams.drawing_from(stream) if stream is not None else contextlib.nullcontext():
            batch: List[Any] = self._buffer.sample(self._batch_size, self._view)
        return batch


def _plain(target: Any) -> torch.nn.Module:
    """The module inside of what DI-engine and torch.compile have wrapped around it."""
    module = target._model
    plain: torch.nn.Module = getattr(module, '_orig_mod', module)
    return plain
