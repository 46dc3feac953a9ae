"""PriorUpdater: trains a language model on the actions that were taken, by PPO."""
from __future__ import annotations

import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch

from ..torch_weights import copied
from .ppo import normalised, ppo_terms
from .prior_config import PriorConfig
from .text import PriorSample
from .token_scores import answer_log_probs
from .trained_part import TrainedPart

MEANS = ('loss', 'policy_loss', 'kl', 'ratio_mean', 'clip_fraction', 'grad_norm')


class PriorUpdater:
    """Owns the optimizer of a model's trained part. Used by one thread at a time."""

    def __init__(self, part: TrainedPart, config: PriorConfig) -> None:
        self._part = part
        self._config = config
        self._updates = 0
        self._optimizer: Optional[torch.optim.Optimizer] = None
        if part.parameters:
            self._optimizer = torch.optim.AdamW(
                list(part.parameters.values()), lr=config.step_size, weight_decay=0.0
            )

    def update(self, samples: Sequence[PriorSample]) -> Dict[str, float]:
        """Train on `samples`, or on max_samples drawn from them. `steps` tells how often the weights were changed.

        A minibatch whose loss or gradient is not finite changes nothing and is counted as `skipped`; the means are
        over the samples of the others. Nor does one change anything whose gradient is 0.
        """
        began = time.perf_counter()
        vocabulary = self._part.model.get_input_embeddings().num_embeddings
        for index, sample in enumerate(samples):
            _check(f'samples[{index}]', sample, vocabulary)
        used: List[int] = []
        batches: List[Optional[Dict[str, float]]] = []
        if self._optimizer is not None and samples:
            generator = torch.Generator().manual_seed(self._config.seed * 1_000_003 + self._updates)
            self._updates += 1
            used = torch.randperm(len(samples), generator=generator).tolist()[:self._config.max_samples]
            advantages = normalised(torch.tensor([sample.advantage for sample in samples]))[used]
            batches = self._train([samples[index] for index in used], advantages, generator)
        good = [batch for batch in batches if batch is not None]
        weight = sum(batch['samples'] for batch in good)
        report = {name: sum(batch[name] * batch['samples'] for batch in good) / max(1.0, weight) for name in MEANS}
        if not self._config.kl_weight:
            del report['kl']  # nobody has measured it
        report.update(
            samples=float(len(used)), left_out=float(len(samples) - len(used)), skipped=float(len(batches) - len(good)),
            steps=float(sum(batch['steps'] for batch in good)), seconds=time.perf_counter() - began,
        )
        return report

    def state(self) -> Dict[str, Any]:
        """A copy of all that the next update depends on, but for the weights."""
        optimizer = None if self._optimizer is None else copied(self._optimizer.state_dict())
        return {'updates': self._updates, 'optimizer': optimizer}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError or KeyError, and changes nothing, for a state of other parameters."""
        if (state['optimizer'] is None) != (self._optimizer is None):
            raise ValueError('the state of the optimizer must be there if and only if something is trained')
        updates = int(state['updates'])
        if self._optimizer is not None:
            optimizer = copied(dict(state['optimizer']))
            for group in optimizer['param_groups']:
                group['lr'] = self._config.step_size  # the config's, if it was changed since
            self._check_moments(optimizer)
            self._optimizer.load_state_dict(optimizer)
        self._updates = updates

    def _check_moments(self, optimizer: Mapping[str, Any]) -> None:
        for index, (name, parameter) in enumerate(self._part.parameters.items()):
            moments = optimizer['state'].get(index, {})
            for moment in (moments[key] for key in ('exp_avg', 'exp_avg_sq') if moments):
                if moment.shape != parameter.shape:
                    raise ValueError(
                        f'the optimizer\'s state of {name} must be of shape {tuple(parameter.shape)}, '
                        f'got {tuple(moment.shape)}'
                    )

    def _train(
        self, samples: Sequence[PriorSample], advantages: torch.Tensor, generator: torch.Generator
    ) -> List[Optional[Dict[str, float]]]:
        size = self._config.minibatch_size
        batches: List[Optional[Dict[str, float]]] = []
        reference = self._reference(samples) if self._config.kl_weight else [sample.log_probs for sample in samples]
        for epoch in range(self._config.epochs):
            order = list(range(len(samples)))
            if epoch > 0:  # at first in the order given, which is drawn, in the minibatches that the reference has seen
                order = torch.randperm(len(samples), generator=generator).tolist()
            for begin in range(0, len(order), size):
                chosen = order[begin:begin + size]
                batches.append(self._minibatch(
                    [samples[index] for index in chosen], [reference[index] for index in chosen], advantages[chosen]
                ))
        return batches

    def _reference(self, samples: Sequence[PriorSample]) -> Sequence[Sequence[float]]:
        """The log-probabilities by the model as it was loaded."""
        rows: List[List[float]] = []
        with torch.no_grad(), self._part.reference():
            for begin in range(0, len(samples), self._config.minibatch_size):
                batch = samples[begin:begin + self._config.minibatch_size]
                log_probs, _ = self._forward(batch)
                rows += [row[-len(sample.action_ids):].tolist() for row, sample in zip(log_probs, batch)]
        return rows

    def _forward(self, samples: Sequence[PriorSample]) -> Any:
        return answer_log_probs(
            self._part.model, [sample.prompt_ids for sample in samples], [sample.action_ids for sample in samples]
        )

    def _minibatch(
        self, samples: Sequence[PriorSample], reference: Sequence[Sequence[float]], advantages: torch.Tensor
    ) -> Optional[Dict[str, float]]:
        """One step, or None if there would have been no sense in it."""
        assert self._optimizer is not None
        self._optimizer.zero_grad(set_to_none=True)
        new, mask = self._forward(samples)
        rollout = _aligned([sample.log_probs for sample in samples], new)
        terms = ppo_terms(
            new, rollout, _aligned(reference, new), advantages.to(new), mask, self._config.clip_range
        )
        losses = terms.policy + self._config.kl_weight * terms.kl
        losses.mean().backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(list(self._part.parameters.values()), self._config.max_grad_norm)
        if not bool(losses.isfinite().all()) or not bool(norm.isfinite()):
            self._optimizer.zero_grad(set_to_none=True)
            return None
        steps = bool(norm > 0.0)
        if steps:
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        means = {
            'loss': losses, 'policy_loss': terms.policy, 'kl': terms.kl, 'ratio_mean': terms.ratio,
            'clip_fraction': terms.clipped,
        }
        return {
            **{name: float(values.detach().mean()) for name, values in means.items()},
            'grad_norm': float(norm), 'samples': float(len(samples)), 'steps': float(steps),
        }


def _aligned(rows: Sequence[Sequence[float]], like: torch.Tensor) -> torch.Tensor:
    """At the end of their rows, as the log-probabilities are."""
    width = like.shape[1]
    return torch.tensor([[0.0] * (width - len(row)) + list(row) for row in rows]).to(like)


def _check(name: str, sample: PriorSample, vocabulary: int) -> None:
    if not sample.prompt_ids or not sample.action_ids:
        raise ValueError(f'{name} must have a prompt and an action of at least one token each, got none')
    if len(sample.log_probs) != len(sample.action_ids):
        raise ValueError(
            f'{name}.log_probs must be one for each of {len(sample.action_ids)} action tokens, '
            f'got {len(sample.log_probs)}'
        )
    for ids in (sample.prompt_ids, sample.action_ids):
        if min(ids) < 0 or max(ids) >= vocabulary:
            raise ValueError(f'{name} must hold token ids from 0 to {vocabulary - 1}, got {min(ids)} to {max(ids)}')
