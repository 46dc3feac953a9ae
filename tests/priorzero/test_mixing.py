"""The policy at the root: sums by hand."""
import math

import numpy as np
import pytest

from lzero_async import ConfigError
from lzero_async.priorzero.mixing import NEVER, RootMixing

LOGITS = np.array([[0.0, math.log(3.0), 5.0]], np.float32)  # the third action is not there
PRIOR = [(math.log(0.9), math.log(0.1))]


@pytest.mark.parametrize('mode, weight, expected', [
    ('mixed', 0.5, [0.5 * 0.25 + 0.5 * 0.9, 0.5 * 0.75 + 0.5 * 0.1]),
    ('mixed', 0.2, [0.2 * 0.25 + 0.8 * 0.9, 0.2 * 0.75 + 0.8 * 0.1]),
    ('mixed', 1, [0.25, 0.75]),
    ('mixed', 0, [0.9, 0.1]),
    ('llm_logits', 0.5, [0.9, 0.1]),
    ('wm_logits', 0.5, [0.25, 0.75]),
])
def test_the_mixture(mode, weight, expected):
    logits = RootMixing(mode, weight).logits(LOGITS, PRIOR)[0]
    odds = np.exp(logits[:2])
    assert odds / odds.sum() == pytest.approx(expected, abs=1e-6)
    assert logits[2] == np.float32(NEVER)


def test_each_environment_has_its_own_actions():
    world_model = np.zeros((2, 3), np.float32)
    logits = RootMixing('llm_logits').logits(world_model, [(0.0,), (-1.0, -2.0, -3.0)])
    assert logits[0].tolist() == [0.0, np.float32(NEVER), np.float32(NEVER)]
    assert logits[1].tolist() == [-1.0, -2.0, -3.0]


def test_a_prior_that_excludes_an_action_leaves_it_to_the_world_model():
    logits = RootMixing('mixed', 0.5).logits(np.zeros((1, 2), np.float32), [(0.0, -math.inf)])[0]
    assert np.exp(logits) == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize('given, message', [
    ({'mode': 'both'}, r"root_prior.mode must be one of mixed, llm_logits, wm_logits, got 'both'"),
    ({'weight': 1.5}, r'root_prior.weight must be between 0 and 1, got 1.5'),
    ({'weight': float('nan')}, r'root_prior.weight must be between 0 and 1, got nan'),
    ({'weight': True}, r'root_prior.weight must be between 0 and 1, got True'),
    ({'wieght': 0.5}, r'root_prior must have the keys mode and weight, got wieght'),
])
def test_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        RootMixing.of(given)
