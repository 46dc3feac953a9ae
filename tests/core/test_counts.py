"""RoundCounts: what was begun, finished and dropped."""
import pytest

from lzero_async.core.counts import RoundCounts

KINDS = ('collect', 'train', 'eval')
NOTHING = {
    'collect_count': 0, 'train_count': 0, 'eval_count': 0, 'drop_count': 0, 'collect_train_lag': 0, 'max_lag': 0,
    'collects_in_flight': 0,
    **{f'{kind}_{what}_time': 0.0 for kind in KINDS for what in ('total', 'avg', 'wait')},
}


def done(counts, kind, seconds=0.0, waited=0.0):
    counts.begin(kind, waited)
    counts.end(kind)
    counts.finish(kind, seconds)


def counted(collects=0, trains=0, dropped=0, in_flight=0):
    counts = RoundCounts()
    for kind, times in (('collect', collects), ('train', trains)):
        for _ in range(times):
            done(counts, kind)
    counts.dropped += dropped
    for _ in range(in_flight):
        counts.begin('collect', 0.0)
    return counts


def test_nothing_yet():
    assert RoundCounts().numbers() == NOTHING


@pytest.mark.parametrize('kind', KINDS)
def test_each_kind_has_its_own_count_and_times(kind):
    counts = RoundCounts()
    done(counts, kind, seconds=3.0, waited=0.5)
    done(counts, kind, seconds=5.0, waited=0.25)
    lag = {'collect': 2, 'train': -2, 'eval': 0}[kind]
    assert counts.numbers() == {
        **NOTHING, f'{kind}_count': 2, f'{kind}_total_time': 8.0, f'{kind}_avg_time': 4.0, f'{kind}_wait_time': 0.75,
        'collect_train_lag': lag, 'max_lag': max(0, lag),
    }


@pytest.mark.parametrize('kind', KINDS)
def test_what_ends_without_finishing_has_waited_and_no_more(kind):
    counts = RoundCounts()
    counts.begin(kind, 0.5)
    assert counts.in_flight[kind] == 1
    counts.end(kind)
    assert counts.in_flight[kind] == 0
    assert counts.numbers() == {**NOTHING, f'{kind}_wait_time': 0.5}


@pytest.mark.parametrize('collects, trains, dropped, in_flight, kept, lag, outstanding', [
    (0, 0, 0, 0, 0, 0, 0),
    (3, 0, 0, 0, 3, 3, 3),
    (3, 1, 0, 0, 3, 2, 2),
    (3, 1, 1, 0, 2, 1, 1),
    (3, 1, 1, 2, 2, 1, 3),
    (2, 3, 0, 1, 2, -1, 0),  # trained ahead
])
def test_what_is_kept_lags_and_is_outstanding(collects, trains, dropped, in_flight, kept, lag, outstanding):
    counts = counted(collects, trains, dropped, in_flight)
    assert (counts.kept, counts.lag, counts.outstanding) == (kept, lag, outstanding)
    assert (counts.numbers()['collect_train_lag'], counts.numbers()['collects_in_flight']) == (lag, in_flight)


def test_the_most_lag_stays():
    counts = counted(collects=4)
    done(counts, 'train')
    counts.dropped += 2
    done(counts, 'collect')
    assert (counts.lag, counts.max_lag) == (2, 4)


def test_the_most_collects_at_once_stay():
    counts = counted(in_flight=3)
    for _ in range(2):
        counts.end('collect')
    counts.begin('collect', 0.0)
    for _ in range(5):
        counts.begin('train', 0.0)
    assert (counts.most_collects, counts.in_flight['collect']) == (3, 2)


def test_a_reset_leaves_what_is_in_flight():
    counts = counted(collects=4, trains=1, dropped=1, in_flight=2)
    done(counts, 'eval', seconds=3.0, waited=1.0)
    counts.reset()
    assert counts.numbers() == {**NOTHING, 'collects_in_flight': 2}
    assert (counts.kept, counts.lag, counts.outstanding, counts.most_collects) == (0, 0, 2, 2)
    counts.end('collect')
    counts.finish('collect', 1.0)
    assert (counts.lag, counts.outstanding, counts.max_lag) == (1, 2, 1)
