import copy
import json
import pickle

import pytest

from lzero_async.core.statistics import Statistics

NUMBERS = {'collect_count': 3, 'mode': 'synchronous', 'collect_avg_time': 0.5}


@pytest.mark.parametrize('change', [
    lambda s: s.__setitem__('collect_count', 4),
    lambda s: s.__delitem__('collect_count'),
    lambda s: s.update(collect_count=4),
    lambda s: s.setdefault('new', 1),
    lambda s: s.pop('collect_count'),
    lambda s: s.popitem(),
    lambda s: s.clear(),
    lambda s: s.__ior__({'collect_count': 4}),
], ids=['set', 'delete', 'update', 'setdefault', 'pop', 'popitem', 'clear', 'or'])
def test_no_way_to_change_it(change):
    statistics = Statistics(NUMBERS)
    with pytest.raises(TypeError, match='read-only'):
        change(statistics)
    assert statistics == NUMBERS


def test_it_is_a_dict_to_everybody_else():
    statistics = Statistics(NUMBERS)
    assert statistics['collect_count'] == 3
    assert dict(statistics) == NUMBERS
    assert json.loads(json.dumps(statistics)) == NUMBERS
    assert repr(statistics) == repr(NUMBERS)


def test_it_does_not_follow_what_it_was_made_from():
    numbers = dict(NUMBERS)
    statistics = Statistics(numbers)
    numbers['collect_count'] = 9
    assert statistics['collect_count'] == 3


@pytest.mark.parametrize('duplicate', [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))],
                         ids=['copy', 'deepcopy', 'pickle'])
def test_a_copy_is_read_only_too(duplicate):
    duplicated = duplicate(Statistics(NUMBERS))
    assert duplicated == NUMBERS
    with pytest.raises(TypeError):
        duplicated['collect_count'] = 4
