import dataclasses

import pytest
from fakes import FakeClock

from lzero_async.core.activity import Activity, ActivityClock


def read_after(events):
    """Let one second pass before each event, and one more before the reading."""
    clock = FakeClock(100.0)
    activity = ActivityClock(clock)
    for event in events:
        clock.advance(1)
        sign, kind = event[0], event[1:]
        (activity.start if sign == '+' else activity.stop)(kind)
    clock.advance(1)
    return activity.read()


@pytest.mark.parametrize('events, elapsed, collect, train, evaluation, overlap', [
    ([], 1, 0, 0, 0, 0),
    (['+collect'], 2, 1, 0, 0, 0),
    (['+collect', '-collect'], 3, 1, 0, 0, 0),
    (['+collect', '+train', '-collect', '-train'], 5, 2, 2, 0, 1),
    # two collectors at once are busy for the same seconds, counted once
    (['+collect', '+collect', '-collect', '-collect'], 5, 3, 0, 0, 0),
    (['+collect', '+collect', '+train', '-collect', '-train', '-collect'], 7, 5, 2, 0, 2),
    # evaluation does not count as overlap of collect and train
    (['+eval', '+train', '-train', '-eval'], 5, 0, 1, 3, 0),
])
def test_seconds_of_work(events, elapsed, collect, train, evaluation, overlap):
    reading = read_after(events)
    assert reading == Activity(elapsed, {'collect': collect, 'train': train, 'eval': evaluation}, overlap)


def test_ratios():
    reading = Activity(elapsed=10.0, busy={'collect': 8.0, 'train': 5.0, 'eval': 0.0}, overlap=4.0)
    assert reading.idle_ratio('collect') == pytest.approx(0.2)
    assert reading.idle_ratio('train') == pytest.approx(0.5)
    assert reading.idle_ratio('eval') == pytest.approx(1.0)
    assert reading.overlap_ratio == pytest.approx(0.4)


def test_ratios_of_no_time_are_zero():
    reading = read_after([])
    nothing = reading.since(reading)
    assert nothing.elapsed == 0
    assert nothing.idle_ratio('collect') == 0.0
    assert nothing.overlap_ratio == 0.0


def test_since_is_what_happened_in_between():
    clock = FakeClock()
    activity = ActivityClock(clock)
    activity.start('collect')
    clock.advance(3)
    earlier = activity.read()
    activity.start('train')
    clock.advance(2)
    assert activity.read().since(earlier) == Activity(2, {'collect': 2, 'train': 2, 'eval': 0}, 2)


def test_reset_forgets_the_past_but_not_who_is_busy():
    clock = FakeClock()
    activity = ActivityClock(clock)
    activity.start('collect')
    clock.advance(3)
    activity.reset()
    clock.advance(2)
    assert activity.read() == Activity(2, {'collect': 2, 'train': 0, 'eval': 0}, 0)


def test_a_reading_is_a_frozen_copy():
    clock = FakeClock()
    activity = ActivityClock(clock)
    activity.start('collect')
    reading = activity.read()
    clock.advance(5)
    activity.read()
    assert reading.busy['collect'] == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        reading.elapsed = 1.0
