"""When a signal of training means strain."""
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lzero_async.core.strain import StrainGauge, StrainGauges, TrainingSignals

NAN, INF = float('nan'), float('inf')
CALM = [1.0] * 60


def strains(values):
    """The places in `values` at which the gauge sees strain."""
    gauge = StrainGauge('loss')
    return [place for place, value in enumerate(values) if gauge.reason(value) is not None]


def lognormal(sigma, count, seed=0):
    rng = random.Random(seed)
    return [rng.lognormvariate(0, sigma) for _ in range(count)]


@pytest.mark.parametrize('values', [
    [],
    [1.0],
    CALM,
    [0.0] * 60,
    [-1.0] * 60,
    [1e-12] * 60,
    [1e12] * 60,
    [1.0, 1.2] * 60,
    [10 * 0.99 ** place for place in range(600)],
    [10 * 0.9 ** place for place in range(600)],
    [1 - place / 100 for place in range(300)],  # through zero
    [1.0] * 60 + [0.1] * 60,
    [1.0] * 60 + [-5.0] * 60,
    [1.0] * 60 + [1.3] * 60,  # a step that is no jump
    [1.005 ** place for place in range(300)],  # slower than its past moves
    [1.0] * 60 + [1.9] + [1.0] * 60,
], ids=str)
def test_no_strain(values):
    assert strains(values) == []


@pytest.mark.parametrize('past, value', [
    (1.0, 2.1), (1.0, 5.0), (1.0, 1e9), (1e-6, 1e-5), (1e6, 1e7), (-1.0, 0.5), (-1.0, 9.0),
])
def test_a_jump_is_strain_at_once(past, value):
    assert strains([past] * 60 + [value]) == [60]


@pytest.mark.parametrize('past, value', [(1.0, 5.0), (1.0, 1e9), (-1.0, 5.0)])
def test_one_spike_is_seen_once(past, value):
    assert strains([past] * 60 + [value] + [past] * 200) == [60]


def test_spikes_far_apart_are_each_seen():
    assert strains(([1.0] * 99 + [9.0]) * 3) == [99, 199, 299]


@pytest.mark.parametrize('value', [NAN, INF, -INF])
@pytest.mark.parametrize('before', [0, 1, 60])
def test_what_is_no_number_is_strain_at_any_time(value, before):
    assert strains([1.0] * before + [value]) == [before]


def test_what_is_no_number_is_not_part_of_the_past():
    assert strains([1.0] * 60 + [NAN] * 3 + [1.0] * 60 + [9.0]) == [60, 61, 62, 123]


def test_the_first_rounds_are_not_judged():
    assert strains([1.0, 50.0, 2.0, 0.1, 30.0]) == []


@pytest.mark.parametrize('factor, within', [(1.02, 60), (1.03, 45), (1.05, 30), (1.2, 15)])
def test_a_rise_is_strain(factor, within):
    found = strains(CALM + [factor ** place for place in range(100)])
    assert 60 < found[0] <= 60 + within


@pytest.mark.parametrize('factor, within', [(1.02, 60), (1.05, 30)])
def test_a_rise_from_the_beginning_is_strain(factor, within):
    assert strains([factor ** place for place in range(100)])[0] <= within


@pytest.mark.parametrize('seed', range(5))
def test_a_rise_in_noise_is_strain(seed):
    noise = lognormal(0.2, 200, seed)
    found = strains(noise[:100] + [1.02 ** place * value for place, value in enumerate(noise[100:])])
    assert found != [] and found[0] > 100


@pytest.mark.parametrize('level', [1.9, 3.0, 9.0])
def test_strain_that_lasts_does_not_pass_for_the_past(level):
    """It takes five halvings to come from 31 to 1, of at least 9 rounds each."""
    found = strains(CALM + [level] * 60)
    assert found[0] <= 72
    assert set(range(72, 120)) <= set(found)


@pytest.mark.parametrize('level', [1.9, 3.0, 9.0])
def test_a_level_that_stays_is_the_past_in_the_end(level):
    found = strains(CALM + [level] * 3000)
    assert found[-1] < 2000


