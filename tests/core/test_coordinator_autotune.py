"""A coordinator whose degree tunes itself, driven in one thread on a clock that moves only with the work."""
import logging
import re

import pytest
from fakes import FakeClock

from lzero_async.core.autotune import SETTLE_ROUNDS
from lzero_async.core.coordinator import AsyncTrainingCoordinator
from lzero_async.core.errors import ConfigError
from lzero_async.core.strain import TrainingSignals

LOGGER = 'lzero_async.core.coordinator'


class Driver:
    """Collects whenever the gate is open, and trains otherwise: as many rounds are outstanding as may be."""

    def __init__(self, degree=-1, collect=1.0, train=1.0, **options):
        self.clock = FakeClock()
        self.coordinator = AsyncTrainingCoordinator(degree, clock=self.clock, **options)
        self.collect, self.train = collect, train
        self.degrees = []

    @property
    def outstanding(self):
        return self.coordinator.collect_train_lag

    def run(self, rounds, signals=None):
        """Train so many rounds. Keeps the degree in force after each piece of work."""
        until = self.coordinator.train_count + rounds
        while self.coordinator.train_count < until:
            if self.coordinator.can_collect():
                self.coordinator.run_collect(lambda: self.clock.advance(self.collect))
            else:
                self.coordinator.run_train(lambda: self.round(signals))
            self.degrees.append(self.coordinator.off_policy_degree)
            assert self.outstanding <= max(1, self.degrees[-1])  # serially, the one that is trained next
        return self

    def round(self, signals):
        if signals is not None:
            self.coordinator.report_signals(signals)
        self.clock.advance(self.train)


def settle(**options):
    return Driver(**options).run(SETTLE_ROUNDS)


@pytest.mark.parametrize('buffer_size, batch_size, degree', [(10000, 32, 31), (100000, 64, 156), (320, 32, 1)])
def test_begins_at_a_tenth_of_the_batches_in_the_buffer(buffer_size, batch_size, degree):
    coordinator = AsyncTrainingCoordinator(-1, buffer_size=buffer_size, batch_size=batch_size)
    assert coordinator.off_policy_degree == degree
    assert not coordinator.is_synchronous


@pytest.mark.parametrize('collect, train', [(1, 1), (3, 1), (1, 3)])
def test_is_lowered_by_itself(collect, train):
    driver = Driver(collect=collect, train=train)
    assert driver.coordinator.off_policy_degree == 31
    driver.run(SETTLE_ROUNDS)
    assert max(driver.degrees) == 31
    assert driver.degrees[-1] == 2
    assert driver.coordinator.get_statistics()['off_policy_degree'] == 2


def test_the_gate_follows_the_degree():
    driver = settle()
    while driver.coordinator.can_collect():
        driver.coordinator.run_collect(lambda: None)
    assert driver.outstanding == 2


def test_the_degree_in_force_covers_what_is_outstanding_while_it_is_lowered():
    driver = settle()
    first = next(place for place, degree in enumerate(driver.degrees) if degree < 31)
    coming_down = driver.degrees[first:first + 29]
    assert coming_down == list(range(30, 1, -1))  # one less with each round, and no collect in between


def test_no_collect_starts_while_more_is_outstanding_than_the_lowered_degree():
    driver = Driver()
    while driver.degrees[-1:] != [30]:
        driver.run(1)
    assert not driver.coordinator.can_collect()
    for _ in range(28):
        assert not driver.coordinator.can_collect()
        driver.coordinator.run_train(lambda: driver.clock.advance(1.0))
    assert driver.outstanding == 2
    driver.coordinator.run_train(lambda: driver.clock.advance(1.0))
    assert driver.coordinator.can_collect()


@pytest.mark.parametrize('options, first, last', [
    ({'min_off_policy_degree': 5}, 31, 5),
    ({'max_off_policy_degree': 8}, 8, 2),
    ({'min_off_policy_degree': 4, 'max_off_policy_degree': 6}, 6, 4),
    ({'min_off_policy_degree': 7, 'max_off_policy_degree': 7}, 7, 7),
    ({'min_off_policy_degree': 40, 'max_off_policy_degree': 50}, 40, 40),
    ({'max_off_policy_degree': 1}, 1, 1),
    ({'buffer_size': 320, 'max_off_policy_degree': 9}, 1, 2),  # begins at 1, and may rise
])
def test_limits_are_kept(options, first, last):
    driver = Driver(**options)
    assert driver.coordinator.off_policy_degree == first
    driver.run(SETTLE_ROUNDS)
    assert driver.degrees[-1] == last
    lowest = options.get('min_off_policy_degree', 1)
    assert all(lowest <= degree <= options.get('max_off_policy_degree', 31) for degree in driver.degrees)


