"""What the benchmarks move and how they count memory."""

import mmap
import os

import pytest

from bare import held_bytes, make_item, same_content

MIB = 1 << 20


@pytest.mark.parametrize("kind", ["bytes", "list", "array", "tensor", "dict"])
def test_an_item_is_the_same_each_time_and_one_byte_off_is_another(kind):
    assert same_content(make_item(kind, 20 * 1024), kind, 20 * 1024)
    other = make_item("bytes", 20 * 1024)[:-1] + b"?"
    assert not same_content(other, "bytes", 20 * 1024)


def test_memory_is_what_was_written_to_and_not_what_was_reserved():
    before = held_bytes([os.getpid()])
    fd = os.memfd_create("reserved")
    try:
        os.ftruncate(fd, 64 * MIB)
        assert held_bytes([os.getpid()]) - before < 4 * MIB
        os.pwrite(fd, os.urandom(16 * MIB), 0)
        assert 16 * MIB <= held_bytes([os.getpid()]) - before < 40 * MIB
    finally:
        os.close(fd)


def test_memory_that_is_mapped_twice_is_counted_once():
    fd = os.memfd_create("mapped")
    try:
        os.pwrite(fd, os.urandom(32 * MIB), 0)
        before = held_bytes([os.getpid()])
        with mmap.mmap(fd, 32 * MIB) as first, mmap.mmap(fd, 32 * MIB) as second:
            assert sum(first[::4096]) == sum(second[::4096])
            assert held_bytes([os.getpid()]) - before < 8 * MIB
    finally:
        os.close(fd)
