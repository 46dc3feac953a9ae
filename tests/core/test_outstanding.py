import random

import pytest
from fakes import TIMEOUT, start, watch
from hypothesis import given
from hypothesis import strategies as st

from lzero_async.core.errors import BoundBroken
from lzero_async.core.outstanding import OutstandingRounds


def trained(rounds):
    """After so many rounds, with nothing outstanding."""
    outstanding = OutstandingRounds()
    for _ in range(rounds):
        train(outstanding, outstanding.open(outstanding.finished, 0))
    return outstanding


def train(outstanding, slot):
    outstanding.begin(slot)
    outstanding.finish()


# -------------------------------------------------------------------- one call at a time


def test_slots_number_the_pulls():
    outstanding = OutstandingRounds()
    assert [outstanding.open(0, 9) for _ in range(3)] == [0, 1, 2]
    outstanding.leave(1)
    assert outstanding.open(0, 9) == 3


def test_a_refused_pull_takes_no_slot():
    outstanding = trained(3)
    assert outstanding.open(0, 2) is None
    assert outstanding.idle
    assert outstanding.open(1, 2) == 3


@pytest.mark.parametrize('rounds, degree, allowed', [
    (5, 0, True),  # 5 + 0 - 5 = 0
    (4, 0, False),
    (4, 1, True),
    (2, 3, True),  # 5 + 0 - 2 = 3
    (1, 3, False),
])
def test_a_pull_must_be_able_to_stay_within_its_bound(rounds, degree, allowed):
    assert (trained(5).open(rounds, degree) is not None) is allowed


def test_a_round_that_is_being_trained_counts_for_a_pull():
    outstanding = trained(1)
    slot = outstanding.open(1, 1)
    outstanding.begin(slot)
    assert outstanding.open(0, 1) is None  # 2 + 0 - 0 = 2
    assert outstanding.open(1, 1) is not None  # 2 + 0 - 1 = 1


def test_a_pull_of_old_weights_must_leave_others_within_their_bounds():
    outstanding = trained(3)
    assert outstanding.open(3, 0) is not None
    assert outstanding.open(2, 9) is None  # the other would be trained second: 3 + 1 - 3 = 1 > 0
    assert outstanding.open(3, 1) is not None  # goes second itself: 3 + 1 - 3 = 1


def test_the_bound_is_the_degree_at_the_pull():
    outstanding = OutstandingRounds()
    slots = [outstanding.open(0, degree) for degree in (4, 2, 7)]
    assert [outstanding.bound_of(slot) for slot in slots] == [4, 2, 7]


def test_what_may_be_trained_leaves_all_others_within_their_bounds():
    outstanding = OutstandingRounds()
    slow, fast = outstanding.open(0, 2), outstanding.open(0, 2)
    assert outstanding.may_train(slow) and outstanding.may_train(fast)
    train(outstanding, fast)
    train(outstanding, outstanding.open(1, 2))
    late = outstanding.open(2, 2)
    assert not outstanding.may_train(late)  # slow: 3 + 0 - 0 = 3
    assert outstanding.may_train(slow)
    train(outstanding, slow)
    assert outstanding.may_train(late)


def test_what_leaves_frees_the_others():
    outstanding = OutstandingRounds()
    slow = outstanding.open(0, 1)
    train(outstanding, outstanding.open(0, 1))
    late = outstanding.open(1, 1)
    assert not outstanding.may_train(late)  # slow: 2 + 0 - 0 = 2
    outstanding.leave(slow)
    assert outstanding.may_train(late)


@pytest.mark.parametrize('unknown', ['leave', 'bound_of', 'begin', 'admit_paid'])
def test_a_slot_that_is_not_outstanding(unknown):
    outstanding = OutstandingRounds()
    slot = outstanding.open(0, 1)
    outstanding.leave(slot)
    with pytest.raises(KeyError):
        getattr(outstanding, unknown)(slot)


def test_idle_while_nothing_is_outstanding_or_trained():
    outstanding = OutstandingRounds()
    seen = [outstanding.idle]
    slot = outstanding.open(0, 1)
    seen.append(outstanding.idle)
    outstanding.begin(slot)
    seen.append(outstanding.idle)
    outstanding.finish()
    seen.append(outstanding.idle)
    outstanding.begin(None)
    seen.append(outstanding.idle)
    outstanding.finish()
    seen.append(outstanding.idle)
    assert seen == [True, False, False, True, False, True]
    assert (outstanding.finished, outstanding.paid) == (2, 1)


