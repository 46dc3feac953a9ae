"""The learner: LightZero's buffer, policy and BaseLearner, one round at a time."""
from __future__ import annotations

import logging
from typing import Any, Dict, List, Optional, Sequence

from ..core.protocols import KeepGoing, RoundResult
from ..core.segments import Collected, Piece, SegmentBatch
from ..core.updates import UpdateAccount
from ..core.weight_ops import WeightOps
from ..core.weights import WeightSnapshot
from .buffer_memory import BufferMemory
from .policies import export_learner_state
from .replay_ages import ReplayAges, stamp_segment
from .sample_ahead import SampleAhead
from .training_signals import RoundSignals

logger = logging.getLogger(__name__)


class LightZeroLearner:
    """`core.protocols.Learner` over the stock learner, and the only owner of the GameBuffer.

    Without `weight_ops` the roles share this learner's policy, and its snapshots carry a version and no weights.

    To subclass: override `before_round`, `after_update` and `after_round`, and hand the class to `run_training`.
    """

    def __init__(
        self, cfg: Any, policy: Any, learner: Any, buffer: Any, tb_logger: Any, account: UpdateAccount,
        weight_ops: Optional[WeightOps], sample_ahead: bool = False,
    ) -> None:
        self._cfg = cfg.policy
        self._policy = policy
        self._learner = learner
        self._buffer = buffer
        self._account = account
        self._weight_ops = weight_ops
        # Priorities change with every update, and the next batch is drawn by them.
        ahead = sample_ahead and not cfg.policy.use_priority
        self._ahead = SampleAhead(buffer, policy, cfg.policy.batch_size) if ahead else None
        self._ages = ReplayAges(buffer)
        self._signals = RoundSignals()
        self._memory = BufferMemory(buffer, tb_logger)
        self._env_step = 0
        self._finished_rounds = 0
        self._trained_rounds = 0
        self._last_budget = 0
        self._warned_priority = False

    @property
    def train_iter(self) -> int:
        return int(self._learner.train_iter)

    @property
    def env_step(self) -> int:
        return self._env_step

    def admit(self, batch: SegmentBatch) -> None:
        for piece in batch.pieces:
            for segment in piece.segments[0]:
                stamp_segment(segment, batch.stamp_of(piece))
        # Batches may be trained in another order than they were collected in.
        self._env_step = max(self._env_step, batch.env_step)
        self._store(batch.pieces)
        if self._may_train():
            self._account.owe(batch.transitions)

    def keep(self, collected: Collected) -> None:
        """Take a batch into the buffer without owing anything for it."""
        self._env_step += collected.env_steps
        self._store(collected.pieces)

    @property
    def collected_episodes(self) -> int:
        return int(self._buffer.num_of_collected_episodes)

    def train_round(self, keep_going: KeepGoing) -> RoundResult:
        self._begin_round()
        self._reanalyze_between_rounds()
        started = self._env_step > self._cfg.train_start_after_envsteps
        if started and not self._enough_data():
            logger.info('the buffer holds too little for a batch of %d yet: %s', self._cfg.batch_size, self._buffer)
            return self._end_round(RoundResult(updates=0, sufficient=False))
        updates = self._update(max(0, self._account.owed), keep_going)
        self._last_budget = updates
        return self._round_trained(updates)

    def train_ahead(self, keep_going: KeepGoing) -> RoundResult:
        self._begin_round()
        return self._round_trained(self._update(self._last_budget if self._may_train() else 0, keep_going))

    def snapshot(self) -> WeightSnapshot:
        weights = self._weight_ops.read(self._policy._learn_model) if self._weight_ops is not None else None
        return WeightSnapshot(self.train_iter, self._env_step, weights)

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def state(self) -> Optional[Dict[str, Any]]:
        if self._weight_ops is None:
            return None
        return export_learner_state(self._policy, self.train_iter, self._env_step)

    # ---------------------------------------------------------------- for subclasses, in the learner's thread

    def before_round(self) -> None:
        """Called before the updates of each round."""

    def after_update(self, log_vars: Dict[str, Any]) -> None:
        """Called after each update, with what LightZero's learner says of it."""

    def after_round(self, result: RoundResult) -> RoundResult:
        """Called after the updates of each round, before its weights are published."""
        return result

    # ---------------------------------------------------------------- inside

    def _store(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._buffer.push_game_segments(piece.segments)
        self._buffer.remove_oldest_data_to_fit()
        self._memory.log(self.train_iter)

    def _begin_round(self) -> None:
        self._ages.begin_round(self._finished_rounds)
        self.before_round()

    def _end_round(self, result: RoundResult) -> RoundResult:
        self._finished_rounds += 1
        return self.after_round(result)

    def _may_train(self) -> bool:
        return self._env_step > self._cfg.train_start_after_envsteps and self._enough_data()

    def _enough_data(self) -> bool:
        if self._cfg.sample_type == 'episode':
            return bool(self._buffer.get_num_of_game_segments() > self._cfg.batch_size)
        return bool(self._buffer.get_num_of_transitions() > self._cfg.batch_size)

    def _update(self, budget: int, keep_going: KeepGoing) -> int:
        interval = self._reanalyze_interval(budget)
        for done in range(budget):
            if not keep_going():
                if self._ahead is not None:
                    self._ahead.drop()
                return done
            if interval and done % interval == 0:
                self._reanalyze()
            follows = done + 1 < budget and not (interval and (done + 1) % interval == 0)
            self._update_once(self._next_batch(follows))
            self._account.pay(1)
        return budget

    def _next_batch(self, another_follows: bool) -> List[Any]:
        if self._ahead is not None:
            return self._ahead.take(another_follows)
        batch: List[Any] = self._buffer.sample(self._cfg.batch_size, self._policy)
        return batch

    def _update_once(self, train_data: List[Any]) -> None:
        if self._cfg.get('use_wandb', False):
            self._policy.set_train_iter_env_step(self.train_iter, self._env_step)
        train_data.append(self.train_iter)
        log_vars = self._learner.train(train_data, self._env_step)[0]
        if self._cfg.use_priority:
            self._update_priority(train_data, log_vars)
        self._signals.add(log_vars)
        self.after_update(log_vars)

    def _update_priority(self, train_data: Any, log_vars: Any) -> None:
        if 'value_priority_orig' in log_vars:
            self._buffer.update_priority(train_data, log_vars['value_priority_orig'])
        elif not self._warned_priority:
            self._warned_priority = True
            logger.warning(
                'use_priority: this LightZero learner reports no new priorities; those given at collection are kept'
            )

    def _round_trained(self, updates: int) -> RoundResult:
        self._trained_rounds += 1
        self._policy.recompute_pos_emb_diff_and_clear_cache()
        if self._ahead is not None:
            self._ahead.round_ended()
        return self._end_round(
            RoundResult(updates, sufficient=True, signals=self._signals.take(), replayed=self._ages.of_round())
        )

    # ---------------------------------------------------------------- reanalyze

    def _reanalyze_interval(self, budget: int) -> int:
        """Updates between two reanalyzes inside a round; 0 for none. A frequency below 1 counts in rounds instead."""
        frequency = self._cfg.get('buffer_reanalyze_freq', 0)
        return max(1, budget // frequency) if frequency >= 1 else 0

    def _reanalyze_between_rounds(self) -> None:
        frequency = self._cfg.get('buffer_reanalyze_freq', 0)
        if 0 < frequency < 1 and self._trained_rounds > 0 and self._trained_rounds % int(1 / frequency) == 0:
            self._reanalyze()

    def _reanalyze(self) -> None:
        size = self._cfg.reanalyze_batch_size
        sequences = self._buffer.get_num_of_transitions() // self._cfg.num_unroll_steps
        if sequences > int(size / self._cfg.reanalyze_partition):
            self._buffer.reanalyze_buffer(size, self._policy)
            logger.info('reanalyzed %d sequences of the buffer', size)
