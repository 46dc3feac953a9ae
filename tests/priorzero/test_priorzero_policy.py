"""UniZero's real search with a prior at its root, and weights of both that travel together."""
import math

import pytest
import torch

pytest.importorskip('jericho')
pytest.importorskip('transformers')

from small_priorzero import collector_of, compiled, learner_policy

from lzero_async import ConfigError
from lzero_async.core.weights import WeightSnapshot
from lzero_async.lightzero.policies import RolePolicy, weight_source
from lzero_async.priorzero.no_prior import NoPrior
from lzero_async.priorzero.policy import VERSION
from lzero_async.priorzero.steps import STEPS
from lzero_async.priorzero.text import PriorSample, StateScores, TextState
from lzero_async.torch_weights import TorchWeights


@pytest.fixture(scope='module')
def cfg(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp('policy'))


@pytest.fixture
def policy(cfg):
    return learner_policy(cfg)


class Certain:
    """A prior that is sure of the last valid action."""

    version = 0

    def score(self, states):
        found = []
        for state in states:
            count = len(state.valid_actions)
            rest = math.log(0.03 / max(1, count - 1))
            found.append(StateScores((), (), (rest,) * (count - 1) + (math.log(0.97),), 0))
        return found


def visits_with(cfg, policy, mode):
    policy.prior = Certain()
    policy.mixing = type(policy.mixing)(mode)
    for root in policy._roots.values():
        root._mixing = policy.mixing
    cfg.policy.root_noise_weight = 0.0
    collector = collector_of(cfg, policy)
    try:
        shares = []
        real = collector._host._mode.forward

        def noted(*args, **kwargs):
            outputs = real(*args, **kwargs)
            for output in outputs.values():
                counts = output['visit_count_distributions']
                shares.append(counts[-1] / sum(counts))
            return outputs

        collector._host._mode = collector._host._mode._replace(forward=noted)
        for _ in range(4):
            collector._host._step(0, temperature=1.0, epsilon=0.0)
        return sum(shares) / len(shares)
    finally:
        collector.close()


def test_visit_counts_follow_the_prior(cfg, policy):
    assert visits_with(cfg, policy, 'llm_logits') >= 0.75
    assert visits_with(cfg, policy, 'wm_logits') < 0.6


def test_a_prior_counts_once(cfg, policy):
    state = TextState('A room.', ('north', 'south'))
    policy.see('collect', [state, state])
    root = policy._roots['collect']
    observations = torch.zeros(2, cfg.policy.model.observation_shape)
    first = root.initial_inference(observations, [-1, -1], observations, [torch.tensor(0)] * 2).policy_logits
    assert first.shape == (2, cfg.policy.model.action_space_size) and (first[:, 2:] < -1e8).all()
    second = root.initial_inference(observations, [-1, -1], observations, [torch.tensor(0)] * 2).policy_logits
    assert (second > -1e8).all()


def updated(policy):
    state = TextState('A dark room.', ('north', 'take lamp'))
    scores = policy.prior.score([state])[0]
    chosen = scores.actions[0]
    policy.prior.update([
        PriorSample(scores.prompt_ids, chosen.token_ids, chosen.log_probs, advantage, 0) for advantage in (1.0, -1.0)
    ])
    return state


def test_both_weights_reach_another_role(cfg, policy):
    role = RolePolicy.beside(policy, 'collect', 'cpu', accelerate=True)
    state = updated(policy)
    assert policy.prior.version == 1 and role.policy.prior.version == 0
    before = role.policy.prior.score([state])[0]
    published = TorchWeights().read(weight_source(policy))
    assert int(published[VERSION]) == 1
    role.load_weights(published, 7)
    after, own = role.policy.prior.score([state])[0], policy.prior.score([state])[0]
    assert after.log_prior == pytest.approx(own.log_prior, abs=1e-6) and after.version == 1
    assert after.log_prior != pytest.approx(before.log_prior, abs=1e-9)
    for name, tensor in policy._learn_model._orig_mod.state_dict().items():
        assert torch.equal(role.policy._model.state_dict()[name], tensor), name


def test_weights_that_do_not_fit_are_refused(policy, cfg):
    role = RolePolicy.beside(policy, 'eval', 'cpu', accelerate=False)
    published = TorchWeights().read(weight_source(policy))
    name = next(key for key in published if key.startswith('prior.'))
    broken = {**published, VERSION: torch.tensor(5), name: torch.zeros(1, 1)}
    with pytest.raises((ValueError, Exception), match='shape'):
        role.load_weights(broken, 7)
    assert role.policy.prior.version == 0


def test_a_checkpoint_holds_the_prior(cfg, policy, tmp_path):
    state = updated(policy)
    torch.save(policy.learn_mode.state_dict(), tmp_path / 'ckpt.pth.tar')
    other = learner_policy(cfg)
    other.learn_mode.load_state_dict(torch.load(tmp_path / 'ckpt.pth.tar'))
    assert other.prior.version == 1
    assert other.prior.score([state])[0].log_prior == pytest.approx(policy.prior.score([state])[0].log_prior, abs=1e-6)


def test_a_checkpoint_of_lightzeros_own_loads(policy, tmp_path):
    from lzero.policy.unizero import UniZeroPolicy

    theirs = UniZeroPolicy(compiled(tmp_path).policy, enable_field=['learn'])
    saved = theirs.learn_mode.state_dict()
    assert any('.model.embeddings' in name for name in saved['model']) and 'prior' not in saved
    policy.learn_mode.load_state_dict(saved)
    own = policy.learn_mode.state_dict()
    for which in ('model', 'target_model'):
        assert own[which] and all(torch.equal(saved[which][name], tensor) for name, tensor in own[which].items())


def test_a_checkpoint_of_a_run_without_a_prior_loads(cfg, policy):
    policy.learn_mode.load_state_dict({**policy.learn_mode.state_dict(), 'prior': {}})


def test_a_checkpoint_of_another_kind_of_prior_is_refused(cfg, policy, tmp_path):
    other = compiled(tmp_path)
    other.policy.prior.lora_rank = 4
    with pytest.raises(ConfigError, match=r'policy\.prior must be as in the run that saved the weights'):
        learner_policy(other).learn_mode.load_state_dict(policy.learn_mode.state_dict())


def test_weights_that_go_back_get_a_version_of_their_own(cfg, policy):
    saved = policy.learn_mode.state_dict()
    updated(policy)
    published = TorchWeights().read(weight_source(policy))
    policy.learn_mode.load_state_dict(saved)
    assert policy.prior.version == 2  # 1 is known to others as what was thrown away
    role = RolePolicy.beside(policy, 'collect', 'cpu', accelerate=False)
    role.load_weights(published, 5)
    role.load_weights(TorchWeights().read(weight_source(policy)), 6)
    state = TextState('A dark room.', ('north', 'take lamp'))
    assert role.policy.prior.score([state])[0].log_prior == policy.prior.score([state])[0].log_prior


def test_without_a_prior_no_language_model_is_loaded(tmp_path):
    cfg = compiled(tmp_path, root_prior={'mode': 'wm_logits'})
    cfg.policy.prior.train = 'none'
    policy = learner_policy(cfg)
    assert isinstance(policy.prior, NoPrior)
    collector = collector_of(cfg, policy)
    try:
        collected = collector.collect(WeightSnapshot(0, 0, None), lambda: True)
        assert all(facts[STEPS][0].scores.prompt_ids == () for piece in collected.pieces for facts in piece.segments[1])
    finally:
        collector.close()