# -------------------------------------------------------------------- in advance


def test_training_ahead_pays_for_the_oldest_to_come():
    outstanding = OutstandingRounds()
    slots = [outstanding.open(0, 1), outstanding.open(0, 1)]
    assert outstanding.may_train_ahead()  # 1 + 0 - 0 = 1, 1 + max(0, 1 - 1) - 0 = 1
    train(outstanding, None)
    assert (outstanding.finished, outstanding.paid) == (1, 1)
    assert not outstanding.may_train_ahead()  # 2 + 0 - 0 = 2
    outstanding.admit_paid(slots[0])
    assert (outstanding.finished, outstanding.paid) == (1, 0)
    train(outstanding, slots[1])
    assert (outstanding.finished, outstanding.paid) == (2, 0)


def test_a_round_paid_for_in_advance_counts_for_a_pull_from_its_beginning():
    outstanding = trained(1)
    outstanding.begin(None)
    assert outstanding.paid == 1
    assert outstanding.open(0, 1) is None  # 2 + 0 - 0 = 2
    assert [outstanding.open(1, 1) for _ in range(2)] == [1, 2]  # the payment is there as well: 2 + (1 - 1) - 1 = 1
    assert outstanding.open(1, 1) is None  # 2 + (2 - 1) - 1 = 2


# -------------------------------------------------------------------- past the bound


@pytest.mark.parametrize('take', ['begin', 'admit_paid'])
@pytest.mark.parametrize('rounds, degree', [(1, 0), (2, 1), (6, 4)])
def test_a_batch_that_is_forced_past_its_bound_is_refused(take, rounds, degree):
    outstanding = OutstandingRounds()
    slot = outstanding.open(0, degree)
    for _ in range(rounds):
        train(outstanding, None)
    with pytest.raises(BoundBroken) as broken:
        getattr(outstanding, take)(slot)
    assert str(broken.value) == (
        f'staleness must be <= off_policy_degree {degree}, got {rounds}: the batch was collected with the weights of '
        f'round 0, and {rounds} rounds are trained'
    )


@pytest.mark.parametrize('take', ['begin', 'admit_paid'])
def test_a_batch_at_its_bound_is_taken(take):
    outstanding = OutstandingRounds()
    slot = outstanding.open(0, 2)
    for _ in range(2):
        train(outstanding, None)
    getattr(outstanding, take)(slot)


# -------------------------------------------------------------------- waiting


@pytest.fixture
def waiting():
    """Two outstanding, after one round, and a thread that waits for another one."""
    outstanding = trained(1)
    condition = watch(outstanding)
    slots = [outstanding.open(1, 9), outstanding.open(1, 9)]
    waiter = start(lambda: outstanding.wait_for_round(1), 'waiter')
    condition.await_blocked('waiter')
    yield outstanding, slots, waiter, condition
    outstanding.close()


def test_a_finished_round_ends_the_wait(waiting):
    outstanding, slots, waiter, condition = waiting
    outstanding.begin(slots[0])
    condition.await_blocked('waiter')
    outstanding.finish()
    waiter.result(TIMEOUT)


def test_the_wait_ends_when_nothing_is_left_to_train(waiting):
    outstanding, slots, waiter, condition = waiting
    outstanding.leave(slots[0])
    condition.await_blocked('waiter')
    outstanding.leave(slots[1])
    waiter.result(TIMEOUT)


def test_the_wait_ends_when_all_the_rest_was_paid_for():
    outstanding = OutstandingRounds()
    train(outstanding, None)
    condition = watch(outstanding)
    slot = outstanding.open(1, 1)
    waiter = start(lambda: outstanding.wait_for_round(1), 'waiter')
    condition.await_blocked('waiter')
    outstanding.admit_paid(slot)
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
    outstanding.open(1, 1)
    outstanding.wait_for_round(0)
    trained(1).wait_for_round(1)


# -------------------------------------------------------------------- any legal sequence of events


