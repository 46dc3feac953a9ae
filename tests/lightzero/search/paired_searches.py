"""Plays CartPole with LightZero's own searches and repeats every one of them pooled. Run by test_pooled_search.

    python paired_searches.py FOLDER OUTCOME_FILE '{"rotary": true, "scramble": 0.1, "steps": 260, "simulations": 25}'
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent))

import numpy as np
import torch
from real_parts import compiled, learner_policy, make_collector
from small_configs import zoo_config

from lzero_async.core.weights import WeightSnapshot
from lzero_async.lightzero.policies import RolePolicy
from lzero_async.lightzero.search.native_simulation import NativeSimulation
from lzero_async.lightzero.search.pooled_inference import PooledInference
from lzero_async.lightzero.search.pooled_search import use_pooled_search
from lzero_async.torch_weights import TorchWeights

folder, outcome_file = sys.argv[1:3]
case = json.loads(sys.argv[3])
torch.set_num_threads(1)


def scramble(model, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(case['scramble'] * torch.randn_like(parameter))


class Paired:
    """Stands in for the forward of LightZero's policy: searches, lets the other one search alike, and compares."""

    def __init__(self, stock, pooled):
        self._stock, self._pooled = stock, pooled
        self._forward, self._reset = stock._forward_collect, stock._reset_collect
        self.pairs = []

    def forward(self, *args, **kwargs):
        state = np.random.get_state()
        expected = self._forward(*args, **kwargs)
        after = np.random.get_state()
        np.random.set_state(state)
        got = self._pooled._forward_collect(*args, **kwargs)
        np.random.set_state(after)
        self.pairs += [(expected[env], got[env]) for env in expected]
        # Both go on from the same action, also where they chose differently.
        self._pooled.last_batch_obs, self._pooled.last_batch_action = (
            self._stock.last_batch_obs, self._stock.last_batch_action
        )
        return expected

    def reset(self, *args, **kwargs):
        self._reset(*args, **kwargs)
        self._pooled._reset_collect(*args, **kwargs)


def uneven_searches():
    """Grows with each simulation whose rows had different lengths."""
    found, native, stored = [], NativeSimulation.__call__, PooledInference._store_uneven
    length = NativeSimulation.COLUMNS.index('length')

    def simulate(self, rows):
        if len(set(rows[:, length])) > 1:
            found.append('native')
        return native(self, rows)

    NativeSimulation.__call__ = simulate
    PooledInference._store_uneven = lambda *args: (found.append('scripted'), stored(*args))[1]
    return found


def main():
    small, _ = zoo_config('cartpole_unizero_segment_async_config')
    cfg = compiled(
        folder, collector_env_num=8, num_segments=8, num_simulations=case['simulations'], game_segment_length=20
    )
    cfg.env.update(collector_env_num=8)
    cfg.policy.model.world_model_cfg.update(small.policy.model.world_model_cfg, rotary_emb=case['rotary'], device='cpu')
    if 'width' in case:
        cfg.policy.model.world_model_cfg.update(embed_dim=case['width'])
    learner = learner_policy(cfg)
    scramble(learner._learn_model, 0)
    pooled_seat = RolePolicy.beside(learner, 'collect', 'cpu', accelerate=False)
    assert use_pooled_search(pooled_seat.policy, 'collect')
    collector = make_collector(cfg, learner)
    stock = collector._seat.policy
    paired = Paired(stock, pooled_seat.policy)
    stock._forward_collect, stock._reset_collect = paired.forward, paired.reset
    collector._search = paired.forward
    collector._mode = collector._mode._replace(forward=collector._forward, reset=paired.reset)
    collector._host.reset_policy(collector._mode)
    uneven = uneven_searches()
    version = 0
    while len(paired.pairs) < 8 * case['steps']:
        scramble(learner._learn_model, version + 1)
        weights = TorchWeights().read(learner._learn_model)
        for seat in (collector._seat, pooled_seat):
            seat.load_weights(weights, version)
        collector.collect(WeightSnapshot(version, 0, weights), lambda: True)
        version += 1
    collector.close()
    compare(paired.pairs, uneven, pooled_seat.policy._mcts_collect._inference._native is not None)


def compare(pairs, uneven, native):
    same = [left['visit_count_distributions'] == right['visit_count_distributions'] for left, right in pairs]

    def worst(name, among):
        differences = [
            np.max(np.abs(np.asarray(left[name]) - np.asarray(right[name])) / np.maximum(1, np.abs(left[name])))
            for (left, right), wanted in zip(pairs, among) if wanted
        ]
        return float(np.max(differences))

    everywhere = [True] * len(pairs)
    searched = [left['visit_count_distributions'] for left, _ in pairs]
    pathlib.Path(outcome_file).write_text(json.dumps({
        'positions': len(pairs),
        'different_visits': len(pairs) - sum(same),
        'native': native,
        'uneven': len(uneven),
        'distinct_visits': len({tuple(visits) for visits in searched}),
        'simulations': sum(searched[0]),
        'worst_predicted_value': worst('predicted_value', everywhere),
        'worst_policy_logits': worst('predicted_policy_logits', everywhere),
        'worst_searched_value': worst('searched_value', same),
        'same_actions': sum(bool(left['action'] == right['action']) for left, right in pairs),
    }))


if __name__ == '__main__':
    main()
