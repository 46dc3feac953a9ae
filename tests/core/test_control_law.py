import pytest
from hypothesis import given
from hypothesis import strategies as st

from lzero_async.core.control_law import AUTO_DEGREE, auto_degree, may_collect, may_train


@pytest.mark.parametrize('degree, collect_count, collecting, train_count, allowed', [
    # serial: 0 + 0 - 0 = 0 <= 0; a collect in flight or not yet trained closes the gate
    (0, 0, 0, 0, True),
    (0, 0, 1, 0, False),
    (0, 1, 0, 0, False),
    (0, 1, 0, 1, True),
    (0, 7, 1, 7, False),
    # degree 1: as serial, but training is not waited for once it has caught up
    (1, 0, 0, 0, True),
    (1, 0, 1, 0, False),
    (1, 1, 0, 0, False),
    (1, 5, 0, 5, True),
    # degree 3: 4 + 0 - 2 = 2 < 3, 4 + 1 - 2 = 3, 5 + 0 - 2 = 3
    (3, 4, 0, 2, True),
    (3, 4, 1, 2, False),
    (3, 5, 0, 2, False),
    (3, 2, 3, 2, False),
    (3, 2, 2, 2, True),
    # training is ahead: 1 + 3 - 4 = 0 < 1
    (1, 1, 3, 4, True),
    (1, 1, 4, 4, False),
    (50, 49, 0, 0, True),
    (50, 50, 0, 0, False),
])
def test_may_collect(degree, collect_count, collecting, train_count, allowed):
    assert may_collect(degree, collect_count, collecting, train_count) is allowed


@pytest.mark.parametrize('degree, collect_count, train_count, training, ahead, allowed', [
    # nothing was ever collected
    (0, 0, 0, 0, None, False),
    (5, 0, 0, 0, None, False),
    (5, 0, 0, 0, 3, False),
    # serial: each round once, whatever max_train_ahead says
    (0, 1, 0, 0, None, True),
    (0, 1, 0, 1, None, False),
    (0, 1, 1, 0, None, False),
    (0, 1, 1, 0, 5, False),
    # the bare law: something was collected, so train
    (3, 1, 0, 0, None, True),
    (3, 1, 9, 4, None, True),
    # each collected round once: 4 + 0 - 5 = -1 < 0, 4 + 1 - 5 = 0, 5 + 0 - 5 = 0
    (3, 5, 4, 0, 0, True),
    (3, 5, 4, 1, 0, False),
    (3, 5, 5, 0, 0, False),
    # two rounds ahead: 6 + 0 - 5 = 1 < 2, 6 + 1 - 5 = 2, 7 + 0 - 5 = 2
    (3, 5, 6, 0, 2, True),
    (3, 5, 6, 1, 2, False),
    (3, 5, 7, 0, 2, False),
])
def test_may_train(degree, collect_count, train_count, training, ahead, allowed):
    assert may_train(degree, collect_count, train_count, training, ahead) is allowed


@pytest.mark.parametrize('buffer_size, batch_size, degree', [
    (10000, 32, 31),  # 10000 // 32 = 312, 312 // 10 = 31
    (100000, 64, 156),  # 1562 // 10
    (320, 32, 1),  # 10 // 10
    (100, 32, 1),  # 3 // 10 = 0
    (1, 1000, 1),
])
def test_auto_degree(buffer_size, batch_size, degree):
    assert auto_degree(buffer_size, batch_size) == degree


def test_auto_is_minus_one():
    assert AUTO_DEGREE == -1


# -------------------------------------------------------------------- any legal sequence of events


class Simulation:
    """Collectors and learners that start whenever the law lets them, and finish or fail whenever they like."""

    def __init__(self, degree, ahead, collectors, learners):
        self.degree = degree
        self.ahead = ahead
        self.collectors = collectors
        self.learners = learners
        self.collect_count = self.collecting = self.train_count = self.training = 0
        self.finished = []

    def may_collect(self):
        return may_collect(self.degree, self.collect_count, self.collecting, self.train_count)

    def may_train(self):
        return may_train(self.degree, self.collect_count, self.train_count, self.training, self.ahead)

    def legal(self):
        moves = []
        if self.collecting < self.collectors and self.may_collect():
            moves.append(self.start_collect)
        if self.training < self.learners and self.may_train():
            moves.append(self.start_train)
        if self.collecting:
            moves += [self.finish_collect, self.fail_collect]
        if self.training:
            moves += [self.finish_train, self.fail_train]
        return moves

    def start_collect(self):
        self.collecting += 1

    def start_train(self):
        self.training += 1

    def fail_collect(self):
        self.collecting -= 1

    def fail_train(self):
        self.training -= 1

    def finish_collect(self):
        self.collecting -= 1
        self.collect_count += 1
        self.finished.append('collect')

    def finish_train(self):
        self.training -= 1
        self.train_count += 1
        self.finished.append('train')


degrees = st.integers(0, 6)
aheads = st.none() | st.integers(0, 4)
workers = st.integers(1, 5)
choices = st.lists(st.integers(0, 59), max_size=120)  # 60 is a multiple of every possible number of moves


def play(degree, ahead, collectors, learners, moves):
    """Yield the simulation at the start and after every move."""
    simulation = Simulation(degree, ahead, collectors, learners)
    yield simulation
    for choice in moves:
        legal = simulation.legal()
        legal[choice % len(legal)]()
        yield simulation


@given(degrees, aheads, workers, workers, choices)
def test_collecting_never_passes_the_degree(degree, ahead, collectors, learners, moves):
    for now in play(degree, ahead, collectors, learners, moves):
        assert now.collect_count + now.collecting - now.train_count <= max(1, degree)


@given(degrees, st.integers(0, 4), workers, workers, choices)
def test_training_never_passes_its_lead(degree, ahead, collectors, learners, moves):
    for now in play(degree, ahead, collectors, learners, moves):
        assert now.train_count + now.training <= now.collect_count + ahead


@given(degrees, aheads, workers, workers, choices)
def test_somebody_may_always_go_when_nothing_is_in_flight(degree, ahead, collectors, learners, moves):
    for now in play(degree, ahead, collectors, learners, moves):
        if not now.collecting and not now.training:
            assert now.may_collect() or now.may_train()


@given(aheads, workers, workers, choices)
def test_serial_strictly_alternates(ahead, collectors, learners, moves):
    for now in play(0, ahead, collectors, learners, moves):
        assert now.collecting + now.training <= 1
    assert now.finished == [('collect', 'train')[index % 2] for index in range(len(now.finished))]
