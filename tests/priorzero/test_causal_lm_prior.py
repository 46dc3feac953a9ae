"""A prior of the tiny model: what it says of states, how its weights travel, and what it remembers."""
import dataclasses
import json
import math

import pytest

pytest.importorskip('transformers')
pytest.importorskip('peft')

import torch
from tiny_priors import ACTIONS, a_prior, a_state, mean_log_probs, same_weights, samples_of

from lzero_async.checkpoints.errors import StateDamaged
from lzero_async.core.errors import ConfigError
from lzero_async.priorzero.causal_lm_prior import CausalLMPrior
from lzero_async.priorzero.prior_config import PriorConfig
from lzero_async.priorzero.priors import make_prior
from lzero_async.priorzero.text import TextState

MODES = ('lora', 'last_layers', 'all')


@pytest.fixture(scope='module')
def untrained():
    return a_prior(trainable=False, train='none')


def trained(**settings):
    """One that no longer is what was loaded."""
    prior = a_prior(**settings)
    prior.update(samples_of(prior.score([a_state()])[0], [1.0, -1.0, 0.5, 2.0]))
    assert prior.version == 1
    return prior


def counting(prior, monkeypatch):
    """How many states the model itself is asked about, call by call."""
    counts, ask = [], prior._scorer._log_probs

    def asked(questions):
        counts.append(len(questions))
        return ask(questions)

    monkeypatch.setattr(prior._scorer, '_log_probs', asked)
    return counts


# -------------------------------------------------------------------- scores


def test_scores_are_those_of_plain_passes_one_by_one(untrained):
    states = [a_state(0), a_state(3, ACTIONS[:2], turns=4), a_state(1, ('look',), turns=0)]
    model = untrained._part.model
    for state, scores in zip(states, untrained.score(states)):
        assert len(scores.actions) == len(state.valid_actions)
        for action in scores.actions:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([scores.prompt_ids + action.token_ids])).logits[0]
            rows = torch.log_softmax(logits, dim=-1)[len(scores.prompt_ids) - 1:-1]
            right = [row[token].item() for row, token in zip(rows, action.token_ids)]
            assert action.log_probs == pytest.approx(right, abs=1e-4)
        assert mean_log_probs(scores) == pytest.approx(
            [sum(action.log_probs) / len(action.token_ids) for action in scores.actions]
        )


def test_the_prior_is_a_softmax_of_means(untrained):
    scores, = untrained.score([a_state()])
    means = mean_log_probs(scores)
    total = math.log(sum(math.exp(mean) for mean in means))
    assert scores.log_prior == pytest.approx([mean - total for mean in means], abs=1e-6)
    assert math.fsum(math.exp(value) for value in scores.log_prior) == pytest.approx(1.0)
    sharp = a_prior(trainable=False, train='none', temperature=0.25).score([a_state()])[0].log_prior
    total = math.log(sum(math.exp(4 * mean) for mean in means))
    assert sharp == pytest.approx([4 * mean - total for mean in means], abs=1e-5)


def test_actions_are_in_the_order_of_the_state(untrained):
    tokenizer = untrained._scorer._prompts._tokenizer
    for actions in (ACTIONS, ACTIONS[::-1]):
        scores, = untrained.score([a_state(actions=actions)])
        assert tuple(tokenizer.decode(action.token_ids[:-1]) for action in scores.actions) == actions


def test_company_changes_nothing():
    states = [a_state(number, ACTIONS[:number + 1], turns=number) for number in range(4)]
    together = a_prior(False, train='none').score(states)
    for settings in ({}, {'max_batch_tokens': 1}, {'max_batch_tokens': 700}):
        prior = a_prior(False, train='none', **settings)
        for state, right in zip(states, together):
            alone, = prior.score([state])
            assert alone.prompt_ids == right.prompt_ids
            assert alone.log_prior == pytest.approx(right.log_prior, abs=1e-4)


def test_no_states_and_no_actions(untrained):
    assert untrained.score([]) == []
    with pytest.raises(ValueError, match='valid_actions must name an action at least'):
        untrained.score([TextState('The end.', ())])


def test_more_than_the_model_can_read_is_refused(untrained):
    with pytest.raises(ValueError, match=r'must fit into the 4096 tokens of llm tiny, got \d+ tokens, with 900 valid'):
        untrained.score([TextState('', tuple(f'press button number {index}' for index in range(900)))])


