"""The collector: LightZero's segment collector, one batch at a time, with the weights of one snapshot."""
from __future__ import annotations

from typing import Any, Callable, Dict, Union

import numpy as np
from ding.rl_utils import get_epsilon_greedy_fn
from lzero.policy import visit_count_temperature
from lzero.worker import MuZeroSegmentCollector

from ..core.errors import Stopped
from ..core.protocols import KeepGoing
from ..core.segments import Collected
from ..core.weights import WeightSnapshot
from .policies import RolePolicy, SharedPolicy

Forward = Callable[..., Dict[int, Dict[str, Any]]]


class LightZeroCollector:
    """`core.protocols.Collector` over MuZeroSegmentCollector."""

    def __init__(self, seat: Union[SharedPolicy, RolePolicy], env: Any, tb_logger: Any, exp_name: str) -> None:
        self._seat = seat
        self._env = env
        self._cfg = seat.policy_cfg
        self._keep_going: KeepGoing = lambda: True
        mode = seat.policy.collect_mode
        self._search: Forward = mode.forward
        self._mode = mode._replace(forward=self._forward)
        self._random_mode = mode._replace(forward=self._random_forward)
        self._host = MuZeroSegmentCollector(
            env=env, policy=self._mode, tb_logger=tb_logger, exp_name=exp_name, policy_config=self._cfg
        )

    def collect(self, snapshot: WeightSnapshot, keep_going: KeepGoing) -> Collected:
        self._keep_going = keep_going
        self._seat.load(snapshot)
        exploration = {'temperature': self._temperature(snapshot.policy_version), 'epsilon': self._epsilon()}
        return self._collected(self._host.collect(train_iter=snapshot.policy_version, policy_kwargs=exploration))

    def collect_random(self, snapshot: WeightSnapshot) -> Collected:
        """One batch of random legal actions, each stored with what the search said of its state."""
        self._seat.load(snapshot)
        self._host.reset_policy(self._random_mode)
        segments = self._host.collect(train_iter=0, policy_kwargs={'temperature': 1, 'epsilon': 0.0})
        self._host.reset_policy(self._mode)
        return self._collected(segments)

    def close(self) -> None:
        """Close the environments. The host's own close() would also close the TensorBoard log of the whole run."""
        self._host._end_flag = True
        self._env.close()

    def _collected(self, segments: Any) -> Collected:
        length = self._cfg.game_segment_length
        transitions = sum(min(len(segment), length) for segment in segments[0])
        return Collected(segments, transitions, self._host.envstep)

    def _temperature(self, train_iter: int) -> float:
        temperature: float = visit_count_temperature(
            self._cfg.manual_temperature_decay,
            self._cfg.fixed_temperature_value,
            self._cfg.threshold_training_steps_for_final_temperature,
            trained_steps=train_iter,
        )
        return temperature

    def _epsilon(self) -> float:
        eps = self._cfg.eps
        if not eps.eps_greedy_exploration_in_collect:
            return 0.0
        decayed = get_epsilon_greedy_fn(start=eps.start, end=eps.end, decay=eps.decay, type_=eps.type)
        return float(decayed(self._host.envstep))

    def _forward(self, *args: Any, **kwargs: Any) -> Dict[int, Dict[str, Any]]:
        # Between two steps is the one place where a collect can be left.
        if not self._keep_going():
            raise Stopped('the collect was left before its end')
        return self._search(*args, **kwargs)

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
