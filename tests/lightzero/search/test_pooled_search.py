"""Pooled searches find what LightZero's own find, position by position, in real episodes."""
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from real_parts import compiled, learner_policy, make_collector, snapshot_of

from lzero_async.lightzero.native import VARIABLE, kernels
from lzero_async.lightzero.policies import RolePolicy
from lzero_async.lightzero.search.pooled_search import PooledSearch, use_pooled_search
from lzero_async.lightzero.search.search_weights import PACKED_FROM
from lzero_async.lightzero.search.token_step import scalars, shifted

HERE = pathlib.Path(__file__).parent
MOST_DIFFERENT = 0.002
"""Share of positions whose visit counts may differ: where two actions are equal but for the last bit."""
SCRIPTED_TOLERANCE, TOLERANCE = 1e-4, 1e-3
"""Of values and logits, relative to 1 or to their size. LightZero's transform of values makes the last bit of what goes
into it several hundred times as large. The scripted form without packing gave no difference at all where this was
written."""

CASES = {
    'rotary': {'rotary': True, 'scramble': 0.05, 'steps': 260, 'simulations': 25},
    'learned positions': {'rotary': False, 'scramble': 0.05, 'steps': 130, 'simulations': 12},
    'packed': {'rotary': False, 'scramble': 0.02, 'steps': 40, 'simulations': 8, 'width': PACKED_FROM},
    'scripted': {'rotary': True, 'scramble': 0.05, 'steps': 60, 'simulations': 25, 'native': False},
    'scripted, learned positions': {
        'rotary': False, 'scramble': 0.05, 'steps': 60, 'simulations': 12, 'native': False,
    },
    # All states that an untrained model predicts are the same, so that searches find each other's nodes.
    'untrained': {'rotary': True, 'scramble': 0.0, 'steps': 40, 'simulations': 12},
}


@pytest.fixture(scope='module')
def ties(tmp_path_factory):
    """The environment in which LightZero's tree breaks ties always alike."""
    library = tmp_path_factory.mktemp('ties') / 'first_of_ties.so'
    subprocess.run(['gcc', '-shared', '-fPIC', '-o', library, HERE / 'first_of_ties.c'], check=True)
    return {**os.environ, 'LD_PRELOAD': str(library)}


@pytest.mark.parametrize('case', CASES)
def test_positions_of_real_episodes(case, ties, tmp_path):
    settings = CASES[case]
    native = settings.get('native', case != 'packed' and kernels() is not None)
    environment = ties if native else {**ties, VARIABLE: '0'}
    done = subprocess.run(
        [sys.executable, HERE / 'paired_searches.py', tmp_path, tmp_path / 'found', json.dumps(settings)],
        cwd=tmp_path, env=environment, timeout=500, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    found = json.loads((tmp_path / 'found').read_text())
    assert found['native'] == native
    assert found['positions'] >= 8 * settings['steps']
    assert found['simulations'] == settings['simulations']
    assert found['distinct_visits'] >= 2
    assert found['uneven'] > 0 or case in ('untrained', 'packed'), 'no search had rows of different sizes'
    assert found['different_visits'] <= MOST_DIFFERENT * found['positions']
    assert found['same_actions'] >= (1 - MOST_DIFFERENT) * found['positions']
    for name in ('worst_predicted_value', 'worst_policy_logits', 'worst_searched_value'):
        assert found[name] <= (TOLERANCE if native or case == 'packed' else SCRIPTED_TOLERANCE), name


@pytest.fixture(scope='module')
def cfg(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp('pooled'))


def test_a_real_collect_uses_it(cfg):
    policy = learner_policy(cfg)
    collector = make_collector(cfg, policy, accelerate=True)
    try:
        assert isinstance(collector._seat.policy._mcts_collect, PooledSearch)
        assert collector.collect(snapshot_of(policy), lambda: True).env_steps > 0
    finally:
        collector.close()


REFUSED = {
    'gru_gating': lambda policy: setattr(policy._model.world_model.config, 'gru_gating', True),
    'continuous': lambda policy: setattr(policy._model.world_model, 'continuous_action_space', True),
    'context_length': lambda policy: setattr(policy._model.world_model, 'context_length', 2),
    'tokens': lambda policy: setattr(policy._model.world_model.config, 'tokens_per_block', 17),
    'categorical': lambda policy: setattr(policy._cfg.model, 'categorical_distribution', False),
    'head': lambda policy: setattr(policy._model.world_model.head_value, 'head_module', torch.nn.Identity()),
}


@pytest.mark.parametrize('reason', REFUSED)
def test_what_cannot_be_pooled_is_left_alone(reason, tmp_path, caplog):
    policy = RolePolicy.beside(learner_policy(compiled(tmp_path)), 'collect', 'cpu', accelerate=False).policy
    search, initial = policy._mcts_collect, policy._model.world_model.forward_initial_inference
    REFUSED[reason](policy)
    with caplog.at_level('INFO'):
        assert not use_pooled_search(policy, 'collect')
    assert policy._mcts_collect is search
    assert policy._model.world_model.forward_initial_inference == initial
    assert 'not pooled' in caplog.text


def test_probabilities_are_taken_for_such_if_all_rows_are():
    from lzero.policy import InverseScalarTransform

    host = InverseScalarTransform(10, 'cpu', True)
    torch.manual_seed(0)
    logits, probabilities = torch.randn(5, 21), torch.softmax(torch.randn(5, 21), 1)
    mixed = torch.cat((probabilities[:4], logits[:1]))
    for pair in ((logits, probabilities), (probabilities, mixed), (mixed, logits)):
        got = scalars(torch.stack(pair), host.value_support)
        for row, one in zip(got, pair):
            assert torch.allclose(row, host(one.clone()).reshape(-1), atol=1e-6, rtol=1e-6)


def test_rows_are_shifted_one_by_one():
    kv = torch.arange(1, 3 * 4 + 1, dtype=torch.float32).view(1, 1, 3, 1, 4, 1)
    got = shifted(kv, torch.tensor([0, 2, -1])).view(3, 4)
    assert got.tolist() == [[1, 2, 3, 4], [0, 0, 5, 6], [10, 11, 12, 0]]


def test_the_last_observations_are_encoded_once(cfg):
    seat = RolePolicy.beside(learner_policy(cfg), 'collect', 'cpu', accelerate=True)
    policy, count = seat.policy, cfg.policy.collector_env_num
    encoder, calls = policy._model.world_model.tokenizer.encoder, []
    encoder.register_forward_hook(lambda *_: calls.append(1))
    masks = [np.ones(2, 'int8')] * count

    def step(observations, time):
        before = len(calls)
        policy._forward_collect(
            observations, masks, 1.0, [-1] * count, 0.0, ready_env_id=np.arange(count), timestep=[time] * count
        )
        return len(calls) - before

    observations = [torch.randn(count, 4) for _ in range(3)]
    assert step(observations[0], 0) == 2  # zeros come before the first
    assert step(observations[1], 1) == 1
    seat.load_weights({key: value + 0.1 for key, value in policy._model.state_dict().items()}, 1)
    assert step(observations[2], 2) == 2, 'other weights encode them differently'