def test_weights_that_are_not_finite_raise_and_are_not_remembered():
    prior = a_prior(False, train='none')
    with torch.no_grad():
        prior._part.model.model.norm.weight.fill_(float('nan'))
    for _ in range(2):
        with pytest.raises(FloatingPointError, match='log-probabilities of llm tiny must be finite'):
            prior.score([a_state()])


# -------------------------------------------------------------------- memory


def test_known_states_are_not_scored_again(untrained, monkeypatch):
    counts = counting(untrained, monkeypatch)
    states = [a_state(11), a_state(12), a_state(11)]
    first = untrained.score(states)
    assert counts == [2] and first[0] is first[2]
    later = untrained.score([a_state(12), dataclasses.replace(a_state(11), moves=7, score=3.0)])
    assert counts == [2] and later == [first[1], first[0]]
    assert untrained.score([a_state(13), a_state(12)])[1] is first[1] and counts == [2, 1]
    untrained.score([a_state(12, ACTIONS[1:])])
    assert counts == [2, 1, 1]


def test_the_least_recently_used_is_forgotten(monkeypatch):
    prior = a_prior(False, train='none', cache_size=2)
    counts = counting(prior, monkeypatch)
    for number, expected in ((0, 1), (1, 2), (0, 2), (2, 3), (0, 3), (1, 4)):
        prior.score([a_state(number)])
        assert len(counts) == expected, number
    none = a_prior(False, train='none', cache_size=0)
    counts = counting(none, monkeypatch)
    assert none.score([a_state()]) == none.score([a_state()]) and len(counts) == 2


def test_new_weights_are_asked_anew_and_give_their_version(monkeypatch):
    prior = a_prior()
    old, = prior.score([a_state()])
    counts = counting(prior, monkeypatch)
    prior.update(samples_of(old, [1.0, -1.0]))
    new, = prior.score([a_state()])
    assert counts == [1] and (old.version, new.version) == (0, 1) and old.log_prior != new.log_prior
    prior.load_weights(prior.weights(), 5)
    again, = prior.score([a_state()])
    assert counts == [1, 1] and again.version == prior.version == 5
    assert again.log_prior == pytest.approx(new.log_prior, abs=1e-6)


# -------------------------------------------------------------------- weights on their way


@pytest.mark.parametrize('train', MODES)
def test_published_weights_say_the_same_elsewhere(train):
    source, target = trained(train=train), a_prior(trainable=False, train=train)
    states = [a_state(0), a_state(2)]
    before = [scores.log_prior for scores in target.score(states)]
    for round_ in range(3):  # each version is whole in itself, and leaves nothing of the one before
        target.load_weights(source.weights(), source.version)
        for mine, yours in zip(target.score(states), source.score(states)):
            # Not bit for bit: torch multiplies weights with and without gradients in different ways.
            assert mine.log_prior == pytest.approx(yours.log_prior, abs=1e-5)
            assert mine.prompt_ids == yours.prompt_ids and mine.version == yours.version == round_ + 1
            assert mine.log_prior != pytest.approx(before[0], abs=1e-3)
        source.update(samples_of(source.score(states)[0], [1.0, 0.0, -1.0]))
    assert source.trained and not target.trained


def test_weights_are_copies():
    prior = trained()
    weights = prior.weights()
    kept = {name: tensor.clone() for name, tensor in weights.items()}
    prior.update(samples_of(prior.score([a_state()])[0], [1.0, -1.0]))
    assert same_weights(weights, kept) and not same_weights(weights, prior.weights())
    assert not any(tensor.requires_grad for tensor in weights.values())


def test_only_what_is_trained_travels():
    sizes = {train: sum(map(torch.numel, a_prior(train=train).weights().values())) for train in (*MODES, 'none')}
    assert sizes['none'] == 0 < sizes['lora'] < sizes['last_layers'] < sizes['all']
    one_layer = a_prior(train='last_layers', last_layers=1).weights()
    assert 'model.norm.weight' in one_layer
    assert {name.split('.')[2] for name in one_layer if '.layers.' in name} == {'1'}
    with pytest.raises(ConfigError, match='last_layers must be <= 2, the layers of this model, got 3'):
        a_prior(train='last_layers', last_layers=3)


