import random

import pytest
from fakes import TIMEOUT, start, watch
from hypothesis import given
from hypothesis import strategies as st

from lzero_async.core.errors import BoundBroken
from lzero_async.core.outstanding import Claim, Outlook, OutstandingRounds


def pull(outstanding, rounds, degree):
    outstanding.expect()
    return outstanding.open(rounds, degree)


def train(outstanding, slot):
    claim = outstanding.claim(slot)
    assert claim is not None and not claim.paid
    outstanding.finish()


def train_ahead(outstanding):
    assert outstanding.claim_ahead()
    outstanding.finish()


def trained(rounds):
    """After so many rounds, with nothing outstanding."""
    outstanding = OutstandingRounds()
    for _ in range(rounds):
        train(outstanding, pull(outstanding, outstanding.finished, 0))
    return outstanding


# -------------------------------------------------------------------- a pull


def test_slots_number_the_pulls():
    outstanding = OutstandingRounds()
    assert [pull(outstanding, 0, 9) for _ in range(3)] == [0, 1, 2]
    outstanding.leave(1)
    assert pull(outstanding, 0, 9) == 3


def test_a_refused_pull_takes_no_slot():
    outstanding = trained(3)
    assert pull(outstanding, 0, 2) is None
    assert outstanding.idle
    assert pull(outstanding, 1, 2) == 3


@pytest.mark.parametrize('rounds, degree, allowed', [
    (5, 0, True),  # 5 + 0 - 5 = 0
    (4, 0, False),
    (4, 1, True),
    (2, 3, True),  # 5 + 0 - 2 = 3
    (1, 3, False),
])
def test_a_pull_must_be_able_to_stay_within_its_bound(rounds, degree, allowed):
    assert (pull(trained(5), rounds, degree) is not None) is allowed


def test_a_round_that_is_being_trained_counts_for_a_pull():
    outstanding = trained(1)
    outstanding.claim(pull(outstanding, 1, 1))
    assert pull(outstanding, 0, 1) is None  # 2 + 0 - 0 = 2
    assert pull(outstanding, 1, 1) is not None  # 2 + 0 - 1 = 1


def test_a_pull_of_old_weights_must_leave_others_within_their_bounds():
    outstanding = trained(3)
    assert pull(outstanding, 3, 0) is not None
    assert pull(outstanding, 2, 9) is None  # the other would be trained second: 3 + 1 - 3 = 1 > 0
    assert pull(outstanding, 3, 1) is not None  # goes second itself: 3 + 1 - 3 = 1


def test_how_things_stand_when_a_pull_begins():
    outstanding = trained(2)
    assert outstanding.expect() == Outlook(finished=2, idle=True)
    assert outstanding.expect() == Outlook(2, idle=False)  # another is on its way
    outstanding.leave(None)
    outstanding.leave(None)
    assert outstanding.expect().idle
    slot = outstanding.open(2, 1)
    assert not outstanding.expect().idle
    outstanding.leave(None)
    outstanding.claim(slot)
    assert not outstanding.expect().idle
    outstanding.leave(None)
    outstanding.finish()
    assert outstanding.expect() == Outlook(3, idle=True)


def test_idle_while_nothing_is_expected_outstanding_or_trained():
    outstanding = OutstandingRounds()
    seen = [outstanding.idle]
    outstanding.expect()
    seen.append(outstanding.idle)
    slot = outstanding.open(0, 1)
    seen.append(outstanding.idle)
    outstanding.claim(slot)
    seen.append(outstanding.idle)
    outstanding.finish()
    seen.append(outstanding.idle)
    outstanding.claim_ahead()
    seen.append(outstanding.idle)
    outstanding.finish()
    seen.append(outstanding.idle)
    assert seen == [True, False, False, False, True, False, True]
    assert (outstanding.finished, outstanding.paid) == (2, 1)


# -------------------------------------------------------------------- a claim


