"""Training the tiny model: which way probabilities go, what is skipped, and how it goes on after a restart."""
import dataclasses
import math

import pytest

pytest.importorskip('transformers')
pytest.importorskip('peft')

import torch
from tiny_priors import a_prior, a_state, mean_log_probs, same_weights, samples_of

from lzero_async.checkpoints import trees

MODES = ('lora', 'last_layers', 'all')


def scored(prior, number=0):
    return prior.score([a_state(number)])[0]


@pytest.mark.parametrize('train', MODES)
def test_good_actions_become_likelier_and_bad_ones_less_likely(train):
    prior = a_prior(train=train)
    before = scored(prior)
    report = prior.update(samples_of(before, [1.0, -1.0]))
    after = scored(prior)
    assert mean_log_probs(after)[0] > mean_log_probs(before)[0] + 1e-3
    assert mean_log_probs(after)[1] < mean_log_probs(before)[1] - 1e-3
    assert after.log_prior[0] > before.log_prior[0] and after.log_prior[1] < before.log_prior[1]
    assert report['steps'] == 1 and report['samples'] == 2 and report['skipped'] == report['left_out'] == 0
    assert report['grad_norm'] > 0 and report['seconds'] > 0 and prior.version == 1


@pytest.mark.parametrize('train', MODES)
def test_nothing_else_than_the_trained_part_changes(train):
    prior = a_prior(train=train)
    before = {name: tensor.clone() for name, tensor in prior._part.model.state_dict().items()}
    prior.update(samples_of(scored(prior), [1.0, -1.0]))
    changed = {name for name, tensor in prior._part.model.state_dict().items() if not torch.equal(tensor, before[name])}
    # A head that is tied to the embeddings shows under a second name.
    assert changed and changed - {'lm_head.weight'} <= set(prior.weights())


@pytest.mark.parametrize('train', MODES)
def test_at_the_weights_of_the_rollout_every_ratio_is_one(train):
    prior = a_prior(train=train)
    for version in range(3):
        samples = [
            sample for number in range(3) for sample in samples_of(scored(prior, number), [1.0, -2.0, 0.0, 3.0, 1.0])
        ][:8]
        assert len({len(sample.prompt_ids) for sample in samples}) > 1  # so that there is padding
        report = prior.update(samples)
        assert report['ratio_mean'] == pytest.approx(1.0, abs=1e-4) and report['clip_fraction'] == 0.0
        assert report['policy_loss'] == pytest.approx(-sum(_normalised(samples)) / 8, abs=1e-4)
        assert (report['kl'] == 0.0) == (version == 0) and report['kl'] >= 0.0
        assert report['loss'] == pytest.approx(report['policy_loss'] + 0.01 * report['kl'], abs=1e-6)


def _normalised(samples):
    values = [sample.advantage for sample in samples]
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / deviation for value in values]


def test_old_samples_are_clipped():
    prior = a_prior(learning_rate=0.02)
    old = samples_of(scored(prior), [1.0, -1.0])
    for _ in range(8):
        report = prior.update(old)
    assert report['clip_fraction'] > 0.5 and report['ratio_mean'] > 1.2
    # However far they go, the gain is bounded: -(1.2 * 1 + 0.8 * -1) / 2.
    assert -0.2 - 1e-6 <= report['policy_loss'] < -0.1


@pytest.mark.parametrize('train', MODES)
def test_the_divergence_pulls_back(train):
    away = a_prior(train=train, learning_rate=0.01)
    for _ in range(3):
        away.update(samples_of(scored(away), [1.0, -1.0]))
    held = a_prior(train=train, kl_weight=1.0)
    held.load_weights(away.weights(), 3)
    kls = [held.update(samples_of(scored(held), [0.0, 0.0]))['kl'] for _ in range(8)]
    assert kls[0] > 1e-3 and kls[-1] < kls[0] / 2
    loaded, back = mean_log_probs(scored(a_prior(train=train))), mean_log_probs(scored(held))
    drifted = mean_log_probs(scored(away))
    for index in range(2):
        assert abs(back[index] - loaded[index]) < abs(drifted[index] - loaded[index])


