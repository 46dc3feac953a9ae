"""How many workers a role may lose."""
import pickle

import pytest
from fakes import FakeClock, at_once
from loops import listening

from lzero_async.core import restarts as restarts_module
from lzero_async.core.errors import LzeroAsyncError, RestartsExhausted, WorkerLost
from lzero_async.core.restarts import Restarts

WINDOW = 60.0


def make(most=3):
    clock = FakeClock(1000.0)
    return Restarts(most, WINDOW, clock), clock


def lost(number=1):
    return WorkerLost(f'worker {number} is gone')


def spend(restarts, role='collector-0', times=1):
    for number in range(times):
        restarts.spend(role, lost(number))


def is_exhausted(restarts, role='collector-0'):
    try:
        restarts.spend(role, lost())
    except RestartsExhausted:
        return True
    return False


def count(restarts):
    return restarts.numbers()['worker_restarts']


# -------------------------------------------------------------------- the budget


@pytest.mark.parametrize('most', [0, 1, 3])
def test_a_role_may_lose_so_many_workers_and_no_more(most):
    restarts, _ = make(most)
    spend(restarts, times=most)
    for _ in range(2):  # and it stays so
        with pytest.raises(RestartsExhausted):
            restarts.spend('collector-0', lost())
    assert restarts.numbers() == {'worker_restarts': most}


def test_each_role_has_a_budget_of_its_own():
    restarts, _ = make(2)
    for role in ('collector-0', 'collector-1', 'evaluator'):
        spend(restarts, role, times=2)
    assert count(restarts) == 6
    assert all(is_exhausted(restarts, role) for role in ('collector-0', 'collector-1', 'evaluator'))
    spend(restarts, 'collector-2')
    assert count(restarts) == 7


def test_nothing_was_lost_yet():
    assert make()[0].numbers() == {'worker_restarts': 0}


# -------------------------------------------------------------------- the window


def test_time_gives_back_what_was_spent():
    restarts, clock = make(1)
    spend(restarts)
    clock.advance(WINDOW)
    assert is_exhausted(restarts)  # still within the window, if only just
    clock.advance(0.25)
    spend(restarts)
    assert is_exhausted(restarts)
    assert count(restarts) == 2  # those of the whole run


def test_what_was_spent_is_given_back_one_by_one():
    restarts, clock = make(2)
    spend(restarts)  # at 0
    clock.advance(40)
    spend(restarts)  # at 40
    clock.advance(40)  # at 80 the first is back
    spend(restarts)
    assert is_exhausted(restarts)
    clock.advance(40)  # at 120 the second is back, the third not yet
    spend(restarts)
    assert is_exhausted(restarts)


def test_a_loss_that_was_one_too_many_is_not_spent():
    restarts, clock = make(1)
    spend(restarts)
    for _ in range(3):
        clock.advance(WINDOW / 4)
        assert is_exhausted(restarts)
    clock.advance(WINDOW / 2)
    assert not is_exhausted(restarts)


# -------------------------------------------------------------------- what is told


def test_the_end_of_the_budget_tells_the_last_loss():
    restarts, _ = make(2)
    spend(restarts, 'evaluator', times=2)
    last = lost(7)
    with pytest.raises(RestartsExhausted) as exhausted:
        restarts.spend('evaluator', last)
    assert exhausted.value.__cause__ is last
    assert str(exhausted.value) == (
        'evaluator was replaced 2 times within 60 s (max_worker_restarts 2), and was lost once more: worker 7 is gone'
    )
    assert isinstance(exhausted.value, LzeroAsyncError)
    assert not isinstance(exhausted.value, WorkerLost)  # it is not to be replaced once more


def test_the_end_of_the_budget_is_told_across_processes():
    restarts, _ = make(0)
    with pytest.raises(RestartsExhausted) as exhausted:
        spend(restarts)
    copy = pickle.loads(pickle.dumps(exhausted.value))
    assert (type(copy), str(copy)) == (RestartsExhausted, str(exhausted.value))


def test_each_replacement_is_logged_with_its_place_in_the_budget():
    restarts, clock = make(2)
    with listening() as ear:
        spend(restarts, 'collector-1', times=2)
        clock.advance(WINDOW + 1)
        spend(restarts, 'collector-1')
    assert ear.messages == [
        'collector-1 is replaced, 1 of 2 times within 60 s: worker 0 is gone',
        'collector-1 is replaced, 2 of 2 times within 60 s: worker 1 is gone',
        'collector-1 is replaced, 1 of 2 times within 60 s: worker 0 is gone',
    ]


def test_a_loss_that_was_one_too_many_is_no_replacement():
    restarts, _ = make(0)
    with listening() as ear:
        assert is_exhausted(restarts)
    assert ear.messages == []


# -------------------------------------------------------------------- threads


def test_of_many_losses_at_once_so_many_are_replaced(restless_in):
    restless_in(restarts_module)
    restarts, _ = make(10)
    exhausted = at_once(lambda _: [is_exhausted(restarts) for _ in range(5)], threads=6)
    assert sum(turns.count(False) for turns in exhausted) == count(restarts) == 10


def test_losses_of_several_roles_at_once_do_not_mix(restless_in):
    restless_in(restarts_module)
    restarts, _ = make(5)
    exhausted = at_once(lambda number: [is_exhausted(restarts, f'collector-{number}') for _ in range(6)], threads=6)
    assert exhausted == 6 * [[False] * 5 + [True]]
    assert count(restarts) == 30


# -------------------------------------------------------------------- another worker


class Role:
    """Its next workers are lost while they start, `lost_at_start` of them."""

    def __init__(self, lost_at_start):
        self._lost_at_start = lost_at_start
        self.started = 0

    def replace(self):
        self.started += 1
        if self.started <= self._lost_at_start:
            raise lost(self.started)


@pytest.mark.parametrize('lost_at_start', [0, 1, 2])
def test_workers_are_started_until_one_is_there(lost_at_start):
    restarts, _ = make(3)
    role = Role(lost_at_start)
    restarts.replace('collector-0', role, lost())
    assert role.started == count(restarts) == lost_at_start + 1


def test_workers_that_are_lost_at_the_start_are_not_started_for_ever():
    restarts, _ = make(3)
    role = Role(lost_at_start=9)
    with pytest.raises(RestartsExhausted, match='worker 3 is gone'):
        restarts.replace('collector-0', role, lost())
    assert role.started == count(restarts) == 3
