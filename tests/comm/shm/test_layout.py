"""Where the parts of an arena lie."""

import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.comm.shm.layout import SMALLEST_BYTES, Layout

limits = st.integers(mmap.PAGESIZE, 64 << 30)


@given(limits, st.data())
def test_a_block_of_the_smallest_size_that_fits_wastes_less_than_a_quarter(limit, data):
    layout = Layout(limit)
    size = data.draw(st.integers(1, limit))
    block = layout.block_bytes[layout.size_class(size)]
    assert size <= block
    assert block == SMALLEST_BYTES or block <= size * 1.25 + mmap.PAGESIZE


@given(limits, st.data())
def test_blocks_lie_beside_each_other_at_pages_and_end_within_the_arena(limit, data):
    layout = Layout(limit)
    index = data.draw(st.integers(0, layout.num_blocks - 1))
    size_class = layout.class_of(index)
    assert index in layout.blocks(size_class)
    begin, size = layout.region(size_class)
    offset, length = layout.offset(index), layout.block_bytes[size_class]
    assert offset == begin + layout.offset_in_region(index)
    assert offset % mmap.PAGESIZE == 0
    assert layout.table_bytes <= begin <= offset
    assert offset + length <= begin + size <= layout.size_bytes
    if index + 1 < layout.num_blocks:
        assert offset + length <= layout.offset(index + 1)


@given(limits)
def test_of_each_size_there_are_as_many_blocks_as_the_limit_allows(limit):
    layout = Layout(limit)
    smaller = SMALLEST_BYTES - 1  # even the smallest objects have blocks of this size
    for size_class, size in enumerate(layout.block_bytes):
        assert len(layout.blocks(size_class)) * (smaller + 1) >= limit
        smaller = size


@pytest.mark.parametrize("limit", [mmap.PAGESIZE, 1 << 20, 3 << 30, 1 << 40])
def test_an_arena_needs_addresses_for_what_it_may_hold_and_little_else(limit):
    assert Layout(limit).size_bytes < (200 * limit) + (16 << 20)