class Simulation:
    """Collectors, a learner and their gates, in one thread: whatever may happen next, may.

    A collect starts when the lag law lets it, with the newest weights or older ones. The learner trains any batch that
    may be trained, oldest or not. What was paid for in advance goes to the oldest batch.
    """

    def __init__(self, degree, ahead, collectors):
        self.rounds = OutstandingRounds()
        self.degree = degree
        self.ahead = ahead
        self.collectors = collectors
        self.opened = {}
        self.in_flight = []
        self.arrived = []
        self.training = False
        self.staleness = []

    def legal(self):
        moves = []
        if len(self.in_flight) < self.collectors and self.lag() < self.degree:
            moves += [(self.open, age) for age in range(3)]
        moves += [(move, slot) for slot in self.in_flight for move in (self.arrive, self.fail)]
        if self.training:
            return [*moves, (self.finish,)]
        if self.rounds.paid and self.arrived and min(self.arrived, key=self.order) == self.oldest():
            moves.append((self.admit_paid, self.oldest()))
        if not self.rounds.paid:
            moves += [(self.begin, slot) for slot in self.arrived if self.rounds.may_train(slot)]
        moves += [(self.drop, slot) for slot in self.arrived]
        if not self.arrived and self.rounds.paid < self.ahead and self.rounds.may_train_ahead():
            moves.append((self.train_ahead,))
        return moves

    def lag(self):
        paid_and_finished = self.rounds.paid - (self.training == 'ahead')
        return len(self.opened) + (self.training == 'batch') - paid_and_finished

    def order(self, slot):
        return self.opened[slot], slot

    def oldest(self):
        return min(self.opened, key=self.order)

    def newest_weights(self):
        # Those of a round are published before it counts as finished.
        return self.rounds.finished + bool(self.training)

    def open(self, age):
        rounds = max(0, self.newest_weights() - age)
        slot = self.rounds.open(rounds, self.degree)
        if rounds >= self.rounds.finished:
            assert slot is not None, 'the weights of the last round are always good enough'
        if slot is not None:
            self.opened[slot] = rounds
            self.in_flight.append(slot)

    def arrive(self, slot):
        self.in_flight.remove(slot)
        self.arrived.append(slot)

    def fail(self, slot):
        self.in_flight.remove(slot)
        self.rounds.leave(slot)
        del self.opened[slot]

    def drop(self, slot):
        self.arrived.remove(slot)
        self.rounds.leave(slot)
        del self.opened[slot]

    def begin(self, slot):
        self.staleness.append(self.rounds.finished - self.opened[slot])
        self.arrived.remove(slot)
        del self.opened[slot]
        self.rounds.begin(slot)
        self.training = 'batch'

    def train_ahead(self):
        self.rounds.begin(None)
        self.training = 'ahead'

    def finish(self):
        self.rounds.finish()
        self.training = False

    def admit_paid(self, slot):
        self.staleness.append(self.rounds.finished - self.opened[slot])
        self.arrived.remove(slot)
        del self.opened[slot]
        self.rounds.admit_paid(slot)

    def oldest_may_go(self):
        return self.training or not self.opened or bool(self.rounds.paid) or self.rounds.may_train(self.oldest())

    def drain(self):
        """All collects end, and the learner takes one batch after the other, as it does: the oldest first."""
        for slot in list(self.in_flight):
            self.arrive(slot)
        if self.training:
            self.finish()
        while self.arrived:
            slot = self.oldest()
            if self.rounds.paid:
                self.admit_paid(slot)
                continue
            assert self.rounds.may_train(slot), 'nothing is left to wait for, and nothing may be trained'
            self.begin(slot)
            self.finish()


    def check(self):
        assert all(0 <= staleness <= self.degree for staleness in self.staleness)
        assert self.oldest_may_go()


def play(degree, ahead, collectors, moves):
    """Yield the simulation at the start and after every move."""
    simulation = Simulation(degree, ahead, collectors)
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
    assert now.rounds.idle
    now.check()


@pytest.mark.parametrize('degree', [1, 2, 3, 5])
def test_long_plays(degree):
    for seed in range(40):
        rng = random.Random(seed)
        ahead, collectors = rng.choice([0, 0, 1, 3]), rng.choice([1, 2, 4])
        for now in play(degree, ahead, collectors, (rng.randrange(2520) for _ in range(150))):
            now.check()
        now.drain()
        assert now.rounds.idle
        now.check()


@given(degrees, crowds, choices)
def test_a_batch_kept_waiting_past_its_bound_is_refused_in_any_state(degree, collectors, moves):
    *_, now = play(degree, 0, collectors, moves)
    if now.training:
        now.finish()
    if now.opened:
        slot = now.oldest()
        while now.rounds.finished - now.opened[slot] <= degree:
            train(now.rounds, None)
        with pytest.raises(BoundBroken):
            now.rounds.begin(slot)