def test_the_bound_is_the_degree_at_the_pull():
    outstanding = OutstandingRounds()
    slots = [pull(outstanding, 0, degree) for degree in (4, 2, 7)]
    claims = []
    for slot in slots:
        claims.append(outstanding.claim(slot))
        outstanding.finish()
    assert claims == [Claim(paid=False, bound=4), Claim(False, 2), Claim(False, 7)]


def test_what_is_claimed_leaves_all_others_within_their_bounds():
    outstanding = OutstandingRounds()
    slow = pull(outstanding, 0, 2)
    train(outstanding, pull(outstanding, 0, 2))
    train(outstanding, pull(outstanding, 1, 2))
    late = pull(outstanding, 2, 2)
    assert outstanding.claim(late) is None  # slow: 3 + 0 - 0 = 3
    train(outstanding, slow)
    train(outstanding, late)
    assert outstanding.idle


def test_a_claim_counts_for_others_from_its_beginning():
    outstanding = OutstandingRounds()
    first, second = pull(outstanding, 0, 1), pull(outstanding, 0, 1)
    assert outstanding.claim(first) == Claim(False, 1)
    assert outstanding.finished == 0
    assert pull(outstanding, 0, 1) is None  # 1 + 1 - 0 = 2, as before the claim
    outstanding.finish()
    assert outstanding.finished == 1
    train(outstanding, second)


def test_what_leaves_frees_the_others():
    outstanding = OutstandingRounds()
    slow = pull(outstanding, 0, 1)
    train(outstanding, pull(outstanding, 0, 1))
    late = pull(outstanding, 1, 1)
    assert outstanding.claim(late) is None  # slow: 2 + 0 - 0 = 2
    outstanding.leave(slow)
    train(outstanding, late)


def test_what_is_dropped_costs_no_round():
    outstanding = OutstandingRounds()
    first, second = pull(outstanding, 0, 1), pull(outstanding, 0, 1)
    outstanding.drop(outstanding.claim(first))
    assert (outstanding.finished, outstanding.idle) == (0, False)
    assert pull(outstanding, 0, 1) is not None  # 0 + 1 - 0 = 1
    train(outstanding, second)


@pytest.mark.parametrize('call', ['leave', 'claim'])
def test_a_slot_that_is_not_outstanding(call):
    outstanding = OutstandingRounds()
    slot = pull(outstanding, 0, 1)
    outstanding.leave(slot)
    with pytest.raises(KeyError):
        getattr(outstanding, call)(slot)


# -------------------------------------------------------------------- in advance


def test_training_ahead_pays_for_a_batch_to_come():
    outstanding = OutstandingRounds()
    slots = [pull(outstanding, 0, 1), pull(outstanding, 0, 1)]
    train_ahead(outstanding)  # 1 + 0 - 0 = 1, 1 + max(0, 1 - 1) - 0 = 1
    assert (outstanding.finished, outstanding.paid) == (1, 1)
    assert not outstanding.claim_ahead()  # 2 + 0 - 0 = 2
    assert (outstanding.finished, outstanding.paid) == (1, 1)
    assert outstanding.claim(slots[0]) == Claim(paid=True, bound=1)
    assert (outstanding.finished, outstanding.paid) == (1, 0)
    train(outstanding, slots[1])
    assert (outstanding.finished, outstanding.paid) == (2, 0)


def test_a_round_in_advance_counts_for_a_pull_from_its_beginning():
    outstanding = trained(1)
    assert outstanding.claim_ahead()
    assert outstanding.paid == 1
    assert pull(outstanding, 0, 1) is None  # 2 + 0 - 0 = 2
    assert [pull(outstanding, 1, 1) for _ in range(2)] == [1, 2]  # the payment is there as well: 2 + (1 - 1) - 1 = 1
    assert pull(outstanding, 1, 1) is None  # 2 + (2 - 1) - 1 = 2


def two_that_need_the_payment(late_degree):
    """At their last round two batches are outstanding, of which the one round in advance pays for one."""
    outstanding = OutstandingRounds()
    slots = [pull(outstanding, 0, 2), pull(outstanding, 0, 2)]
    train(outstanding, pull(outstanding, 0, 2))
    train_ahead(outstanding)
    return outstanding, slots, pull(outstanding, 2, late_degree)


