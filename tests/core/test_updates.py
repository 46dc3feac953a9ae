import pytest
from hypothesis import given
from hypothesis import strategies as st

from lzero_async.core.updates import UpdateAccount

batches = st.lists(st.integers(0, 2000), max_size=40)
ratios = st.floats(0, 8, allow_nan=False)


def owed_for(account, transitions):
    for count in transitions:
        account.owe(count)
    return account.owed


@pytest.mark.parametrize('ratio, per_collect, carry, transitions, owed', [
    (0.25, None, True, [10, 10, 10], 7),  # int(0.25 * 30)
    (0.25, None, False, [10, 10, 10], 6),  # 3 * int(2.5)
    (0.25, None, True, [3, 1], 1),
    (0.25, None, False, [3, 1], 0),  # int(0.75) + int(0.25)
    (0.25, 5, True, [10, 10, 10], 15),
    (0.25, 5, False, [10, 10, 10], 15),
    (0.25, 0, True, [10, 10, 10], 0),
    (2.0, None, True, [4], 8),
    (0.0, None, True, [100], 0),
    (0.25, None, True, [], 0),
])
def test_owed(ratio, per_collect, carry, transitions, owed):
    assert owed_for(UpdateAccount(ratio, per_collect, carry), transitions) == owed


def test_paying_lowers_what_is_owed_and_prepaying_makes_it_negative():
    account = UpdateAccount(0.5, None, carry_fraction=True)
    account.owe(20)  # 10
    account.pay(4)
    assert account.owed == 6
    account.pay(10)
    assert account.owed == -4
    account.owe(6)  # 3
    assert account.owed == -1


@given(batches, ratios)
def test_with_carry_the_whole_run_keeps_the_ratio(transitions, ratio):
    owed = owed_for(UpdateAccount(ratio, None, carry_fraction=True), transitions)
    assert owed == int(ratio * sum(transitions))
    assert abs(owed - ratio * sum(transitions)) <= 1


@given(batches, ratios)
def test_paying_each_round_makes_the_same_total(transitions, ratio):
    account = UpdateAccount(ratio, None, carry_fraction=True)
    paid = 0
    for count in transitions:
        account.owe(count)
        due = account.owed
        assert due >= 0
        account.pay(due)
        paid += due
    assert paid == int(ratio * sum(transitions))


@given(batches, ratios)
def test_without_carry_each_collect_is_rounded_down(transitions, ratio):
    owed = owed_for(UpdateAccount(ratio, None, carry_fraction=False), transitions)
    assert owed == sum(int(count * ratio) for count in transitions)


@given(batches, ratios, st.booleans(), st.integers(0, 50))
def test_update_per_collect_replaces_the_ratio(transitions, ratio, carry, per_collect):
    owed = owed_for(UpdateAccount(ratio, per_collect, carry), transitions)
    assert owed == per_collect * len(transitions)
