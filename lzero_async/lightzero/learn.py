"""The learner: LightZero's buffer, policy and BaseLearner, one round at a time."""
from __future__ import annotations

import logging
from typing import Any, Callable, Dict, List, Optional, Sequence

from ..core.protocols import KeepGoing, RoundResult
from ..core.segments import Collected, Piece, SegmentBatch
from ..core.updates import UpdateAccount
from ..core.weight_ops import WeightOps
from ..core.weights import WeightSnapshot
from . import random_streams
from .learner_state import capture_policy, capture_random, restore_policy, restore_random
from .policies import export_learner_state, weight_source
from .replay.buffer_journal import BufferJournal
from .replay.buffer_memory import BufferMemory
from .replay.reanalyze import BackgroundReanalyze, ScheduledReanalyze
from .replay.replay_ages import ReplayAges, stamp_segment
from .replay.sample_ahead import SampleAhead
from .updates.guarded_updates import GuardedUpdates, TooManyBadUpdates
from .updates.training_signals import RoundSignals

logger = logging.getLogger(__name__)


class LightZeroLearner:
    """`core.protocols.Learner` over the stock learner, and the only owner of the GameBuffer.

    Without `weight_ops` the roles share this learner's policy, and its snapshots carry a version and no weights.

    To subclass: override `before_round`, `after_update` and `after_round`, and hand the class to `run_training`.
    """

    def __init__(
        self, cfg: Any, policy: Any, learner: Any, buffer: Any, tb_logger: Any, account: UpdateAccount,
        weight_ops: Optional[WeightOps], sample_ahead: bool = False, journal: Optional[BufferJournal] = None,
        background_reanalyze: bool = False,
    ) -> None:
        """`journal` is that of the buffer, if the learner is to be resumable."""
        self._cfg = cfg.policy
        self._policy = policy
        self._learner = learner
        self._buffer = buffer
        self._account = account
        self._weight_ops = weight_ops
        # Priorities change with every update, and the next batch is drawn by them.
        ahead = sample_ahead and not cfg.policy.use_priority
        self._ahead = SampleAhead(buffer, policy, cfg.policy.batch_size) if ahead else None
        self._reanalyze = ScheduledReanalyze(cfg.policy, policy, buffer)
        self._background = BackgroundReanalyze(cfg.policy, policy, buffer) if background_reanalyze else None
        self._ages = ReplayAges(buffer)
        self._signals = RoundSignals()
        self._memory = BufferMemory(buffer, tb_logger)
        self._journal = journal
        self._guard: Optional[GuardedUpdates] = None
        self._max_bad_updates = 0
        self._last_good: Callable[[], Optional[Dict[str, Any]]] = lambda: None
        self._rolled_back_at = -1
        self._random_to_restore: Optional[Dict[str, Any]] = None
        self._stream: Any = None
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
        self._reanalyze.between_rounds(self._trained_rounds)
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

    def idle_work(self) -> bool:
        if self._background is None:
            return False
        self.restore_random()
        return self._background.slice(self.train_iter)

    def idle_numbers(self) -> Dict[str, Any]:
        return {} if self._background is None else self._background.numbers()

    def snapshot(self) -> WeightSnapshot:
        weights = self._weight_ops.read(weight_source(self._policy)) if self._weight_ops is not None else None
        return WeightSnapshot(self.train_iter, self._env_step, weights)

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def state(self) -> Optional[Dict[str, Any]]:
        if self._weight_ops is None:
            return None
        return export_learner_state(self._policy, self.train_iter, self._env_step)

    # ---------------------------------------------------------------- bad updates

    def guard(
        self, guard: GuardedUpdates, max_bad_updates: int, last_good: Callable[[], Optional[Dict[str, Any]]]
    ) -> None:
        """Leave bad updates out. `last_good` is the policy of the last saved state, if there is one."""
        self._guard, self._max_bad_updates, self._last_good = guard, max_bad_updates, last_good

    @property
    def bad_updates(self) -> int:
        return 0 if self._guard is None else self._guard.bad_updates

    # ---------------------------------------------------------------- resumable

    @property
    def journal(self) -> BufferJournal:
        assert self._journal is not None
        return self._journal

    def capture(self) -> Dict[str, Any]:
        """A copy of all it takes to go on from here, but for the pages of the journal. Between two rounds."""
        return {
            'policy': capture_policy(self._policy),
            'random': capture_random(self._stream) if self._random_to_restore is None else self._random_to_restore,
            'buffer': self.journal.state(),
            'account': self._account.state(),
            'train_iter': self.train_iter,
            'env_step': self._env_step,
            'finished_rounds': self._finished_rounds,
            'trained_rounds': self._trained_rounds,
            'last_budget': self._last_budget,
            'bad_updates': self.bad_updates,
            'background': None if self._background is None else self._background.state(),
        }

    def restore(self, state: Dict[str, Any], pages: Sequence[Any]) -> None:
        """Go on from `state`; before the first round. Random generators follow with that, in the learner's thread."""
        restore_policy(self._policy, state['policy'])
        self._policy.recompute_pos_emb_diff_and_clear_cache()
        self.journal.restore(state['buffer'], pages)
        self._learner._last_iter.update(state['train_iter'])
        self._learner._collector_envstep = self._env_step = state['env_step']
        self._finished_rounds, self._trained_rounds = state['finished_rounds'], state['trained_rounds']
        self._last_budget = state['last_budget']
        if self._guard is not None:
            self._guard.bad_updates = state['bad_updates']
        if self._background is not None and state.get('background') is not None:
            self._background.restore(state['background'])
        let_go = self._account.restore(state['account'], most_owed=self._last_budget)
        if let_go:
            logger.warning('%d updates that were owed are let go, so that no burst of updates follows', let_go)
        self._random_to_restore = state['random']

    def restore_random(self) -> None:
        """The calling thread is the learner's: let its random generators go on from what was restored, if anything was.
        """
        self._stream = random_streams.current()
        if self._random_to_restore is not None:
            restore_random(self._random_to_restore)
            self._random_to_restore = None

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
        self.restore_random()
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
        interval = self._reanalyze.interval(budget)
        for done in range(budget):
            if not keep_going():
                if self._ahead is not None:
                    self._ahead.drop()
                return done
            if interval and done % interval == 0:
                self._reanalyze.now()
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
        trained = self._train_on(train_data)
        if trained is None:
            self._update_was_bad()
            return
        log_vars = trained[0]
        if self._cfg.use_priority:
            self._update_priority(train_data, log_vars)
        self._signals.add(log_vars)
        self.after_update(log_vars)

    def _train_on(self, train_data: List[Any]) -> Optional[List[Dict[str, Any]]]:
        """What the host says of the update; None if it was left out."""
        if self._guard is None:
            return self._host_train(train_data)
        trained: Optional[List[Dict[str, Any]]] = self._guard.update(train_data, self._host_train)
        return trained

    def _host_train(self, train_data: List[Any]) -> List[Dict[str, Any]]:
        log_vars: List[Dict[str, Any]] = self._learner.train(train_data, self._env_step)
        return log_vars

    def _update_was_bad(self) -> None:
        """After too many in a row go back to the weights of the last saved state; if no update is good then, give up.
        """
        assert self._guard is not None
        if self._guard.in_a_row < self._max_bad_updates:
            return
        state = self._last_good() if self._rolled_back_at != self.train_iter else None
        if state is None:
            tried = self._rolled_back_at == self.train_iter
            raise TooManyBadUpdates(
                f'the last {self._guard.in_a_row} updates were left out (max_bad_updates {self._max_bad_updates}), and '
                + ('going back to the last saved state did not help' if tried else 'no state is saved to go back to')
            )
        restore_policy(self._policy, state)
        self._rolled_back_at = self.train_iter
        self._guard.in_a_row = 0
        logger.error(
            'back to the weights of the last saved state: the last %d updates were left out', self._max_bad_updates
        )

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
