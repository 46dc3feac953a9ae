"""How many cores there are, and how the roles share them."""
import os

import pytest

from lzero_async.core import cores
from lzero_async.core.cores import CorePlan, available_cores, core_plan, cpu_quota, usable_cores

CORES = (1, 2, 3, 4, 8, 64)
COLLECTORS = range(1, 11)


@pytest.fixture
def groups(tmp_path):
    """`groups(own, files)`: the quota that the files of control groups amount to, in cores."""
    root, own = tmp_path / 'cgroup', tmp_path / 'own'
    root.mkdir()

    def quota_of(own_lines, files):
        if own_lines is not None:
            own.write_text(''.join(f'{line}\n' for line in own_lines))
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(f'{content}\n')
        return cpu_quota(root, own)

    return quota_of


def v1(folder, quota, period=100000):
    return {f'{folder}/cpu.cfs_quota_us': quota, f'{folder}/cpu.cfs_period_us': period}


# -------------------------------------------------------------------- no quota


@pytest.mark.parametrize('own', [None, [], ['0::/'], ['0::/a/b'], ['3:memory:/a', '2:cpu,cpuacct:/a', '0::/']])
def test_without_files_there_is_no_quota(groups, own):
    assert groups(own, {}) is None


def test_there_need_not_be_any_control_groups(tmp_path):
    assert cpu_quota(tmp_path / 'missing', tmp_path / 'none') is None


@pytest.mark.parametrize('files', [
    {'cpu.max': 'max 100000'},
    {'cpu.max': ''},
    v1('cpu', -1),
    v1('cpu', 0),
    {'cpu/cpu.cfs_quota_us': 200000},  # of what?
    {'cpu/cpu.cfs_period_us': 100000},
])
def test_files_that_set_no_quota(groups, files):
    assert groups(['0::/'], files) is None


def test_what_cannot_be_read_sets_no_quota(groups):
    assert groups(['0::/'], {'cpu.max/folder': 'a folder in the place of a file'}) is None


# -------------------------------------------------------------------- a quota


@pytest.mark.parametrize('content, quota', [
    ('200000 100000', 2.0), ('50000 100000', 0.5), ('150000 50000', 3.0), ('1000 8000', 0.125),
])
def test_the_quota_of_version_2_is_time_per_period(groups, content, quota):
    assert groups(None, {'cpu.max': content}) == quota


@pytest.mark.parametrize('folder', ['.', 'cpu', 'cpu,cpuacct'])
def test_the_quota_of_version_1_is_time_per_period(groups, folder):
    assert groups(None, v1(folder, 150000, 50000)) == 3.0


@pytest.mark.parametrize('own, folder', [
    ('0::/docker/one', 'docker/one'),
    ('0::/docker/one', 'docker'),
    ('0::/system.slice/a:b.service', 'system.slice/a:b.service'),  # a colon of its own
])
def test_a_quota_of_our_group_or_one_above_it_counts(groups, own, folder):
    assert groups([own], {f'{folder}/cpu.max': '300000 100000'}) == 3.0


@pytest.mark.parametrize('own, folder', [
    ('4:cpu,cpuacct:/docker/one', 'cpu,cpuacct/docker/one'),
    ('4:cpu,cpuacct:/docker/one', 'cpu,cpuacct/docker'),
    ('4:cpu:/docker/one', 'cpu/docker/one'),
])
def test_so_does_one_of_version_1(groups, own, folder):
    assert groups(['5:memory:/elsewhere', own], v1(folder, 300000)) == 3.0


@pytest.mark.parametrize('own, files', [
    (['0::/docker/one'], {'docker/two/cpu.max': '100000 100000'}),
    (['0::/docker/one'], {'docker/one/below/cpu.max': '100000 100000'}),
    (['4:cpuset:/docker/one'], v1('cpuset/docker/one', 100000)),  # another controller
    (['4:memory:/one'], {'one/cpu.max': '100000 100000'}),
])
def test_a_quota_of_others_does_not_count(groups, own, files):
    assert groups(own, files) is None


@pytest.mark.parametrize('outer, inner, least', [
    ('400000 100000', '200000 100000', 2.0),
    ('200000 100000', '400000 100000', 2.0),
    ('max 100000', '200000 100000', 2.0),
    ('200000 100000', 'max 100000', 2.0),
])
def test_the_least_on_the_way_counts(groups, outer, inner, least):
    assert groups(['0::/a/b/c'], {'a/cpu.max': outer, 'a/b/c/cpu.max': inner}) == least