def test_a_signal_that_was_zero_may_begin():
    """It has no scale yet: the first value above zero is no jump, and what it becomes is its past in the end."""
    assert strains([0.0] * 60 + [1e-9] + [0.0] * 60) == []
    assert strains([0.0] * 60 + [1.0] * 5000)[-1] < 4000


@pytest.mark.parametrize('seed', range(10))
def test_noise_is_hardly_ever_strain(seed):
    found = strains(lognormal(0.3, 1000, seed))
    # Rounds right after each other are one strain: nobody is asked again so soon.
    assert len([place for place in found if place - 1 not in found]) <= 1


@pytest.mark.parametrize('seed', range(5))
def test_noise_around_zero_is_no_strain(seed):
    rng = random.Random(seed)
    assert strains([rng.gauss(0, 1) for _ in range(1000)]) == []


@pytest.mark.parametrize('seed', range(5))
def test_a_jump_out_of_noise_is_strain(seed):
    assert 300 in strains([*lognormal(0.3, 300, seed), 10.0])


@pytest.mark.parametrize('scale', [1e-6, 1e6])
def test_the_scale_of_a_signal_does_not_matter(scale):
    values = [*lognormal(0.5, 300), *[1.05 ** place for place in range(80)]]
    assert strains([scale * value for value in values]) == strains(values) != []


@given(st.lists(st.floats(), max_size=60))
def test_any_values_give_an_answer(values):
    gauge = StrainGauge('loss')
    assert all(reason is None or reason.startswith('loss ') for reason in map(gauge.reason, values))


def reason_of(values):
    gauge = StrainGauge('value_error')
    return [gauge.reason(value) for value in values][-1]


@pytest.mark.parametrize('values, reason', [
    ([NAN], 'value_error is nan'),
    ([INF], 'value_error is inf'),
    ([*CALM, 7.0], 'value_error jumped to 7 from about 1'),
])
def test_reasons_say_what_happened(values, reason):
    assert reason_of(values) == reason


def test_a_rise_says_from_where_to_where():
    gauge = StrainGauge('value_error')
    uneven = [1.0, 1.1, 0.9, 1.05] * 15
    found = [gauge.reason(value) for value in [*uneven, *(1.03 ** place for place in range(60))]]
    first = next(reason for reason in found if reason is not None)
    assert re.fullmatch(r'value_error rose to [\d.]+ from about 1\.\d+', first)


# -------------------------------------------------------------------- all signals together


def test_nothing_known_is_no_strain():
    gauges = StrainGauges()
    assert [gauges.reason(TrainingSignals()) for _ in range(60)] == [None] * 60


@pytest.mark.parametrize('field', ['loss', 'value_error', 'policy_divergence'])
def test_each_signal_is_watched(field):
    gauges = StrainGauges()
    calm = {'loss': 1.0, 'value_error': 2.0, 'policy_divergence': 3.0}
    assert [gauges.reason(TrainingSignals(**calm)) for _ in range(60)] == [None] * 60
    assert gauges.reason(TrainingSignals(**{**calm, field: 99.0})).startswith(f'{field} jumped to 99')


def test_signals_have_pasts_of_their_own():
    gauges = StrainGauges()
    for place in range(60):
        gauges.reason(TrainingSignals(loss=100.0) if place % 2 else TrainingSignals(value_error=1.0))
    assert gauges.reason(TrainingSignals(loss=100.0)) is None
    assert gauges.reason(TrainingSignals(value_error=100.0)) is not None


def test_a_signal_that_is_not_always_known_keeps_its_past():
    gauges = StrainGauges()
    for _ in range(60):
        gauges.reason(TrainingSignals(loss=1.0))
        gauges.reason(TrainingSignals())
    assert gauges.reason(TrainingSignals(loss=9.0)) == 'loss jumped to 9 from about 1'


def test_all_signals_are_told_of_a_round_that_strains():
    """The first reason is given; the others still take note."""
    gauges = StrainGauges()
    for _ in range(60):
        gauges.reason(TrainingSignals(loss=NAN, value_error=1.0))
    assert gauges.reason(TrainingSignals(loss=1.0, value_error=9.0)) == 'value_error jumped to 9 from about 1'


def test_signals_are_unknown_unless_given():
    signals = TrainingSignals(loss=1.0)
    assert (signals.loss, signals.value_error, signals.policy_divergence) == (1.0, None, None)
