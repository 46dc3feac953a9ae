"""The evaluator: LightZero's own, on one snapshot, which it saves if it is the best so far."""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Union

from lzero.worker import MuZeroEvaluator

from ..core.errors import Stopped
from ..core.protocols import Evaluation, KeepGoing
from ..core.weights import WeightSnapshot
from .checkpoint import save_checkpoint
from .policies import RolePolicy, SharedPolicy
from .sound_steps import checked

BEST_CHECKPOINT = 'ckpt_best.pth.tar'


class EvaluationInterval:
    """When an evaluation falls due, as MuZeroEvaluator counts it; for an evaluator that works elsewhere."""

    def __init__(self, eval_freq: int) -> None:
        self._eval_freq = eval_freq
        self._last = 0

    @property
    def last(self) -> int:
        return self._last

    def restore(self, last: int) -> None:
        self._last = last

    def due(self, train_iter: int) -> bool:
        if train_iter == self._last or train_iter - self._last < self._eval_freq:
            return False
        self._last = train_iter
        return True


class LightZeroEvaluator:
    """`core.protocols.Evaluator` over MuZeroEvaluator. `save_live` saves the learner as it stands, for a shared policy.
    """

    def __init__(
        self, cfg: Any, seat: Union[SharedPolicy, RolePolicy], env: Any, tb_logger: Any,
        save_live: Callable[[str], None],
    ) -> None:
        self._seat = seat
        self._env = env
        self._exp_name = cfg.exp_name
        self._save_live = save_live
        self._keep_going: KeepGoing = lambda: True
        self._returns: List[float] = []
        self._step = checked(env.step)
        env.step = self._step_and_listen  # the host keeps the mean of the returns only
        mode = seat.policy.eval_mode
        self._search = mode.forward
        self._host = MuZeroEvaluator(
            eval_freq=cfg.policy.eval_freq,
            n_evaluator_episode=cfg.env.n_evaluator_episode,
            stop_value=cfg.env.stop_value,
            env=env,
            policy=mode._replace(forward=self._forward),
            tb_logger=tb_logger,
            exp_name=cfg.exp_name,
            policy_config=seat.policy_cfg,
        )

    @property
    def device(self) -> str:
        return self._seat.device

    def load_weights(self, weights: Any, policy_version: int) -> None:
        self._seat.load_weights(weights, policy_version)

    def due(self, train_iter: int) -> bool:
        return bool(self._host.should_eval(train_iter))

    def state(self) -> Dict[str, Any]:
        return {'last_eval_iter': int(self._host._last_eval_iter), 'best': float(self._host._max_episode_return)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._host._last_eval_iter, self._host._max_episode_return = state['last_eval_iter'], state['best']

    def evaluate(self, snapshot: WeightSnapshot, keep_going: KeepGoing) -> Evaluation:
        self._keep_going = keep_going
        self._returns = []
        best_before = self._host._max_episode_return

        def save(name: str) -> None:
            if snapshot.learner_state is None:
                self._save_live(name)
            else:
                save_checkpoint(snapshot.learner_state, self._exp_name, name)

        stop, episodes = self._host.eval(save, snapshot.policy_version, snapshot.env_step)
        reward = float(episodes['eval_episode_return_mean'])
        return Evaluation(
            snapshot.policy_version, snapshot.env_step, reward, bool(reward > best_before), bool(stop),
            tuple(self._returns), self._transcript(),
        )

    def _transcript(self) -> str:
        """For subclasses: the first episode of the last evaluation, in words."""
        return ''

    def close(self) -> None:
        """Close the environments; see LightZeroCollector.close."""
        self._host._end_flag = True
        self._env.close()

    def _step_and_listen(self, actions: Dict[int, Any]) -> Dict[int, Any]:
        timesteps: Dict[int, Any] = self._step(actions)
        self._returns += [
            float(timestep.info['eval_episode_return']) for timestep in timesteps.values()
            if timestep.done and 'eval_episode_return' in timestep.info
        ]
        return timesteps

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self._keep_going():
            raise Stopped('the evaluation was left before its end')
        return self._search(*args, **kwargs)