def test_the_least_of_both_versions_counts(groups):
    own = ['4:cpu,cpuacct:/a', '0::/a']
    assert groups(own, {**v1('cpu,cpuacct/a', 150000), 'a/cpu.max': '200000 100000'}) == 1.5
    assert groups(own, {'cpu.max': '100000 100000'}) == 1.0


def test_the_root_counts_where_it_is_our_own_group(groups):
    assert groups(['0::/'], {'cpu.max': '250000 100000'}) == 2.5
    assert groups(['0::/not/seen/from/in/here'], {}) == 2.5


# -------------------------------------------------------------------- how many


@pytest.mark.parametrize('usable, quota, available', [
    (4, None, 4), (4, 8.0, 4), (4, 4.0, 4), (4, 2.0, 2), (4, 2.9, 2), (4, 1.5, 1), (4, 0.5, 1), (1, None, 1),
    (1, 0.1, 1), (64, 63.99, 63),
])
def test_whole_cores_are_available_and_at_least_one(monkeypatch, usable, quota, available):
    monkeypatch.setattr(cores, 'usable_cores', lambda: list(range(usable)))
    monkeypatch.setattr(cores, 'cpu_quota', lambda: quota)
    assert available_cores() == available


def test_what_we_may_run_on():
    assert usable_cores() == sorted(os.sched_getaffinity(0))
    assert 1 <= available_cores() <= len(usable_cores())


@pytest.mark.parametrize('count, numbers', [(3, [0, 1, 2]), (None, [0])])
def test_where_the_system_has_no_affinity_all_cores_count(monkeypatch, count, numbers):
    monkeypatch.delattr(os, 'sched_getaffinity')
    monkeypatch.setattr(os, 'cpu_count', lambda: count)
    assert usable_cores() == numbers


# -------------------------------------------------------------------- shares


def shares(count, collectors):
    plan = CorePlan(range(100, 100 + count), collectors)
    return {role: plan.cores_of(role)
            for role in ('learner', 'evaluator', *(f'collector-{index}' for index in range(collectors)))}


@pytest.mark.parametrize('count', CORES)
@pytest.mark.parametrize('collectors', COLLECTORS)
def test_every_role_has_cores_and_only_such_as_there_are(count, collectors):
    for role, own in shares(count, collectors).items():
        assert own, role
        assert own <= set(range(100, 100 + count)), role


@pytest.mark.parametrize('count', CORES)
@pytest.mark.parametrize('collectors', COLLECTORS)
def test_roles_do_not_share_where_there_are_enough(count, collectors):
    shared = shares(count, collectors)
    learner = shared.pop('learner')
    evaluator = shared.pop('evaluator')
    if count > 1:
        assert all(not learner & own for own in (evaluator, *shared.values()))
    if count - len(learner) >= collectors:
        assert sum(map(len, shared.values())) == len(frozenset().union(*shared.values()))


@pytest.mark.parametrize('count', CORES)
@pytest.mark.parametrize('collectors', COLLECTORS)
def test_collectors_have_equal_shares_and_threads_to_match(count, collectors):
    plan, shared = CorePlan(range(count), collectors), shares(count, collectors)
    assert len(shared.pop('learner')) == plan.learner_threads == max(1, count // 2)
    shared.pop('evaluator')
    assert {len(own) for own in shared.values()} == {plan.collector_threads}


@pytest.mark.parametrize('count, collectors, learner, collector', [
    (1, 1, 1, 1), (2, 1, 1, 1), (3, 1, 1, 2), (4, 1, 2, 2), (8, 1, 4, 4), (8, 3, 4, 1), (64, 3, 32, 10),
    (64, 1, 32, 32),
])
def test_the_learner_has_half_and_the_collectors_the_rest(count, collectors, learner, collector):
    plan = CorePlan(range(count), collectors)
    assert (plan.learner_threads, plan.collector_threads) == (learner, collector)


def test_where_there_are_too_few_collectors_share_evenly():
    shared = shares(8, 10)  # four for ten
    uses = [sum(core in shared[f'collector-{index}'] for index in range(10)) for core in range(104, 108)]
    assert uses == [3, 3, 2, 2]


def test_the_shares_of_an_example():
    assert shares(8, 2) == {
        'learner': {100, 101, 102, 103}, 'evaluator': {104, 105, 106, 107},
        'collector-0': {104, 105}, 'collector-1': {106, 107},
    }
    assert set(shares(1, 3).values()) == {frozenset({100})}


def test_the_plan_of_this_machine(monkeypatch):
    monkeypatch.setattr(cores, 'usable_cores', lambda: [3, 5, 7, 9])
    monkeypatch.setattr(cores, 'cpu_quota', lambda: 3.5)
    assert core_plan(2) == CorePlan([3, 5, 7], 2)