@pytest.mark.parametrize('train', MODES)
def test_nothing_to_learn_changes_nothing(train):
    prior = a_prior(train=train)
    before = prior.weights()
    for samples in ([], samples_of(scored(prior), [0.5, 0.5, 0.5]), samples_of(scored(prior), [2.0])):
        report = prior.update(samples)
        assert report['steps'] == 0 and report['samples'] == len(samples) and report['grad_norm'] == 0.0
    assert prior.version == 0 and same_weights(prior.weights(), before)


def test_without_a_divergence_none_is_claimed():
    prior = a_prior(train='all', kl_weight=0.0)
    report = prior.update(samples_of(scored(prior), [1.0, -1.0]))
    assert 'kl' not in report and report['loss'] == report['policy_loss'] and prior.version == 1


def test_train_none():
    prior = a_prior(train='none')
    report = prior.update(samples_of(scored(prior), [1.0, -1.0]))
    assert report['steps'] == report['samples'] == 0 and report['left_out'] == 2
    assert prior.version == 0 and prior.weights() == {} and not prior.trained
    prior.restore(trees.from_bytes(trees.to_bytes(prior.state())))
    prior.load_weights({}, 4)
    assert scored(prior).version == 4


def test_a_prior_for_scoring_is_not_trained():
    prior = a_prior(trainable=False)
    for call in (lambda: prior.update([]), prior.state, lambda: prior.restore({'weights': prior.weights(), 'version': 1,
                                                                               'trainer': {}})):
        with pytest.raises(RuntimeError, match='must be made with trainable=True'):
            call()
    assert not any(parameter.requires_grad for parameter in prior._part.model.parameters())


# -------------------------------------------------------------------- bounds and bad samples


def test_one_update_trains_on_so_many_samples_at_most():
    prior = a_prior(max_samples=3, minibatch_size=2, epochs=2)
    report = prior.update(samples_of(scored(prior), [1.0, -1.0, 2.0, -2.0, 0.0]))
    assert report['samples'] == 3 and report['left_out'] == 2
    assert report['steps'] == 4  # 2 + 1 samples, twice


def test_every_update_draws_anew():
    prior = a_prior(max_samples=1, learning_rate=1e-12)
    samples = samples_of(scored(prior), [0.0, 1.0, 2.0, 3.0, 4.0])
    losses = {round(prior.update(samples)['policy_loss'], 3) for _ in range(8)}
    assert len(losses) > 2 and losses <= {round(-value, 3) + 0.0 for value in _normalised(samples)}


@pytest.mark.parametrize('spoil', [
    lambda sample: dataclasses.replace(sample, log_probs=(-1e9,) * len(sample.log_probs)),
    lambda sample: dataclasses.replace(sample, log_probs=(math.nan,) * len(sample.log_probs)),
])
def test_what_is_not_finite_is_skipped_and_the_rest_is_trained(spoil):
    prior = a_prior(minibatch_size=1)
    samples = samples_of(scored(prior), [1.0, -1.0, -2.0])
    samples[2] = spoil(samples[2])
    report = prior.update(samples)
    assert report['skipped'] == 1 and report['steps'] == 2 and prior.version == 1
    assert all(math.isfinite(value) for value in report.values())
    assert all(tensor.isfinite().all() for tensor in prior.weights().values())
    scored(prior)


@pytest.mark.parametrize('advantage', [math.nan, math.inf])
def test_if_all_is_skipped_nothing_changes(advantage):
    prior = a_prior()
    before, state = prior.weights(), prior.state()['trainer']['optimizer']
    report = prior.update(samples_of(scored(prior), [1.0, advantage]))
    assert report['skipped'] == 1 and report['steps'] == 0 and report['samples'] == 2
    assert prior.version == 0 and same_weights(prior.weights(), before)
    assert prior.state()['trainer']['optimizer'] == state
    assert prior.update(samples_of(scored(prior), [1.0, -1.0]))['steps'] == 1  # and it goes on


def test_a_gradient_that_is_not_finite_is_skipped(monkeypatch):
    prior = a_prior()
    before = prior.weights()
    next(iter(prior._part.parameters.values())).register_hook(lambda gradient: gradient * math.inf)
    report = prior.update(samples_of(scored(prior), [1.0, -1.0]))
    assert report['skipped'] == 1 and prior.version == 0 and same_weights(prior.weights(), before)


