"""Which engine a role works in."""
import pytest

from lzero_async.core.config import AsyncConfig
from lzero_async.core.engine_choice import ENGINES, EngineChoice, pick_engine
from lzero_async.core.errors import ConfigError

# -------------------------------------------------------------------- what auto picks


def not_measured():
    pytest.fail('it measures what does not decide')


@pytest.mark.parametrize('cores, serial, joins_ray, choice', [
    (64, True, False, EngineChoice('thread', 'the run is serial')),
    (1, True, False, EngineChoice('thread', 'the run is serial')),
    (64, True, True, EngineChoice('thread', 'the run is serial')),
    (64, False, True, EngineChoice('ray', 'ray_address is given')),
    (1, False, True, EngineChoice('ray', 'ray_address is given')),
    (1, False, False, EngineChoice('thread', '1 core is available, and a child process would only share it')),
])
def test_what_is_picked_without_measuring(cores, serial, joins_ray, choice):
    assert pick_engine(cores, serial, joins_ray, False, not_measured) == choice
    assert pick_engine(cores, serial, joins_ray, True, not_measured) == choice


def test_a_light_search_needs_no_process():
    choice = EngineChoice('thread', 'the accelerated search of one collector seldom holds the GIL')
    for cores in (2, 64):
        assert pick_engine(cores, False, False, True, not_measured) == choice


@pytest.mark.parametrize('cores', [2, 64])
@pytest.mark.parametrize('contention, engine, reason', [
    (0.9, 'thread', 'takes 0.90 times as long, below 1.3: threads hardly hinder each other'),
    (1.0, 'thread', 'takes 1.00 times as long, below 1.3: threads hardly hinder each other'),
    (1.29, 'thread', 'takes 1.29 times as long, below 1.3: threads hardly hinder each other'),
    (1.3, 'process', 'takes 1.30 times as long, 1.3 or more: threads would wait for each other'),
    (4.0, 'process', 'takes 4.00 times as long, 1.3 or more: threads would wait for each other'),
])
def test_what_is_picked_by_contention(cores, contention, engine, reason):
    measured = []
    choice = pick_engine(cores, False, False, False, lambda: measured.append(contention) or contention)
    assert choice == EngineChoice(engine, f'{cores} cores are available, and a call beside another thread {reason}')
    assert measured == [contention]  # once


# -------------------------------------------------------------------- what a role is asked to work in


@pytest.mark.parametrize('settings, collector, evaluator', [
    ({}, 'thread', 'thread'),
    ({'engine': 'process'}, 'process', 'process'),
    ({'engine': 'ray'}, 'ray', 'ray'),
    ({'engine': 'auto'}, 'auto', 'auto'),
    ({'engine': 'process', 'evaluator_engine': 'thread'}, 'process', 'thread'),
    ({'engine': 'auto', 'collector_engine': 'ray'}, 'ray', 'auto'),
    ({'collector_engine': 'process', 'evaluator_engine': 'auto'}, 'process', 'auto'),
])
def test_a_role_has_its_own_engine_or_that_of_all(settings, collector, evaluator):
    made = AsyncConfig(off_policy_degree=2, **settings)
    assert (made.engine_of('collector'), made.engine_of('evaluator')) == (collector, evaluator)


# -------------------------------------------------------------------- what is refused


def refused(message, **settings):
    with pytest.raises(ConfigError) as refusal:
        AsyncConfig(**settings)
    assert str(refusal.value) == message


@pytest.mark.parametrize('name', ['engine', 'collector_engine', 'evaluator_engine'])
@pytest.mark.parametrize('value', ['threads', 'Process', '', 1, True, ['thread']])
def test_an_engine_is_one_of_four(name, value):
    refused(f"{name} must be 'thread' or 'process' or 'ray' or 'auto', got {value!r}", **{name: value})


def test_the_engine_of_all_must_be_given():
    refused("engine must be 'thread' or 'process' or 'ray' or 'auto', got None", engine=None)


@pytest.mark.parametrize('collectors', [2, 5])
def test_a_serial_run_has_one_collector(collectors):
    refused(f'num_collectors must be 1 when off_policy_degree is 0 (serial), got {collectors}',
            num_collectors=collectors)
    for degree in (1, 4, -1):
        assert AsyncConfig(off_policy_degree=degree, num_collectors=collectors).num_collectors == collectors


@pytest.mark.parametrize('engine', ['process', 'ray'])
@pytest.mark.parametrize('name', ['engine', 'collector_engine'])
@pytest.mark.parametrize('async_eval', [False, True])
def test_a_serial_collector_shares_the_learners_policy(engine, name, async_eval):
    refused(
        f"{name} must be 'thread' or 'auto' when off_policy_degree is 0 (serial), since the collector shares the "
        f"learner's policy, got {engine!r}",
        enable_async_eval=async_eval, **{name: engine},
    )


@pytest.mark.parametrize('engine', ['process', 'ray'])
@pytest.mark.parametrize('settings, name', [
    ({'evaluator_engine': 'ENGINE'}, 'evaluator_engine'),
    ({'engine': 'ENGINE', 'collector_engine': 'thread'}, 'engine'),
    ({'engine': 'auto', 'evaluator_engine': 'ENGINE'}, 'evaluator_engine'),
])
def test_a_serial_evaluator_that_blocks_shares_the_learners_policy(engine, settings, name):
    settings = {key: engine if value == 'ENGINE' else value for key, value in settings.items()}
    refused(
        f"{name} must be 'thread' or 'auto' when off_policy_degree is 0 (serial) and enable_async_eval is False, since "
        f"the evaluator shares the learner's policy, got {engine!r}",
        **settings,
    )
    in_background = AsyncConfig(enable_async_eval=True, **{'collector_engine': 'thread', **settings})
    assert in_background.engine_of('evaluator') == engine


@pytest.mark.parametrize('degree', [1, 4, -1])
@pytest.mark.parametrize('collector', ENGINES)
@pytest.mark.parametrize('evaluator', ENGINES)
@pytest.mark.parametrize('async_eval', [False, True])
def test_roles_that_overlap_may_work_anywhere(degree, collector, evaluator, async_eval):
    settings = AsyncConfig(off_policy_degree=degree, collector_engine=collector, evaluator_engine=evaluator,
                           enable_async_eval=async_eval)
    assert (settings.engine_of('collector'), settings.engine_of('evaluator')) == (collector, evaluator)


@pytest.mark.parametrize('engine', ['thread', 'auto'])
def test_a_serial_run_may_work_in_threads(engine):
    assert AsyncConfig(engine=engine).engine_of('collector') == engine


@pytest.mark.parametrize('settings', [
    {}, {'engine': 'process'}, {'collector_engine': 'process'}, {'engine': 'ray', 'collector_engine': 'thread',
                                                                 'evaluator_engine': 'process'},
])
def test_a_cluster_is_joined_by_ray_alone(settings):
    refused("ray_address must be None unless an engine is 'ray' or 'auto', got 'host:6379'",
            off_policy_degree=2, ray_address='host:6379', **settings)


@pytest.mark.parametrize('settings', [
    {'engine': 'ray'}, {'engine': 'auto'}, {'collector_engine': 'ray'}, {'evaluator_engine': 'ray'},
    {'engine': 'process', 'evaluator_engine': 'auto'},
])
def test_one_role_is_enough_to_join_a_cluster(settings):
    assert AsyncConfig(off_policy_degree=2, ray_address='host:6379', **settings).ray_address == 'host:6379'
