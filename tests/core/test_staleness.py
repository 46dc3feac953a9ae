import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lzero_async.core.staleness import Pull, StalenessRules, within_bound

# -------------------------------------------------------------------- the rules


@pytest.mark.parametrize('threshold, staleness, is_stale', [
    (0, 0, False),
    (0, 1, True),
    (3, 2, False),
    (3, 3, False),
    (3, 4, True),
])
def test_stale_is_above_the_threshold(threshold, staleness, is_stale):
    assert StalenessRules(staleness_threshold=threshold).is_stale(staleness) is is_stale


@pytest.mark.parametrize('most, oldest, staleness, age, why', [
    (5, None, 0, 0.0, None),
    (5, None, 5, 1e9, None),
    (5, None, 6, 0.0, 'staleness 6 > max_staleness_allowed 5'),
    (0, None, 0, 0.0, None),
    (0, None, 1, 0.0, 'staleness 1 > max_staleness_allowed 0'),
    (5, 2.5, 5, 2.5, None),
    (5, 2.5, 5, 2.51, 'age 2.51 s > max_sample_age_s 2.5'),
    (5, 2.5, 0, 100.0, 'age 100.00 s > max_sample_age_s 2.5'),
    (5, 30.0, 0, 31.0, 'age 31.00 s > max_sample_age_s 30'),
    (5, 2.5, 6, 3.0, 'staleness 6 > max_staleness_allowed 5'),  # the first rule that is broken is named
])
def test_dropped_is_above_a_bound(most, oldest, staleness, age, why):
    rules = StalenessRules(max_staleness_allowed=most, max_sample_age_s=oldest)
    assert rules.why_dropped(staleness, age) == why


def test_the_rules_as_they_come():
    assert StalenessRules() == StalenessRules(3, 5, None, 20)


# -------------------------------------------------------------------- the bound


def pulls_of(*pulls):
    """From (rounds, degree) each, with slots in that order."""
    return tuple(Pull(rounds, slot, degree) for slot, (rounds, degree) in enumerate(pulls))


@pytest.mark.parametrize('pulls, train_count, paid, within', [
    ([], 99, 0, True),
    # one: 4 + 0 - 2 = 2 <= 2, 5 + 0 - 2 = 3
    ([(2, 2)], 4, 0, True),
    ([(2, 2)], 5, 0, False),
    # serial: 7 + 0 - 7 = 0 <= 0, 8 + 0 - 7 = 1
    ([(7, 0)], 7, 0, True),
    ([(7, 0)], 8, 0, False),
    # both of round 0: 1 + 0 - 0 = 1, 1 + 1 - 0 = 2
    ([(0, 2), (0, 2)], 1, 0, True),
    ([(0, 1), (0, 1)], 1, 0, False),
    ([(0, 1), (0, 2)], 1, 0, True),
    # the oldest goes first, wherever it stands: 5 + 0 - 2 = 3, 5 + 1 - 5 = 1
    ([(5, 3), (2, 3)], 5, 0, True),
    # 6 + 0 - 2 = 4
    ([(5, 3), (2, 3)], 6, 0, False),
    # of equal rounds the smaller slot goes first: slot 0 waits for none, slot 1 for one: 3 + 1 - 3 = 1
    ([(3, 0), (3, 1)], 3, 0, True),
    ([(3, 1), (3, 0)], 3, 0, False),
    # one is paid for: 2 + 0 - 0, 2 + max(0, 1 - 1) - 0, 2 + max(0, 2 - 1) - 0 = 3
    ([(0, 2), (0, 2)], 2, 1, True),
    ([(0, 2), (0, 2), (0, 2)], 2, 1, False),
    ([(0, 2), (0, 2), (0, 3)], 2, 1, True),
    # more is paid for than there is: 2 + max(0, 1 - 5) - 0 = 2
    ([(0, 2), (0, 2)], 2, 5, True),
    # a payment does not bring back what is too late already: 3 + 0 - 0 = 3
    ([(0, 2)], 3, 5, False),
    # the newest weights: 4 + 0 - 4 = 0
    ([(4, 1)], 4, 0, True),
])
def test_within_bound(pulls, train_count, paid, within):
    assert within_bound(pulls_of(*pulls), train_count, paid) is within


def test_the_order_of_a_pull():
    assert Pull(rounds=3, slot=7, degree=2).order == (3, 7)


rounds = st.integers(0, 5)
degrees = st.integers(0, 5)
train_counts = st.integers(0, 8)
payments = st.integers(0, 4)
some_pulls = st.lists(st.tuples(rounds, degrees), max_size=5).map(lambda pulls: pulls_of(*pulls))


def stays_within(order, train_count, paid):
    """Train them one after the other, in that order."""
    for pull in order:
        if train_count - pull.rounds > pull.degree:
            return False
        if paid:
            paid -= 1
        else:
            train_count += 1
    return True


def oldest_first(pulls):
    return sorted(pulls, key=lambda pull: (pull.rounds, pull.slot))


@given(some_pulls, train_counts, payments)
def test_within_bound_is_what_training_the_oldest_first_shows(pulls, train_count, paid):
    assert within_bound(pulls, train_count, paid) is stays_within(oldest_first(pulls), train_count, paid)


@given(st.lists(rounds, max_size=5), degrees, train_counts, payments)
def test_with_one_degree_no_other_order_does_better(pulled, degree, train_count, paid):
    pulls = pulls_of(*((rounds, degree) for rounds in pulled))
    any_order = any(stays_within(order, train_count, paid) for order in itertools.permutations(pulls))
    assert within_bound(pulls, train_count, paid) is any_order


@given(some_pulls, train_counts, payments, st.randoms(use_true_random=False))
def test_the_order_of_the_tuple_does_not_matter(pulls, train_count, paid, random):
    shuffled = random.sample(pulls, len(pulls))
    assert within_bound(tuple(shuffled), train_count, paid) is within_bound(pulls, train_count, paid)


@given(some_pulls, st.tuples(rounds, degrees), train_counts, payments)
def test_one_more_pull_never_helps(pulls, more, train_count, paid):
    more = (*pulls, Pull(more[0], len(pulls), more[1]))
    if within_bound(more, train_count, paid):
        assert within_bound(pulls, train_count, paid)


@given(some_pulls, train_counts, payments)
def test_one_more_round_never_helps_and_one_more_payment_never_harms(pulls, train_count, paid):
    if within_bound(pulls, train_count + 1, paid):
        assert within_bound(pulls, train_count, paid)
    if within_bound(pulls, train_count, paid):
        assert within_bound(pulls, train_count, paid + 1)


@given(some_pulls.filter(bool), train_counts, payments)
def test_the_oldest_may_always_go(pulls, train_count, paid):
    others = tuple(oldest_first(pulls)[1:])
    if within_bound(pulls, train_count, paid):
        after = (train_count, paid - 1) if paid else (train_count + 1, 0)
        assert within_bound(others, *after)
