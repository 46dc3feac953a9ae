"""The settings of the prior: what is refused, and how it is said."""
import dataclasses

import pytest

from lzero_async.core.errors import ConfigError
from lzero_async.priorzero.prior_config import PriorConfig


def test_defaults_are_accepted_and_fixed():
    config = PriorConfig.from_mapping({})
    assert config == PriorConfig() and config.llm is None and config.train == 'lora'
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.epochs = 2


def test_every_setting_says_what_it_is():
    for setting in dataclasses.fields(PriorConfig):
        assert setting.metadata['doc'].endswith('.'), setting.name


@pytest.mark.parametrize('settings, message', [
    ({'llm': ''}, r"llm must be a string that is not empty, got ''"),
    ({'llm': 3}, r'llm must be .* got 3'),
    ({'train': 'qlora'}, r"train must be 'lora' or 'last_layers' or 'all' or 'none', got 'qlora'"),
    ({'backend': 'jax'}, r"backend must be 'torch' or 'vllm', got 'jax'"),
    ({'last_layers': 0}, r'last_layers must be >= 1, got 0'),
    ({'lora_rank': 2.0}, r'lora_rank must be an int >= 1, got 2.0'),
    ({'lora_alpha': 0}, r'lora_alpha must be > 0, got 0'),
    ({'learning_rate': -1e-4}, r'learning_rate must be > 0, got -0.0001'),
    ({'learning_rate': float('nan')}, r'learning_rate must be a finite number > 0, got nan'),
    ({'clip_range': 0.0}, r'clip_range must be > 0, got 0.0'),
    ({'kl_weight': -0.1}, r'kl_weight must be >= 0, got -0.1'),
    ({'temperature': 0.0}, r'temperature must be > 0, got 0.0'),
    ({'max_samples': True}, r'max_samples must be an int >= 1, got True'),
    ({'max_prompt_tokens': 8}, r'max_prompt_tokens must be >= 16, got 8'),
    ({'cache_size': -1}, r'cache_size must be >= 0, got -1'),
    ({'vllm_gpu_memory': 1.5}, r'vllm_gpu_memory must be <= 1, got 1.5'),
    ({'kl_wieght': 0.1}, r'kl_wieght must be a setting of the prior, got an unknown key; did you mean kl_weight\?'),
    ({'zzzzz': 1}, r'zzzzz must be a setting .* the settings are llm, backend, train'),
])
def test_refusals_name_the_field_the_rule_and_the_value(settings, message):
    with pytest.raises(ConfigError, match=message):
        PriorConfig.from_mapping(settings)


@pytest.mark.parametrize('settings, expected', [
    ({'train': 'lora'}, 1e-4), ({'train': 'last_layers'}, 1e-5), ({'train': 'all'}, 1e-6),
    ({'train': 'all', 'learning_rate': 0.5}, 0.5),
])
def test_the_learning_rate_suits_what_is_trained(settings, expected):
    assert PriorConfig(**settings).step_size == expected
