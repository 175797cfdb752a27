"""Free ranges: whatever is taken and given back, nothing overlaps and nothing is lost."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlinf.scheduler.comm.shm.blocks import FreeRanges

END = 64

# What to do: take so many bytes, or give back one of the taken ranges.
actions = st.lists(st.tuples(st.booleans(), st.integers(1, END)), max_size=80)


def free_bytes(free):
    return {byte for begin, end in free.ranges() for byte in range(begin, end)}


def check(free, taken):
    """The model is the set of free bytes, in ranges that are as long as they can be."""
    used = [byte for begin, size in taken for byte in range(begin, begin + size)]
    assert len(used) == len(set(used))
    assert free_bytes(free) == set(range(END)) - set(used)
    ends_and_begins = [edge for pair in free.ranges() for edge in pair]
    assert ends_and_begins == sorted(set(ends_and_begins))  # none is empty, none touches the next


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(actions)
def test_any_takes_and_gives_keep_ranges_apart_and_whole(steps):
    free, taken = FreeRanges(0, END), []
    for takes, number in steps:
        if takes:
            expected = next((b for b, e in free.ranges() if e - b >= number), None)
            assert free.first_fit(number) == expected
            begin = free.take(number)
            assert begin == expected
            if begin is not None:
                taken.append((begin, number))
        elif taken:
            free.give(*taken.pop(number % len(taken)))
        check(free, taken)
    for begin, size in taken:
        free.give(begin, size)
    assert free.ranges() == [(0, END)]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions, st.integers(0, END - 1), st.integers(1, END))
def test_giving_what_is_free_is_an_error_that_changes_nothing(steps, begin, size):
    free = FreeRanges(0, END)
    for takes, number in steps:
        if takes:
            free.take(number)
    before = free.ranges()
    if free_bytes(free).isdisjoint(range(begin, min(begin + size, END))):
        return
    with pytest.raises(ValueError, match="free already"):
        free.give(begin, size)
    assert free.ranges() == before


def test_nothing_fits_where_nothing_is_free():
    free = FreeRanges(10, 20)
    assert free.take(11) is None
    assert free.take(10) == 10
    assert free.first_fit(1) is None
    assert free.take(1) is None
    assert free.ranges() == []
    with pytest.raises(ValueError, match="free already"):
        free.give(10, 10) or free.give(10, 10)