@pytest.mark.parametrize('harm, message', [
    (lambda weights, name: weights.pop(name), r'must have the names of its trained part, got \[.*norm.*\] missing'),
    (lambda weights, name: weights.update(extra=torch.ones(1)), r"\[\] missing and \['extra'\] unknown"),
    (lambda weights, name: weights.update({name: torch.ones(3)}), r'norm.* must be of shape \(64,\), got \(3,\)'),
    (lambda weights, name: weights.update({name: torch.full((64,), math.nan)}), r'norm.* must be finite'),
    (lambda weights, name: weights.update({name: torch.ones(64, dtype=torch.int64)}), r'floats, got torch.int64'),
    (lambda weights, name: weights.update({name: [1.0] * 64}), r'must be a tensor of floats, got list'),
])
def test_other_weights_are_refused_before_anything_changes(harm, message):
    source, target = trained(train='last_layers'), a_prior(trainable=False, train='last_layers')
    bad = source.weights()
    harm(bad, 'model.norm.weight')
    before, scores = target.weights(), target.score([a_state()])
    with pytest.raises(ValueError, match=message):
        target.load_weights(bad, 9)
    assert same_weights(target.weights(), before) and target.version == 0 and target.score([a_state()]) == scores


@pytest.mark.parametrize('weights', [None, [], 'weights', {1: 2}])
def test_what_is_no_weights_at_all(weights):
    with pytest.raises(ValueError, match='must have the names of its trained part'):
        a_prior(trainable=False).load_weights(weights, 1)


# -------------------------------------------------------------------- files


@pytest.mark.parametrize('train', (*MODES, 'none'))
def test_save_and_load(train, tmp_path):
    prior = a_prior(train='none') if train == 'none' else trained(train=train)
    for _ in range(2):
        prior.save(str(tmp_path / 'prior'))
    other = a_prior(trainable=False, train=train)
    other.load(str(tmp_path / 'prior'))
    assert other.version == prior.version and same_weights(other.weights(), prior.weights())
    names = sorted(file.name for file in (tmp_path / 'prior').iterdir())
    assert names == ['prior.json', f'prior_{prior.version:08d}.safetensors']


def test_only_the_last_version_stays(tmp_path):
    prior = trained()
    prior.save(str(tmp_path))
    prior.update(samples_of(prior.score([a_state()])[0], [1.0, -1.0]))
    prior.save(str(tmp_path))
    assert sorted(file.name for file in tmp_path.iterdir()) == ['prior.json', 'prior_00000002.safetensors']


def test_damaged_or_other_files_are_refused(tmp_path):
    prior = trained()
    prior.save(str(tmp_path))
    for other, message in (
        (a_prior(train='all'), r"train must be 'lora', as in .*, got 'all'"),
        (a_prior(lora_alpha=1.0), r'lora_alpha must be 16.0, as in .*, got 1.0'),
    ):
        with pytest.raises(ConfigError, match=message):
            other.load(str(tmp_path))
    target = a_prior()
    file = tmp_path / 'prior_00000001.safetensors'
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(StateDamaged, match='checksum'):
        target.load(str(tmp_path))
    manifest = json.loads((tmp_path / 'prior.json').read_text())
    manifest['file']['name'] = '../elsewhere.safetensors'
    (tmp_path / 'prior.json').write_text(json.dumps(manifest))
    with pytest.raises(StateDamaged, match='elsewhere'):
        target.load(str(tmp_path))
    for text in ('{', '{}', '[]'):
        (tmp_path / 'prior.json').write_text(text)
        with pytest.raises(StateDamaged, match=r'prior\.json'):
            target.load(str(tmp_path))
    with pytest.raises(StateDamaged, match='FileNotFoundError'):
        target.load(str(tmp_path / 'nowhere'))
    assert target.version == 0


# -------------------------------------------------------------------- making one


def test_the_same_seed_makes_the_same_adapters():
    random = torch.get_rng_state()
    one, same, other = a_prior(seed=1), a_prior(seed=1), a_prior(seed=2)
    assert torch.equal(torch.get_rng_state(), random)
    assert same_weights(one.weights(), same.weights()) and not same_weights(one.weights(), other.weights())
    assert one.score([a_state()])[0].log_prior == other.score([a_state()])[0].log_prior  # they change nothing yet


def test_devices():
    with pytest.raises(ConfigError, match="device must be 'cpu', 'cuda' or 'cuda:N', got 'tpu'"):
        CausalLMPrior(PriorConfig(llm='tiny'), 'tpu')
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"device must be 'cpu' where torch sees no CUDA device, got 'cuda'"):
            make_prior(PriorConfig(llm='tiny'), 'cuda')


def test_make_prior():
    prior = make_prior(PriorConfig(llm='tiny', backend='vllm'), trainable=True)  # training is always torch
    assert isinstance(prior, CausalLMPrior) and prior.trained
    assert 'knows nothing' in prior.description
    assert not make_prior(PriorConfig(llm='tiny')).trained
