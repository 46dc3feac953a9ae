"""GrowingArray holds what a list would."""
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lzero_async.lightzero.replay.growing_array import SMALLEST_ROOM, GrowingArray


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(['append', 'drop', 'tail', 'assign']), st.integers(0, 150)), max_size=30))
def test_it_holds_what_a_list_would(steps):
    array, expected, next_value = GrowingArray(np.int64), [], 0
    for step, count in steps:
        if step == 'append':
            values = list(range(next_value, next_value + count))
            next_value += count
            array.append(values)
            expected += values
        elif step == 'drop':
            array.drop(count)
            del expected[:count]
        elif step == 'tail':
            array.assign(array.values[count:])
            del expected[:count]
        else:
            array.assign(expected[:count])
            del expected[count:]
        assert array.values.tolist() == expected and len(array) == len(expected)


def test_a_tail_of_itself_is_not_copied():
    array = GrowingArray(np.float64)
    array.append(range(10))
    tail = array.values[4:]
    array.assign(tail)
    assert np.shares_memory(array.values, tail)


def test_other_parts_of_itself_are_no_tail():
    array = GrowingArray(np.float64)
    for part in (slice(0, 4), slice(0, 10, 2), slice(None, None, -1)):
        array.assign(range(10))
        array.append([10.0])
        expected = array.values[part].tolist()
        array.assign(array.values[part])
        assert array.values.tolist() == expected


def test_the_room_does_not_grow_while_as_much_goes_as_comes():
    array = GrowingArray(np.int64)
    for _ in range(50 * SMALLEST_ROOM):
        array.append([1, 2])
        array.drop(len(array) - 3)
    assert len(array._room) == SMALLEST_ROOM
