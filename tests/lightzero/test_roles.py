"""How many torch threads each role has while it works."""
import pytest
import torch

from lzero_async.core.config import AsyncConfig
from lzero_async.core.cores import CorePlan
from lzero_async.lightzero import roles


@pytest.mark.parametrize('settings, sees_pictures, expected', [
    ({}, False, 2),
    ({}, True, 4),
    ({'accelerate': False}, True, 2),
    ({'cpu_affinity': 'auto'}, True, 2),
    ({'learner_threads': 3}, False, 3),
    ({'learner_threads': 1}, True, 1),
])
def test_threads_of_the_learner(settings, sees_pictures, expected, monkeypatch):
    monkeypatch.setattr(roles, 'core_plan', lambda collectors: CorePlan((0, 1, 2, 3), collectors))
    monkeypatch.setattr(roles, 'pinned_to', lambda cores: roles.contextlib.nullcontext())
    config, before = AsyncConfig(off_policy_degree=2, **settings), torch.get_num_threads()
    context = roles.role_contexts(config, 0, 'cpu', sees_pictures)
    with context('learner'):
        assert torch.get_num_threads() == expected
    with context('collector-0'):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before
