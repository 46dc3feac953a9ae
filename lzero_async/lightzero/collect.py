"""The collector: LightZero's segment collector, one batch at a time, with the weights of one snapshot."""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple, Union

import numpy as np
from ding.rl_utils import get_epsilon_greedy_fn
from lzero.policy import visit_count_temperature
from lzero.worker import MuZeroSegmentCollector

from ..core.errors import Stopped
from ..core.protocols import KeepGoing
from ..core.segments import Collected, Piece
from ..core.weights import WeightSnapshot
from . import random_states
from .policies import RolePolicy, SharedPolicy
from .replay.buffer_memory import array_bytes
from .sound_steps import checked

Forward = Callable[..., Dict[int, Dict[str, Any]]]


class LightZeroCollector:
    """`core.protocols.Collector` over MuZeroSegmentCollector.

    The host hands over each environment's last full segment only when the next one is full, often a collect later.
    With `by_version` such segments are pieces of their own, under the version that played them.

    To subclass: override `before_collect` and `after_collect`, and hand the class to `run_training`.
    """

    def __init__(
        self, seat: Union[SharedPolicy, RolePolicy], env: Any, tb_logger: Any, exp_name: str, by_version: bool = True,
        name: str = 'collector',
    ) -> None:
        self._seat = seat
        self._env = env
        env.step = checked(env.step)
        self._cfg = seat.policy_cfg
        self._by_version = by_version
        self._kept_back: Dict[int, int] = {}  # id of a segment that the host keeps back -> the version that played it
        self._keep_going: KeepGoing = lambda: True
        self._random_to_restore: Any = None
        mode = seat.policy.collect_mode
        self._search: Forward = mode.forward
        self._mode = mode._replace(forward=self._forward)
        self._random_mode = mode._replace(forward=self._random_forward)
        self._host = self._make_host(tb_logger, exp_name, name)

    def _make_host(self, tb_logger: Any, exp_name: str, name: str) -> Any:
        """What plays: a MuZeroSegmentCollector, or what can be used as one."""
        return MuZeroSegmentCollector(
            env=self._env, policy=self._mode, tb_logger=tb_logger, exp_name=exp_name, instance_name=name,
            policy_config=self._cfg,
        )

    @property
    def device(self) -> str:
        return self._seat.device

    def load_weights(self, weights: Any, policy_version: int) -> None:
        self._seat.load_weights(weights, policy_version)

    def restore_random(self, state: Any) -> None:
        """Go on from the `random_state` of an earlier collect, with the next one."""
        self._random_to_restore = state

    def collect(self, snapshot: WeightSnapshot, keep_going: KeepGoing) -> Collected:
        if self._random_to_restore is not None:
            random_states.restore_caller(self._random_to_restore)
            self._random_to_restore = None
        self._keep_going = keep_going
        self.before_collect(snapshot)
        version = snapshot.policy_version
        exploration = {'temperature': self._temperature(version), 'epsilon': self._epsilon(snapshot.env_step)}
        return self.after_collect(self._collect(version, version, exploration))

    def collect_random(self, policy_version: int, keep_going: KeepGoing = lambda: True) -> Collected:
        """One batch of random legal actions, each stored with what the search said of its state."""
        self._keep_going = keep_going
        self._host.reset_policy(self._random_mode)
        collected = self._collect(policy_version, 0, {'temperature': 1, 'epsilon': 0.0})
        self._host.reset_policy(self._mode)
        return collected

    def before_collect(self, snapshot: WeightSnapshot) -> None:
        """For subclasses: called in the collector's thread before each collect, with its weights loaded."""

    def after_collect(self, collected: Collected) -> Collected:
        """For subclasses: called in the collector's thread after each collect; what it returns goes to the learner."""
        return collected

    def close(self) -> None:
        """Close the environments. The host's own close() would also close the TensorBoard log of the whole run."""
        self._host._end_flag = True
        self._env.close()

    def _collect(self, version: int, train_iter: int, exploration: Dict[str, float]) -> Collected:
        before = self._host.envstep
        segments = self._host.collect(train_iter=train_iter, policy_kwargs=exploration)
        return Collected(self._pieces(segments, version), self._host.envstep - before, random_states.of_caller())

    def _pieces(self, segments: Tuple[List[Any], List[Any]], version: int) -> Tuple[Piece, ...]:
        kept_back, by_version = self._kept_back, {}  # type: Dict[int, int], Dict[int, Tuple[List[Any], List[Any]]]
        for segment, facts in zip(*segments):
            played_by = kept_back.get(id(segment), version) if self._by_version else version
            of_version = by_version.setdefault(played_by, ([], []))
            of_version[0].append(segment)
            of_version[1].append(facts)
        # Only now may an id be of use again: until here every segment of `kept_back` was alive.
        self._kept_back = {
            id(segment): kept_back.get(id(segment), version)
            for segment in self._host.last_game_segments if segment is not None
        }
        return tuple(self._piece(played_by, of_version) for played_by, of_version in by_version.items())

    def _piece(self, version: int, segments: Tuple[List[Any], List[Any]]) -> Piece:
        length = self._cfg.game_segment_length
        return Piece(
            version,
            segments,
            transitions=sum(min(len(segment), length) for segment in segments[0]),
            nbytes=sum(array_bytes(segment) for segment in segments[0]),
        )

    def _temperature(self, train_iter: int) -> float:
        temperature: float = visit_count_temperature(
            self._cfg.manual_temperature_decay,
            self._cfg.fixed_temperature_value,
            self._cfg.threshold_training_steps_for_final_temperature,
            trained_steps=train_iter,
        )
        return temperature

    def _epsilon(self, env_step: int) -> float:
        eps = self._cfg.eps
        if not eps.eps_greedy_exploration_in_collect:
            return 0.0
        decayed = get_epsilon_greedy_fn(start=eps.start, end=eps.end, decay=eps.decay, type_=eps.type)
        return float(decayed(env_step))

    def _forward(self, *args: Any, **kwargs: Any) -> Dict[int, Dict[str, Any]]:
        # Between two steps is the one place where a collect can be left.
        self._check_wanted()
        return self._search(*args, **kwargs)

    def _check_wanted(self) -> None:
        if not self._keep_going():
            raise Stopped('the collect was left before its end')

    def _random_forward(self, data: Any, action_mask: Any, *args: Any, **kwargs: Any) -> Dict[int, Dict[str, Any]]:
        outputs = self._search(data, action_mask, *args, **kwargs)
        for mask, output in zip(action_mask, outputs.values()):
            if self._cfg.model.continuous_action_space:
                output['action'] = self._env.action_space.sample()
            else:
                output['action'] = int(np.random.choice(np.flatnonzero(mask)))
        # UniZero conditions its next root on the action that it believes was taken.
        self._seat.policy.last_batch_action = [output['action'] for output in outputs.values()]
        return outputs
