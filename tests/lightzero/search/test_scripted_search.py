"""The scripted functions compute what LightZero's modules compute, on the inputs of real searches."""
import copy

import numpy as np
import pytest
import torch
from real_parts import compiled, learner_policy, make_collector, snapshot_of

from lzero_async.lightzero.search.scripted_search import inverse_categorical, use_scripted_search


class Recorder:
    """Stands in for a transformer's forward, and keeps what it was called with."""

    def __init__(self, transformer):
        self._forward = transformer.forward
        self.calls = []

    def __call__(self, sequences, past_keys_values=None, valid_context_lengths=None, start_pos=0):
        if past_keys_values is not None:
            self.calls.append((sequences.clone(), copy.deepcopy(past_keys_values), copy.deepcopy(start_pos)))
        return self._forward(sequences, past_keys_values, valid_context_lengths, start_pos=start_pos)


@pytest.fixture(scope='module', params=[True, False], ids=['rotary', 'absolute'])
def searched(request, tmp_path_factory):
    """A policy after a real collect, and all calls of its transformer on the way."""
    cfg = compiled(tmp_path_factory.mktemp('scripted'))
    cfg.policy.model.world_model_cfg.update(rotary_emb=request.param, num_layers=2)
    policy = learner_policy(cfg)
    collector = make_collector(cfg, policy)
    role_policy = collector._seat.policy
    transformer = role_policy._model.world_model.transformer
    transformer.forward = recorder = Recorder(transformer)
    try:
        collector.collect(snapshot_of(policy), lambda: True)
    finally:
        collector.close()
    del transformer.forward
    return role_policy, recorder.calls


def caches(keys_values):
    return [tensor for layer in keys_values._keys_values for tensor in (layer._k_cache._cache, layer._v_cache._cache)]


def test_every_pass_of_a_real_collect(searched):
    policy, calls = searched
    assert len(calls) > 100
    plain = copy.deepcopy(policy._model.world_model.transformer).eval()
    scripted = copy.deepcopy(policy)
    use_scripted_search(scripted, 'collect')
    scripted_forward = scripted._model.world_model.transformer.forward
    worst = 0.0
    with torch.no_grad():
        for sequences, keys_values, start_pos in calls:
            plain_kv, scripted_kv = copy.deepcopy(keys_values), copy.deepcopy(keys_values)
            expected = plain(sequences, plain_kv, None, start_pos=start_pos)
            got = scripted_forward(sequences, scripted_kv, None, start_pos=start_pos)
            worst = max(worst, (expected - got).abs().max().item())
            assert plain_kv.size == scripted_kv.size
            for left, right in zip(caches(plain_kv), caches(scripted_kv)):
                worst = max(worst, (left - right)[:, :, :plain_kv.size].abs().max().item())
    assert worst <= 1e-6


def test_heads_follow_weights_that_are_loaded_later(searched):
    policy, _ = searched
    scripted = copy.deepcopy(policy)
    use_scripted_search(scripted, 'collect')
    changed = {key: value + 0.25 for key, value in policy._model.state_dict().items()}
    plain_model = copy.deepcopy(policy._model)
    plain_model.load_state_dict(changed)
    scripted._model.load_state_dict(changed)
    tokens = torch.randn(3, 1, plain_model.world_model.config.embed_dim)
    plain_model.eval(), scripted._model.eval()
    for name in ('head_observations', 'head_rewards', 'head_policy', 'head_value'):
        for previous in (0, 1, 2, 3):
            expected = getattr(plain_model.world_model, name)(tokens, num_steps=1, prev_steps=previous)
            got = getattr(scripted._model.world_model, name)(tokens, num_steps=1, prev_steps=previous)
            assert torch.allclose(expected, got, atol=1e-6)


@pytest.mark.parametrize('rows', [torch.randn(5, 21), torch.softmax(torch.randn(5, 21), 1), torch.zeros(2, 21)])
def test_inverse_transform(rows):
    from lzero.policy import InverseScalarTransform

    host = InverseScalarTransform(10, 'cpu', True)
    expected = host(rows.clone())
    assert torch.allclose(inverse_categorical(rows, host.value_support), expected, atol=1e-6, rtol=1e-6)


def test_training_passes_go_to_the_original(searched):
    policy, calls = searched
    scripted = copy.deepcopy(policy)
    use_scripted_search(scripted, 'collect')
    transformer = scripted._model.world_model.transformer.train()
    sequences = calls[0][0]
    output = transformer(sequences, None, start_pos=[np.int64(0)] * len(sequences))
    output.sum().backward()
    assert transformer.ln_f.weight.grad is not None
