"""PriorZeroPolicy: UniZero's policy with a language model's opinion at the root of its searches."""
from __future__ import annotations

import logging
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from ding.utils import POLICY_REGISTRY
from lzero.policy.unizero import UniZeroPolicy

from ..core.errors import ConfigError
from ..torch_weights import load_module
from .mixing import RootMixing
from .no_prior import NoPrior
from .prior_config import PriorConfig
from .priors import make_prior
from .text import StateScores, TextState

PRIOR = 'prior.'
"""The names of the prior's weights begin with it, where they are published beside the world model's."""
VERSION = 'prior_version'
ENCODER = '.model.'
"""In the names of the text encoder's weights, in checkpoints of LightZero's own."""

logger = logging.getLogger(__name__)


class RootModel:
    """A model whose initial inference answers with the mixed policy. All else is the model's own."""

    def __init__(self, model: Any, mixing: RootMixing) -> None:
        self._model = model
        self._mixing = mixing
        self.log_priors: Optional[Sequence[Sequence[float]]] = None
        """Of the states of the next inference; None: the world model alone."""
        self.world_model_logits: Optional[np.ndarray] = None
        """Of the last one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def initial_inference(self, *args: Any, **kwargs: Any) -> Any:
        output = self._model.initial_inference(*args, **kwargs)
        own = output.policy_logits.detach().cpu().numpy()
        self.world_model_logits = own
        log_priors, self.log_priors = self.log_priors, None
        if log_priors is not None:
            output.policy_logits = torch.from_numpy(self._mixing.logits(own, log_priors))
        return output


@POLICY_REGISTRY.register('priorzero')
class PriorZeroPolicy(UniZeroPolicy):  # type: ignore[misc]
    """Call `see` with what the environments say before each forward of collect or eval.

    The learner's policy has the prior that is trained; those of other roles take over what it publishes. Weights of
    world model and prior are published together, so one version and one bound on staleness hold for both.
    """

    config: ClassVar[Dict[str, Any]] = {
        **UniZeroPolicy.config,
        'type': 'priorzero',
        'prior': {},
        'root_prior': {},
        'prior_update_interval': 1,
        'prior_debug': False,
    }

    def __init__(
        self, cfg: Any, model: Optional[torch.nn.Module] = None, enable_field: Optional[List[str]] = None
    ) -> None:
        self.mixing = RootMixing.of(cfg.get('root_prior', {}))
        fields = enable_field or ['learn', 'collect', 'eval']
        prior_config = PriorConfig.from_mapping(cfg.get('prior', {}))
        self.trains_prior = 'learn' in fields and prior_config.train != 'none'
        if self.mixing.needs_prior or prior_config.train != 'none':
            self.prior: Any = make_prior(prior_config, cfg.device, trainable='learn' in fields)
        else:
            self.prior = NoPrior()
        self._roots: Dict[str, RootModel] = {}
        super().__init__(cfg, model, enable_field)

    def default_model(self) -> Tuple[str, List[str]]:
        return 'PriorZeroModel', ['lzero_async.priorzero.model']

    def see(self, field: str, states: Sequence[TextState]) -> List[StateScores]:
        """What the prior says of the states that the next forward of `field` ('collect' or 'eval') is about."""
        scores: List[StateScores] = self.prior.score(states)
        self._roots[field].log_priors = [one.log_prior for one in scores]
        return scores

    def world_model_logits(self, field: str) -> np.ndarray:
        """Of the last forward: the world model's own opinion, before it was mixed."""
        logits = self._roots[field].world_model_logits
        assert logits is not None
        return logits

    # ---------------------------------------------------------------- weights

    def get_weights(self) -> Dict[str, Any]:
        """Of world model and prior, as they are published."""
        model: Any = getattr(self._learn_model, '_orig_mod', self._learn_model)
        prior = {PRIOR + name: tensor for name, tensor in self.prior.weights().items()}
        return {**model.state_dict(), **prior, VERSION: torch.tensor(self.prior.version)}

    def load_weights(self, weights: Mapping[str, Any], policy_version: int) -> None:
        version = int(weights[VERSION])
        prior = {name[len(PRIOR):]: tensor for name, tensor in weights.items() if name.startswith(PRIOR)}
        rest = {name: weights[name] for name in weights if not name.startswith(PRIOR) and name != VERSION}
        if version != self.prior.version:
            self.prior.load_weights(prior, version)
        load_module(self._model, rest)

    # ---------------------------------------------------------------- for the host

    def _init_collect(self) -> None:
        super()._init_collect()
        self._collect_model = self._roots['collect'] = RootModel(self._model, self.mixing)

    def _init_eval(self) -> None:
        super()._init_eval()
        self._eval_model = self._roots['eval'] = RootModel(self._model, self.mixing)

    def _state_dict_learn(self) -> Dict[str, Any]:
        return {**super()._state_dict_learn(), 'prior': self.prior.state()}

    def _load_state_dict_learn(self, state_dict: Dict[str, Any]) -> None:
        if any(ENCODER in name for name in state_dict['model']):
            self._load_of_lightzero(state_dict)
        else:
            super()._load_state_dict_learn(state_dict)
        if not state_dict.get('prior'):  # of a run without one
            return
        try:
            self.prior.restore(state_dict['prior'])
        except ValueError as error:
            raise ConfigError(f'policy.prior must be as in the run that saved the weights: {error}') from error

    def _load_of_lightzero(self, state_dict: Dict[str, Any]) -> None:
        """A checkpoint of LightZero's own, which holds the text encoder, too."""
        for name, model in (('model', self._learn_model), ('target_model', self._target_model)):
            weights = {key: tensor for key, tensor in state_dict[name].items() if ENCODER not in key}
            model.load_state_dict(weights)
        logger.warning('the optimizer begins anew: the one of the checkpoint also trained the text encoder')
