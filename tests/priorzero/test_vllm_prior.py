"""The backend vLLM, as far as it can be tested without vLLM: that it says so, and the weights it would get."""
import importlib.util

import pytest

pytest.importorskip('transformers')
pytest.importorskip('peft')

import torch
from tiny_priors import a_prior, a_state, samples_of

from lzero_async.core.errors import ConfigError
from lzero_async.priorzero.models import load_llm, resolve_llm
from lzero_async.priorzero.prior_config import PriorConfig
from lzero_async.priorzero.priors import make_prior
from lzero_async.priorzero.vllm_prior import merged_weights


@pytest.mark.skipif(importlib.util.find_spec('vllm') is not None, reason='vLLM is installed')
def test_without_vllm_it_is_refused():
    with pytest.raises(ConfigError, match=r"backend 'vllm' needs vllm, which is not installed: pip install vllm"):
        make_prior(PriorConfig(llm='tiny', backend='vllm'), 'cuda')


@pytest.mark.parametrize('train', ['lora', 'last_layers', 'all'])
def test_merged_weights_make_a_plain_model_the_trained_one(train):
    prior = a_prior(train=train)
    scores, = prior.score([a_state()])
    prior.update(samples_of(scores, [1.0, -1.0]))
    choice = resolve_llm('tiny')
    merged = merged_weights(choice.path, prior.weights(), 16.0 / 8 if train == 'lora' else 1.0)
    plain, _ = load_llm(choice, 'cpu', torch.float32)
    ids = torch.tensor([scores.prompt_ids])
    with torch.no_grad():
        trained = prior._part.model(input_ids=ids).logits
        assert not torch.allclose(plain(input_ids=ids).logits, trained, atol=1e-3)
        assert plain.load_state_dict(merged, strict=False).unexpected_keys == []
        assert torch.allclose(plain(input_ids=ids).logits, trained, atol=1e-4)


def test_adapters_of_another_model_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r'llm must have its weights in \.safetensors files .* 0 of the 14 that'):
        merged_weights(str(tmp_path), a_prior().weights(), 2.0)
