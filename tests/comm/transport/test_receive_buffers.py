"""Memory that is received into comes back when it is dropped, and does not pile up."""

import numpy as np
import pytest

from rlinf_scheduler.comm.transport.receive_buffers import KEEP_S, ReceiveBuffers

MIB = 1 << 20


class FakeLoop:
    """Keeps callbacks until they are run."""

    def __init__(self, clock):
        self.waiting = []
        self.now = lambda: clock[0]

    def call_later(self, delay_s, callback):
        self.waiting.append((delay_s, callback))

    def run_next(self):
        self.waiting.pop(0)[1]()


@pytest.fixture
def clock():
    return [100.0]


@pytest.fixture
def loop(clock):
    return FakeLoop(clock)


@pytest.fixture
def buffers(loop):
    return ReceiveBuffers(loop)


def address(view):
    return np.frombuffer(view, np.uint8).ctypes.data


def test_what_was_dropped_is_received_into_again(buffers):
    first = buffers.allocate(4 * MIB)
    assert len(first) == 4 * MIB
    assert not first.readonly
    place = address(first)
    del first
    again = buffers.allocate(3 * MIB)
    assert (address(again), len(again)) == (place, 3 * MIB)


def test_what_is_in_use_is_nobody_elses(buffers):
    first = buffers.allocate(4 * MIB)
    array = np.frombuffer(first, np.int64)[7:9]
    array[:] = 5
    del first
    second = buffers.allocate(4 * MIB)
    second[:] = bytes(len(second))
    assert array.tolist() == [5, 5]
    place = array.ctypes.data
    del array
    assert 0 <= place - address(buffers.allocate(4 * MIB)) < 4 * MIB


def test_a_much_larger_buffer_is_not_used_for_little(buffers):
    place = address(buffers.allocate(16 * MIB))
    small = buffers.allocate(2 * MIB)
    assert address(small) != place
    assert buffers.lent_bytes == 2 * MIB
    assert buffers.kept_bytes == 16 * MIB


def test_no_more_than_the_bound_is_ever_kept(loop):
    buffers = ReceiveBuffers(loop, max_bytes=10 * MIB)
    held = [buffers.allocate(4 * MIB) for _ in range(5)]
    assert buffers.lent_bytes == 8 * MIB
    assert all(len(view) == 4 * MIB for view in held)
    del held
    big = buffers.allocate(9 * MIB)
    assert buffers.lent_bytes == 9 * MIB
    assert buffers.kept_bytes == 0
    del big
    assert len(buffers.allocate(50 * MIB)) == 50 * MIB


def test_what_is_not_used_for_a_while_is_given_back(buffers, loop, clock):
    held = buffers.allocate(MIB)
    del held
    buffers.allocate(2 * MIB)
    clock[0] += KEEP_S / 2
    loop.run_next()
    assert buffers.kept_bytes == 3 * MIB
    clock[0] += KEEP_S / 2
    loop.run_next()
    assert buffers.kept_bytes == 0
    assert not loop.waiting


def test_what_comes_back_late_is_given_back_too(buffers, loop, clock):
    held = buffers.allocate(MIB)
    clock[0] += 10 * KEEP_S
    loop.run_next()
    assert len(loop.waiting) == 1
    del held
    loop.run_next()
    assert (buffers.kept_bytes, buffers.lent_bytes, loop.waiting) == (0, 0, [])


def test_small_ones_are_left_to_malloc(buffers, loop):
    assert len(buffers.allocate(MIB - 1)) == MIB - 1
    assert buffers.lent_bytes == 0
    assert not loop.waiting