def test_a_payment_that_older_batches_need_is_kept_for_them():
    outstanding, slots, late = two_that_need_the_payment(late_degree=9)
    # It may have neither the payment (2 + 1 - 0 = 3) nor a round of its own (3 + 0 - 0 = 3).
    assert outstanding.claim(late) is None
    assert (outstanding.finished, outstanding.paid) == (2, 1)
    assert outstanding.claim(slots[1]) == Claim(paid=True, bound=2)
    assert outstanding.claim(late) is None
    train(outstanding, slots[0])
    train(outstanding, late)


def test_a_payment_goes_to_a_newer_batch_only_while_older_ones_have_time():
    outstanding = OutstandingRounds()
    slots = [pull(outstanding, 0, 3), pull(outstanding, 0, 3)]
    train(outstanding, pull(outstanding, 0, 3))
    train_ahead(outstanding)
    first, second = pull(outstanding, 2, 3), pull(outstanding, 2, 3)
    assert outstanding.claim(first) == Claim(True, 3)  # 2 + 0 - 0 = 2, 2 + 1 - 0 = 3
    assert outstanding.claim_ahead()  # 3 + 0 - 0 = 3, 3 + (1 - 1) - 0 = 3
    outstanding.finish()
    assert outstanding.claim(second) is None  # 3 + 1 - 0 = 4 without the payment, 4 + 0 - 0 = 4 with one more round
    assert outstanding.claim(slots[0]) == Claim(True, 3)
    train(outstanding, slots[1])
    train(outstanding, second)


def test_a_dropped_batch_gives_its_payment_back():
    outstanding = OutstandingRounds()
    train_ahead(outstanding)
    claim = outstanding.claim(pull(outstanding, 1, 1))
    assert (claim.paid, outstanding.paid) == (True, 0)
    outstanding.drop(claim)
    assert (outstanding.paid, outstanding.finished, outstanding.idle) == (1, 1, True)


# -------------------------------------------------------------------- past the bound


@pytest.mark.parametrize('paid', [False, True])
@pytest.mark.parametrize('rounds, degree', [(1, 0), (2, 1), (6, 4)])
def test_a_batch_that_is_forced_past_its_bound_is_refused(paid, rounds, degree):
    outstanding = OutstandingRounds()
    if paid:
        train_ahead(outstanding)
    begun = outstanding.finished
    slot = pull(outstanding, begun, degree)
    for _ in range(rounds):
        outstanding.finish()  # rounds that nobody claimed
    with pytest.raises(BoundBroken) as broken:
        outstanding.claim(slot)
    assert str(broken.value) == (
        f'staleness must be <= off_policy_degree {degree}, got {rounds}: the batch was collected with the weights of '
        f'round {begun}, and {begun + rounds} rounds are trained'
    )


@pytest.mark.parametrize('paid', [False, True])
def test_a_batch_at_its_bound_is_taken(paid):
    outstanding = OutstandingRounds()
    slot = pull(outstanding, 0, 2)
    if paid:
        train_ahead(outstanding)
        train_ahead(outstanding)
    else:
        train(outstanding, pull(outstanding, 0, 2))
        train(outstanding, pull(outstanding, 1, 2))
    assert outstanding.claim(slot) == Claim(paid, 2)


# -------------------------------------------------------------------- waiting


@pytest.fixture
def waiting():
    """Two outstanding, after one round, and a thread that waits for another one."""
    outstanding = trained(1)
    condition = watch(outstanding)
    slots = [pull(outstanding, 1, 9), pull(outstanding, 1, 9)]
    waiter = start(lambda: outstanding.wait_for_round(1), 'waiter')
    condition.await_blocked('waiter')
    yield outstanding, slots, waiter, condition
    outstanding.close()