@pytest.mark.parametrize('changes, message', [
    ({'log_probs': (-1.0,)}, r'samples\[1\].log_probs must be one for each of \d+ action tokens, got 1'),
    ({'action_ids': (), 'log_probs': ()}, r'samples\[1\] must have a prompt and an action of at least one token'),
    ({'prompt_ids': ()}, r'samples\[1\] must have a prompt and an action'),
    ({'prompt_ids': (3, 711)}, r'samples\[1\] must hold token ids from 0 to 710, got 3 to 711'),
    ({'prompt_ids': (-1,)}, r'samples\[1\] must hold token ids from 0 to 710, got -1 to -1'),
])
def test_samples_that_make_no_sense_are_refused(changes, message):
    prior = a_prior()
    samples = samples_of(scored(prior), [1.0, -1.0])
    samples[1] = dataclasses.replace(samples[1], **changes)
    with pytest.raises(ValueError, match=message):
        prior.update(samples)
    assert prior.version == 0


def test_gradients_are_clipped():
    # After one step, Adam's first moment is a tenth of the gradient.
    moments = []
    for one in (a_prior(max_grad_norm=1e-3), a_prior(max_grad_norm=1e9)):
        one.update(samples_of(scored(one), [1.0, -1.0]))
        optimizer = one.state()['trainer']['optimizer']['state']
        moments.append(math.sqrt(sum(float(entry['exp_avg'].square().sum()) for entry in optimizer.values())))
    assert moments[0] == pytest.approx(0.1 * 1e-3, rel=1e-3) and moments[1] > 10 * moments[0]


# -------------------------------------------------------------------- restarts


@pytest.mark.parametrize('train', MODES)
def test_a_restored_prior_goes_on_bit_for_bit(train):
    settings = dict(train=train, minibatch_size=2, max_samples=4, epochs=2)
    prior = a_prior(**settings)
    rollout = samples_of(scored(prior), [1.0, -1.0, 0.3, 2.0, -0.5])
    for _ in range(2):
        prior.update(rollout)
    restored = a_prior(**settings)
    restored.restore(trees.from_bytes(trees.to_bytes(prior.state())))
    assert restored.version == prior.version == 2 and same_weights(restored.weights(), prior.weights())
    for _ in range(2):
        reports = [dict(one.update(rollout)) for one in (prior, restored)]
        assert all(report.pop('seconds') > 0 for report in reports) and reports[0] == reports[1]
    assert same_weights(restored.weights(), prior.weights()) and scored(restored) == scored(prior)
    other = a_prior(**settings)
    other.load_weights(prior.weights(), 4)
    other.update(rollout)
    prior.update(rollout)
    assert not same_weights(other.weights(), prior.weights())  # the optimizer and the draw do matter


def test_a_state_is_a_copy():
    prior = a_prior()
    prior.update(samples_of(scored(prior), [1.0, -1.0]))
    state = prior.state()
    kept = trees.to_bytes(state)
    prior.update(samples_of(scored(prior), [1.0, -1.0]))
    assert trees.to_bytes(state) == kept


def test_the_learning_rate_is_that_of_the_config():
    prior = a_prior(learning_rate=0.001)
    prior.update(samples_of(scored(prior), [1.0, -1.0]))
    slower = a_prior(learning_rate=1e-9)
    slower.restore(prior.state())
    slower.update(samples_of(scored(slower), [-1.0, 1.0]))
    for name, tensor in slower.weights().items():
        assert torch.allclose(tensor, prior.weights()[name], atol=1e-7)


def test_the_state_of_another_prior_is_refused_before_anything_changes():
    prior = a_prior(train='last_layers', last_layers=1)
    prior.update(samples_of(scored(prior), [1.0, -1.0]))
    before = trees.to_bytes(prior.state())
    donor = a_prior(train='last_layers', last_layers=1)
    donor.update(samples_of(scored(donor), [-1.0, 1.0]))
    for harm in (
        lambda state: state['weights'].pop('model.norm.weight'),
        lambda state: state['trainer'].update(optimizer=None),
        lambda state: state['trainer'].pop('updates'),
        lambda state: state['trainer']['optimizer']['state'][0].update(exp_avg=torch.zeros(1)),
        lambda state: state['trainer']['optimizer']['param_groups'][0]['params'].pop(),
    ):
        state = donor.state()
        harm(state)
        with pytest.raises((ValueError, KeyError)):
            prior.restore(state)
        assert trees.to_bytes(prior.state()) == before and prior.version == 1
    with pytest.raises(ValueError, match='names of its trained part'):
        a_prior(train='lora').restore(donor.state())