@pytest.mark.parametrize('options, name', [
    ({'min_off_policy_degree': 0}, 'min_off_policy_degree'),
    ({'max_off_policy_degree': 0}, 'max_off_policy_degree'),
    ({'min_off_policy_degree': 9, 'max_off_policy_degree': 8}, 'max_off_policy_degree'),
    ({'min_off_policy_degree': 1.5}, 'min_off_policy_degree'),
])
def test_bad_limits_are_refused(options, name):
    with pytest.raises(ConfigError, match=name):
        AsyncTrainingCoordinator(-1, **options)


def messages(caplog):
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def test_each_change_is_logged_with_its_reason(caplog):
    caplog.set_level(logging.INFO, LOGGER)
    settle()
    assert len(messages(caplog)) == 1
    assert re.fullmatch(r'off_policy_degree is 2 from now on: 2 keeps the slower role as busy: .*', messages(caplog)[0])


def test_a_raise_is_logged_with_its_reason(caplog):
    caplog.set_level(logging.INFO, LOGGER)
    settle(buffer_size=320, max_off_policy_degree=9)
    assert len(messages(caplog)) == 1
    assert messages(caplog)[0].startswith('off_policy_degree is 2 from now on: the slower role waits: ')


@pytest.mark.parametrize('degree', [0, 1, 7])
def test_a_fixed_degree_never_changes(degree, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    driver = Driver(degree).run(SETTLE_ROUNDS, TrainingSignals(loss=float('nan')))
    assert set(driver.degrees) == {degree}
    assert messages(caplog) == []


CALM, JUMP = TrainingSignals(loss=1.0), TrainingSignals(loss=50.0)


def test_a_jump_of_the_loss_backs_off(caplog):
    driver = Driver().run(SETTLE_ROUNDS, CALM)
    caplog.set_level(logging.INFO, LOGGER)
    driver.run(1, JUMP)
    assert messages(caplog) == ['off_policy_degree is 1 from now on: strain: loss jumped to 50 from about 1']
    driver.run(3, CALM)
    assert driver.degrees[-1] == 1


def test_the_former_degree_comes_back_after_a_while(caplog):
    driver = Driver().run(SETTLE_ROUNDS, CALM).run(1, JUMP)
    caplog.set_level(logging.INFO, LOGGER)
    driver.run(100, CALM)
    assert driver.degrees[-1] == 2
    assert len(messages(caplog)) == 1


def test_limits_are_kept_under_strain():
    driver = Driver(min_off_policy_degree=3).run(120, TrainingSignals(loss=float('nan')))
    assert min(driver.degrees) == driver.degrees[-1] == 3


def test_signals_are_heard_once(caplog):
    """One report of a bad loss is one back-off, however many rounds without a report follow."""
    driver = Driver()
    caplog.set_level(logging.INFO, LOGGER)
    driver.run(1, TrainingSignals(loss=float('nan'))).run(14)
    assert messages(caplog) == ['off_policy_degree is 15 from now on: strain: loss is nan']


def test_the_last_report_of_a_round_is_the_one_that_counts(caplog):
    driver = Driver()
    caplog.set_level(logging.INFO, LOGGER)
    driver.coordinator.report_signals(TrainingSignals(loss=float('nan')))
    driver.run(1, CALM)
    assert messages(caplog) == []


def test_work_that_fails_is_not_heard_of():
    """Rounds that fail at once would make training look fast: in no time, for which one slot does."""
    driver = Driver()

    def fail():
        raise ValueError('this round failed')

    driver.run(1)
    for _ in range(SETTLE_ROUNDS):
        with pytest.raises(ValueError, match='this round failed'):
            driver.coordinator.run_train(fail)
        driver.run(1)
    assert driver.degrees[-1] == 2


def test_evaluations_are_not_heard_of():
    driver = Driver()
    for _ in range(SETTLE_ROUNDS):
        driver.run(1)
        driver.coordinator.run_eval(lambda: driver.clock.advance(1000.0))
    assert driver.degrees[-1] == 2


def test_reset_counters_leave_the_degree_alone():
    driver = settle()
    while driver.outstanding:
        driver.coordinator.run_train(lambda: driver.clock.advance(1.0))
    driver.coordinator.reset_counters()
    assert driver.coordinator.off_policy_degree == 2


def test_dropped_rounds_give_their_slots_free():
    driver = settle()
    while driver.coordinator.can_collect():
        driver.coordinator.run_collect(lambda: driver.clock.advance(1.0))
    driver.coordinator.drop_round()
    assert driver.coordinator.can_collect()
    assert driver.coordinator.off_policy_degree == 2