def test_a_finished_round_ends_the_wait(waiting):
    outstanding, slots, waiter, condition = waiting
    outstanding.claim(slots[0])
    condition.await_blocked('waiter')
    outstanding.finish()
    waiter.result(TIMEOUT)


def test_the_wait_ends_when_nothing_is_left_to_train(waiting):
    outstanding, slots, waiter, condition = waiting
    outstanding.leave(slots[0])
    condition.await_blocked('waiter')
    claim = outstanding.claim(slots[1])
    condition.await_blocked('waiter')
    outstanding.drop(claim)
    waiter.result(TIMEOUT)


@pytest.mark.parametrize('call, arguments', [('leave', (None,)), ('open', (0, 0))])
def test_the_wait_ends_when_what_was_expected_does_not_come(waiting, call, arguments):
    outstanding, slots, waiter, condition = waiting
    outstanding.expect()
    for slot in slots:
        outstanding.leave(slot)
        condition.await_blocked('waiter')
    getattr(outstanding, call)(*arguments)
    waiter.result(TIMEOUT)


def test_the_wait_ends_when_all_the_rest_was_paid_for():
    outstanding = OutstandingRounds()
    train_ahead(outstanding)
    condition = watch(outstanding)
    slot = pull(outstanding, 1, 1)
    waiter = start(lambda: outstanding.wait_for_round(1), 'waiter')
    condition.await_blocked('waiter')
    assert outstanding.claim(slot).paid
    waiter.result(TIMEOUT)


def test_the_end_of_the_run_ends_the_wait(waiting):
    outstanding, _, waiter, _ = waiting
    outstanding.close()
    waiter.result(TIMEOUT)


def test_a_wait_may_time_out(waiting):
    outstanding, *_ = waiting
    start(lambda: outstanding.wait_for_round(1, 0.01)).result(TIMEOUT)


def test_nothing_is_waited_for_that_has_been():
    outstanding = trained(1)
    pull(outstanding, 1, 1)
    outstanding.wait_for_round(0)
    trained(1).wait_for_round(1)


# -------------------------------------------------------------------- any legal sequence of events


class Simulation:
    """Collectors, a learner and their gates, in one thread: whatever may happen next, may.

    A collect starts when the lag law lets it, with the newest weights or older ones, and any time may pass between its
    pull and its slot. The learner claims any batch that has arrived, oldest or not. `calm`: nothing fails.
    """

    def __init__(self, degree, ahead, collectors, calm=False):
        self.rounds = OutstandingRounds()
        self.degree = degree
        self.ahead = ahead
        self.collectors = collectors
        self.calm = calm
        self.pulling = []
        self.opened = {}
        self.in_flight = []
        self.arrived = []
        self.claimed = None
        self.staleness = []

    def legal(self):
        moves = []
        if len(self.pulling) + len(self.in_flight) < self.collectors and self.lag() < self.degree:
            moves += [(self.begin_pull, age) for age in range(1 if self.calm else 3)]
        moves += [(self.open, place) for place in range(len(self.pulling))]
        moves += [(self.arrive, slot) for slot in self.in_flight]
        if not self.calm:
            moves += [(self.fail_pull, place) for place in range(len(self.pulling))]
            moves += [(self.fail, slot) for slot in self.in_flight]
        if self.claimed:
            moves += [(self.finish,), (self.finish,)]
        else:
            moves += [(self.claim, slot) for slot in self.arrived]
            moves += [] if self.calm else [(self.drop, slot) for slot in self.arrived]
            if not self.arrived and self.rounds.paid < self.ahead:
                moves.append((self.claim_ahead,))
        return moves

    def lag(self):
        """As the coordinator counts: a round in advance counts once it is finished."""
        paid = self.rounds.paid - (self.claimed == 'ahead')
        return len(self.pulling) + len(self.opened) + (self.claimed == 'batch') - paid

    def oldest(self):
        return min(self.opened, key=lambda slot: (self.opened[slot], slot))

    def begin_pull(self, age):
        self.rounds.expect()
        # The weights of a round are published before it counts as finished.
        self.pulling.append(max(0, self.rounds.finished + bool(self.claimed) - age))

    def open(self, place):
        rounds = self.pulling.pop(place)
        slot = self.rounds.open(rounds, self.degree)
        if rounds >= self.rounds.finished:
            assert slot is not None, 'the weights of the last round are always good enough'
        if slot is not None:
            self.opened[slot] = rounds
            self.in_flight.append(slot)

    def fail_pull(self, place):
        del self.pulling[place]
        self.rounds.leave(None)

    def arrive(self, slot):
        self.in_flight.remove(slot)
        self.arrived.append(slot)

    def fail(self, slot):
        self.in_flight.remove(slot)
        self.rounds.leave(slot)
        del self.opened[slot]

    def claim(self, slot):
        paid = bool(self.rounds.paid)
        claim = self.rounds.claim(slot)
        assert claim is None or claim.paid is paid
        if claim is None:
            assert slot != self.oldest(), 'the oldest may always go'
            return None
        self.staleness.append(self.rounds.finished - self.opened.pop(slot))
        self.arrived.remove(slot)
        if not claim.paid:
            self.claimed = 'batch'
        return claim

    def drop(self, slot):
        claim = self.claim(slot)
        if claim is not None:
            self.rounds.drop(claim)
            self.claimed = None

    def claim_ahead(self):
        if self.rounds.claim_ahead():
            self.claimed = 'ahead'

    def finish(self):
        self.rounds.finish()
        self.claimed = None

    def drain(self):
        """All collects end, and the learner takes one batch after the other, as it does: the oldest first."""
        while self.pulling:
            self.open(0)
        for slot in list(self.in_flight):
            self.arrive(slot)
        if self.claimed:
            self.finish()
        while self.arrived:
            self.claim(self.oldest())
            if self.claimed:
                self.finish()
        assert self.rounds.idle

    def check(self):
        assert all(0 <= staleness <= self.degree for staleness in self.staleness)
        assert self.lag() <= self.degree


