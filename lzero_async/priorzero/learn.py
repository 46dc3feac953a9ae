"""The learner of PriorZero: LightZero's, which also trains the prior, on what was played last."""
from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, List, Sequence

from ..core.protocols import RoundResult
from ..core.segments import Piece
from ..lightzero.learn import LightZeroLearner
from .advantages import n_step_advantages
from .steps import STEPS, PriorStep
from .text import PriorSample


class PriorZeroLearner(LightZeroLearner):
    """Every `prior_update_interval` rounds the prior is updated with the steps that came since, each of them once."""

    def __init__(self, cfg: Any, policy: Any, learner: Any, buffer: Any, tb_logger: Any, *args: Any, **kwargs: Any):
        super().__init__(cfg, policy, learner, buffer, tb_logger, *args, **kwargs)
        self._tb_logger = tb_logger
        self._interval = cfg.policy.get('prior_update_interval', 1)
        self._samples: List[PriorSample] = []

    def after_round(self, result: RoundResult) -> RoundResult:
        prior = self._policy.prior
        if self._samples and result.sufficient and self._finished_rounds % self._interval == 0:
            samples, self._samples = self._samples, []
            for name, value in prior.update(samples).items():
                self._tb_logger.add_scalar(f'Prior/{name}', value, self.train_iter)
            self._tb_logger.add_scalar('Prior/version', prior.version, self.train_iter)
        return super().after_round(result)

    def capture(self) -> Dict[str, Any]:
        return {**super().capture(), 'prior_samples': [asdict(sample) for sample in self._samples]}

    def restore(self, state: Dict[str, Any], pages: Sequence[Any]) -> None:
        super().restore(state, pages)
        self._samples = [
            PriorSample(
                tuple(sample['prompt_ids']), tuple(sample['action_ids']), tuple(sample['log_probs']),
                sample['advantage'], sample['version'],
            )
            for sample in state['prior_samples']
        ]

    def _store(self, pieces: Sequence[Piece]) -> None:
        if self._policy.trains_prior:
            for piece in pieces:
                for segment, facts in zip(*piece.segments):
                    self._samples += samples_of(segment, facts[STEPS], self._cfg.td_steps, self._cfg.discount_factor)
        super()._store(pieces)


def samples_of(segment: Any, steps: Sequence[PriorStep], td_steps: int, discount: float) -> List[PriorSample]:
    """What a segment's steps have to say to the prior. The segment is padded with what followed."""
    advantages = n_step_advantages(
        segment.reward_segment, segment.root_value_segment, [step.predicted_value for step in steps], td_steps, discount
    )
    return [
        PriorSample(
            prompt_ids=step.scores.prompt_ids,
            action_ids=step.scores.actions[step.action].token_ids,
            log_probs=step.scores.actions[step.action].log_probs,
            advantage=advantage,
            version=step.scores.version,
        )
        for step, advantage in zip(steps, advantages)
    ]
