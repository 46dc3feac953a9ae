"""The learner of PriorZero: LightZero's, which also trains the prior, on what was played last."""
from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, List, Sequence

from ..core.protocols import KeepGoing, RoundResult
from ..core.segments import SegmentBatch
from ..lightzero.learn import LightZeroLearner
from .advantages import n_step_advantages
from .steps import STEPS, PriorStep
from .text import PriorSample

MOST_WAITING = 4096
"""Steps that wait for an update of the prior; of more, the newest."""


class PriorZeroLearner(LightZeroLearner):
    """Every `prior_update_interval` rounds the prior is updated with the steps that came since, each of them once.

    Never without an update of the world model: versions are told apart by those.
    """

    def __init__(self, cfg: Any, policy: Any, learner: Any, buffer: Any, tb_logger: Any, *args: Any, **kwargs: Any):
        super().__init__(cfg, policy, learner, buffer, tb_logger, *args, **kwargs)
        self._tb_logger = tb_logger
        self._interval = cfg.policy.get('prior_update_interval', 1)
        self._samples: List[PriorSample] = []
        self._prior_updated_at = 0
        self._left_early = False

    def admit(self, batch: SegmentBatch) -> None:
        super().admit(batch)
        if self._policy.trains_prior:
            for piece in batch.pieces:
                for segment, facts in zip(*piece.segments):
                    self._samples += samples_of(segment, facts[STEPS], self._cfg.td_steps, self._cfg.discount_factor)
            del self._samples[:-MOST_WAITING]

    def after_round(self, result: RoundResult) -> RoundResult:
        due = self._finished_rounds % self._interval == 0 and self.train_iter > self._prior_updated_at
        if self._samples and due and not self._left_early:
            self._update_prior()
        return super().after_round(result)

    def _update_prior(self) -> None:
        prior, samples = self._policy.prior, self._samples
        self._samples, self._prior_updated_at = [], self.train_iter
        for name, value in prior.update(samples).items():
            self._tb_logger.add_scalar(f'Prior/{name}', value, self.train_iter)
        self._tb_logger.add_scalar('Prior/version', prior.version, self.train_iter)

    def _update(self, budget: int, keep_going: KeepGoing) -> int:
        done = super()._update(budget, keep_going)
        self._left_early = done < budget
        return done

    def capture(self) -> Dict[str, Any]:
        return {**super().capture(), 'prior_samples': [asdict(sample) for sample in self._samples]}

    def restore(self, state: Dict[str, Any], pages: Sequence[Any]) -> None:
        super().restore(state, pages)
        self._prior_updated_at = self.train_iter
        self._samples = [
            PriorSample(
                tuple(sample['prompt_ids']), tuple(sample['action_ids']), tuple(sample['log_probs']),
                sample['advantage'], sample['version'],
            )
            for sample in state['prior_samples']
        ]


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
