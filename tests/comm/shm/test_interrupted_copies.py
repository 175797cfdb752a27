"""A copy by several threads that is interrupted writes to nothing that is somebody else's by then."""

import signal
import time

import numpy as np
import pytest

import arena_peers
from rlinf_scheduler.comm.codec import copying
from rlinf_scheduler.comm.shm.arena import Arena

DEADLINE_S = 60.0
MIB = 1 << 20


class Interrupted(Exception):
    pass


@pytest.fixture
def interrupt_soon():
    """Raises in this thread after so many seconds."""

    def interrupt(_number, _frame):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda after_s: signal.setitimer(signal.ITIMER_REAL, after_s)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.interrupted
def test_a_block_is_not_free_before_the_last_thread_has_written_to_it(interrupt_soon, monkeypatch):
    monkeypatch.setattr(copying.os, "sched_getaffinity", lambda _pid: set(range(4)))
    home = arena_peers.Threaded()
    arena = Arena(arena_peers.OWNER, 64 * MIB, home)
    source = np.full(48 * MIB, 7, np.uint8)
    num_interrupted = 0
    for number in range(40):
        try:
            interrupt_soon(0.0005 + 0.0005 * (number % 8))
            copying.copy_all([(arena.allocate(48 * MIB, wait_s=DEADLINE_S).memory, source)])
            interrupt_soon(0)
        except Interrupted:
            num_interrupted += 1
        block = arena.allocate(48 * MIB, wait_s=DEADLINE_S)
        block.memory[:] = 1
        deadline = time.monotonic() + 0.005
        while time.monotonic() < deadline:
            assert not (block.memory == 7).any()
        del block
    assert num_interrupted > 0
    home.run(arena.close)
    home.close()
