"""PlainWeights, and how weights are asked for and handed over."""
import math
from collections import OrderedDict
from types import MappingProxyType, SimpleNamespace

import pytest
from easydict import EasyDict
from fakes import Module
from hypothesis import given
from hypothesis import strategies as st

from lzero_async.core.errors import ConfigError
from lzero_async.core.weight_ops import PlainWeights, WeightInfo, check_source, check_target, load_into, weights_of

NAN, INF = math.nan, math.inf

finite_numbers = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-10, 10), st.booleans())
nested_weights = st.recursive(
    finite_numbers,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from('abcd'), inner, max_size=3),
    ),
    max_leaves=12,
)


class Source:
    def __init__(self, weights):
        self.weights = weights

    def get_weights(self):
        return self.weights


class Target:
    weights = version = None

    def load_weights(self, weights, policy_version):
        self.weights, self.version = weights, policy_version


# -------------------------------------------------------------------- who gives and who takes


@pytest.mark.parametrize('source, weights', [
    (Source({'a': 1}), {'a': 1}),
    (Module({'a': 2}), {'a': 2}),
    (SimpleNamespace(get_weights=lambda: 'own', state_dict=lambda: 'of the module'), 'own'),
], ids=['get_weights', 'state_dict', 'both'])
def test_weights_are_asked_for(source, weights):
    assert weights_of(source) == weights


@pytest.mark.parametrize('source', [Source({}), Module({})])
def test_a_source_that_gives_weights_is_accepted(source):
    check_source('trainer_actor', source)


@pytest.mark.parametrize('source, kind', [(None, 'NoneType'), (5, 'int'), (Target(), 'Target'), ({'a': 1}, 'dict')])
@pytest.mark.parametrize('name', ['trainer_actor', 'actor_workers[1]'])
def test_a_source_that_gives_no_weights_is_refused(name, source, kind):
    with pytest.raises(ConfigError) as refusal:
        check_source(name, source)
    assert str(refusal.value) == f'{name} must have get_weights() or state_dict(), got {kind} without'


def test_a_failure_of_the_source_is_not_hidden():
    def broken():
        raise AttributeError('inside')

    with pytest.raises(AttributeError, match='inside'):
        weights_of(SimpleNamespace(get_weights=broken, state_dict=dict))


def test_weights_are_handed_over_with_their_version():
    target = Target()
    load_into(target, {'a': 1}, 7)
    assert (target.weights, target.version) == ({'a': 1}, 7)


def test_weights_are_handed_over_to_a_module():
    module = Module()
    load_into(module, {'a': 1}, 7)
    assert module.weights == {'a': 1}


def test_load_weights_goes_before_load_state_dict():
    target = Target()
    target.load_state_dict = pytest.fail
    load_into(target, {'a': 1}, 7)
    assert target.version == 7


@pytest.mark.parametrize('target', [Target(), Module()])
def test_a_target_that_takes_weights_is_accepted(target):
    check_target('role', target)


@pytest.mark.parametrize('target, kind', [(None, 'NoneType'), (5, 'int'), (Source({}), 'Source'), ([Target()], 'list')])
@pytest.mark.parametrize('name', ['role', 'rollout_workers[1]'])
def test_a_target_that_takes_no_weights_is_refused(name, target, kind):
    with pytest.raises(ConfigError) as refusal:
        check_target(name, target)
    assert str(refusal.value) == (
        f'{name} must have load_weights(weights, policy_version) or load_state_dict(weights), got {kind} without'
    )


# -------------------------------------------------------------------- copies


def test_what_was_read_does_not_follow_its_source():
    source = Source({'layer': {'w': [1.0, 2.0]}})
    read = PlainWeights().read(source)
    source.weights['layer']['w'][0] = 9.0
    source.weights['new'] = 1
    assert read == {'layer': {'w': [1.0, 2.0]}}


def test_what_a_target_does_with_its_weights_touches_nobody_else():
    ops, weights, targets = PlainWeights(), {'layer': {'w': [1.0, 2.0]}}, [Target(), Target()]
    for target in targets:
        ops.load(target, weights, 1)
    targets[0].weights['layer']['w'][0] = 9.0
    assert weights == targets[1].weights == {'layer': {'w': [1.0, 2.0]}}


def test_plain_weights_are_on_every_device_and_never_under_way():
    ops, weights = PlainWeights(), {'a': [1]}
    assert ops.copy_to(weights, ops.device_of(Target())) is weights
    assert ops.is_settled(weights)
    assert ops.settle(weights) is None


# -------------------------------------------------------------------- what is not finite


@pytest.mark.parametrize('weights, name', [
    ({'a': NAN}, 'a'),
    ({'a': INF}, 'a'),
    ({'a': -INF}, 'a'),
    ({'a': 1.0, 'b': NAN, 'c': INF}, 'b'),  # the first
    ({'layer': {'w': [0.0, [1.0, NAN]]}}, 'layer.w[1][1]'),
    ([{'w': 1.0}, {'w': (0.0, INF)}], '[1].w[1]'),
    ((1.0, NAN), '[1]'),
    (NAN, 'weights'),
    ({0: {1: NAN}}, '0.1'),
    (OrderedDict(a=NAN), 'a'),
    (MappingProxyType({'a': NAN}), 'a'),
    (EasyDict(layer=EasyDict(w=NAN)), 'layer.w'),
])
def test_what_is_not_finite_is_named(weights, name):
    assert PlainWeights().first_non_finite(weights) == name


@pytest.mark.parametrize('weights', [
    {}, [], {'a': {}}, None, 0, 1.5, True, {'a': 1e308, 'b': -1e308, 'c': 5e-324}, {'name': 'nan', 'other': 'inf'},
    {'a': [None, 'text', b'nan', 10 ** 300]}, {NAN: 1.0},
])
def test_what_is_finite_passes(weights):
    assert PlainWeights().first_non_finite(weights) is None


@given(nested_weights)
def test_finite_weights_pass_however_they_are_nested(weights):
    assert PlainWeights().first_non_finite(weights) is None


@given(nested_weights, st.sampled_from([NAN, INF, -INF]))
def test_one_that_is_not_finite_is_found_however_deep_it_is(weights, bad):
    assert PlainWeights().first_non_finite({'good': weights, 'deep': [[weights, {'bad': bad}]]}) == 'deep[0][1].bad'


@given(nested_weights)
def test_every_leaf_is_described_once_and_in_order(weights):
    def count(value):
        items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else None
        return 1 if items is None else sum(map(count, items))

    described = PlainWeights().describe(weights)
    assert len(described) == len({info.name for info in described}) == count(weights)


def test_an_int_that_no_float_holds_is_finite():
    assert PlainWeights().first_non_finite({'a': 10 ** 400}) is None


@pytest.mark.parametrize('bad', [complex(NAN, 0), complex(0, INF)])
def test_a_complex_number_can_be_not_finite(bad):
    assert PlainWeights().first_non_finite({'a': 1j, 'b': bad}) == 'b'


# -------------------------------------------------------------------- descriptions


def test_weights_are_described_by_name_shape_and_type():
    assert PlainWeights().describe({'layer': {'w': [1.0, 2]}, 'b': True}) == [
        WeightInfo('layer.w[0]', (), 'float'), WeightInfo('layer.w[1]', (), 'int'), WeightInfo('b', (), 'bool'),
    ]
