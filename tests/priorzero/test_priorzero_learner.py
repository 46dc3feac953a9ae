"""When the prior is updated, and with what."""
from types import SimpleNamespace

import pytest

pytest.importorskip('jericho')
pytest.importorskip('transformers')

from small_priorzero import NoCurves, configs

from lzero_async import ConfigError
from lzero_async.core.protocols import RoundResult
from lzero_async.lightzero.run_config import read_config
from lzero_async.priorzero.learn import PriorZeroLearner


class NotedPrior:
    version = 0

    def __init__(self):
        self.updates = []

    def update(self, samples):
        self.updates.append(list(samples))
        self.version += 1
        return {'loss': 0.5}


def learner(interval=1):
    """A PriorZeroLearner with nothing of LightZero's behind it."""
    made = object.__new__(PriorZeroLearner)
    made._policy = SimpleNamespace(prior=NotedPrior(), trains_prior=True)
    made._learner = SimpleNamespace(train_iter=0)
    made._tb_logger = NoCurves()
    made._interval, made._samples, made._prior_updated_at, made._left_early = interval, [], 0, False
    made._finished_rounds = 0
    return made


def end_round(made, updates, samples):
    made._learner.train_iter += updates
    made._samples += samples
    made._finished_rounds += 1
    made.after_round(RoundResult(updates, sufficient=True))
    return made._policy.prior.updates


def test_each_sample_is_used_once():
    made = learner()
    end_round(made, 3, ['a', 'b'])
    assert end_round(made, 3, ['c']) == [['a', 'b'], ['c']]


def test_every_so_many_rounds():
    made = learner(interval=2)
    assert end_round(made, 3, ['a']) == []
    assert end_round(made, 3, ['b']) == [['a', 'b']]


def test_not_without_an_update_of_the_world_model():
    """Else both versions would have one number, and the newer would reach nobody."""
    made = learner()
    assert end_round(made, 0, ['a']) == []
    assert end_round(made, 2, ['b']) == [['a', 'b']]
    assert end_round(made, 0, ['c']) == [['a', 'b']]


def test_not_in_a_round_that_was_left():
    made = learner()
    made._left_early = True
    assert end_round(made, 1, ['a']) == [] and made._samples == ['a']



# ------------------------------------------------------------------ settings


@pytest.mark.parametrize('change, message', [
    ({'prior_update_interval': 0}, 'policy.prior_update_interval must be'),
    ({'reanalyze_ratio': 0.5}, 'policy.reanalyze_ratio must be 0'),
    ({'buffer_reanalyze_freq': 1, 'reanalyze_batch_size': 4, 'reanalyze_partition': 0.5}, 'buffer_reanalyze_freq must'),
    ({'off_policy_degree': 2, 'background_reanalyze': True},
     'background_reanalyze must be False for priorzero: LightZero reanalyzes without the prior, got True'),
    ({'td_steps': 30}, r'policy.td_steps must be at most game_segment_length \(10\), got 30'),
    ({'prior': {'tempersture': 1}}, 'tempersture must be a setting of the prior'),
    ({'root_prior': {'mode': 'none'}}, 'root_prior.mode must be one of'),
])
def test_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        read_config(configs(**change), 0)


def test_managers_of_environments():
    main, create = configs()
    create.env_manager.type = 'async_subprocess'
    with pytest.raises(ConfigError, match=r"env_manager.type must be one of base, subprocess, got 'async_subprocess'"):
        read_config([main, create], 0)