def play(degree, ahead, collectors, moves, calm=False):
    """Yield the simulation at the start and after every move."""
    simulation = Simulation(degree, ahead, collectors, calm)
    yield simulation
    for choice in moves:
        legal = simulation.legal()
        move, *arguments = legal[choice % len(legal)]
        move(*arguments)
        yield simulation


degrees = st.integers(1, 5)
aheads = st.integers(0, 3)
crowds = st.integers(1, 5)
choices = st.lists(st.integers(0, 2519), max_size=150)


@given(degrees, aheads, crowds, choices)
def test_no_batch_passes_its_bound_and_the_oldest_may_always_go(degree, ahead, collectors, moves):
    for now in play(degree, ahead, collectors, moves):
        now.check()


@given(degrees, aheads, crowds, choices)
def test_once_all_collects_have_ended_everything_can_be_trained(degree, ahead, collectors, moves):
    *_, now = play(degree, ahead, collectors, moves)
    now.drain()
    now.check()


@pytest.mark.parametrize('calm', [False, True])
@pytest.mark.parametrize('degree', [1, 2, 3, 5])
def test_long_plays(degree, calm):
    for seed in range(100):
        rng = random.Random(seed)
        ahead, collectors = rng.choice([0, 1, 1, 3]), rng.choice([1, 2, 4, 6])
        moves = (rng.randrange(2520) for _ in range(rng.randrange(200)))
        for now in play(degree, ahead, collectors, moves, calm):
            now.check()
        now.drain()
        now.check()


@given(degrees, crowds, choices)
def test_a_batch_kept_waiting_past_its_bound_is_refused_in_any_state(degree, collectors, moves):
    *_, now = play(degree, 0, collectors, moves)
    if now.claimed:
        now.finish()
    if now.opened:
        slot = now.oldest()
        for other in set(now.opened) - {slot}:
            now.rounds.leave(other)
        while now.rounds.finished - now.opened[slot] <= degree:
            now.rounds.finish()
        with pytest.raises(BoundBroken):
            now.rounds.claim(slot)
