"""The evaluator of PriorZero: with the prior at the root, and one episode in words."""
from __future__ import annotations

from typing import Any, Dict, List, Optional

from ..core.protocols import Evaluation, KeepGoing
from ..core.weights import WeightSnapshot
from ..lightzero.evaluate import LightZeroEvaluator
from .readable import transcript
from .steps import PriorStep
from .text_aside import TextAside


class PriorZeroEvaluator(LightZeroEvaluator):
    def __init__(self, cfg: Any, seat: Any, env: Any, tb_logger: Any, save_live: Any) -> None:
        self._steps: List[PriorStep] = []
        self._told: Optional[int] = None  # the environment whose first episode is told
        self._over = False
        self._played: Dict[int, int] = {}
        super().__init__(cfg, seat, TextAside(env), tb_logger, save_live)

    def evaluate(self, snapshot: WeightSnapshot, keep_going: KeepGoing) -> Evaluation:
        self._steps, self._told, self._over, self._played = [], None, False, {}
        return super().evaluate(snapshot, keep_going)

    def _transcript(self) -> str:
        return transcript(self._steps)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        env_ids = list(kwargs['ready_env_id'])
        states = self._env.texts(env_ids)
        scores = self._seat.policy.see('eval', states)
        outputs = super()._forward(*args, **kwargs)
        if self._told is None:
            self._told = env_ids[0]
        if self._told in env_ids and not self._over:
            place = env_ids.index(self._told)
            own = self._seat.policy.world_model_logits('eval')[place]
            self._steps.append(PriorStep.chosen(states[place], scores[place], outputs[self._told], own))
        return outputs

    def _step_and_listen(self, actions: Dict[int, Any]) -> Dict[int, Any]:
        timesteps = super()._step_and_listen(actions)
        for env_id, timestep in timesteps.items():
            # As the host does for a policy of type unizero: caches are cleared now and then.
            played = self._played[env_id] = self._played.get(env_id, 0) + 1
            self._seat.policy.eval_mode.reset(env_id=env_id, current_steps=played, reset_init_data=False)
            if timestep.done:
                self._played[env_id] = 0
        if self._told in timesteps and not self._over:
            result = timesteps[self._told]
            self._steps[-1] = self._steps[-1].with_reward(float(result.reward))
            self._over = bool(result.done)
        return timesteps
