"""Threads that wait for room, with a real I/O thread."""

import collections
import random
import signal
import sys
import threading
import time
import types

import pytest

import arena_peers
from arena_peers import OWNER, eventually, lease
from rlinf_scheduler.comm.shm.arena import Arena
from rlinf_scheduler.comm.shm.layout import WANTED_AT
from rlinf_scheduler.comm.shm.readers import OpenArenas

DEADLINE_S = 60.0
MIB = 1 << 20


@pytest.fixture
def home():
    home = arena_peers.Threaded()
    yield home
    home.close()


@pytest.fixture
def new_arena(home):
    arenas = []

    def make(limit_bytes):
        arenas.append(Arena(OWNER, limit_bytes, home))
        return arenas[-1]

    yield make
    for arena in arenas:
        home.run(arena.close)


@pytest.fixture
def full(new_arena):
    """An arena with room for one MiB, and the block that has it, in a list."""
    arena = new_arena(MIB)
    return arena, [arena.allocate(MIB)]


def wants(arena):
    return arena._head[WANTED_AT] == 1


def wait_for_room(arena, wait_s=DEADLINE_S):
    """Start a thread that waits for room; what it gets is the thread's `block`."""
    num_before = len(arena._asks)

    class Waiter(threading.Thread):
        def run(self):
            self.block = arena.allocate(MIB, wait_s=wait_s)

    waiter = Waiter(daemon=True)
    waiter.start()
    eventually(lambda: len(arena._asks) > num_before)
    return waiter


def test_a_thread_that_waits_goes_on_when_this_process_drops_a_block(full):
    arena, blocks = full
    index = blocks[0].index
    waiter = wait_for_room(arena)
    blocks.clear()
    waiter.join(DEADLINE_S / 2)
    assert waiter.block.index == index
    eventually(lambda: not wants(arena))


def test_a_thread_that_waits_goes_on_when_a_reader_says_that_it_released(full, home, monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.comm.shm.arena.LOOK_EVERY_S", 100 * DEADLINE_S)
    arena, blocks = full
    told = []
    opened = arena_peers.readers(home, lambda owner: (told.append(owner), arena.serve()))
    held = [home.run(lambda: lease(opened, arena, blocks[0]))]
    blocks.clear()
    waiter = wait_for_room(arena)
    held.clear()
    waiter.join(DEADLINE_S / 2)
    assert waiter.block is not None
    assert told == [OWNER]
    home.run(opened.close)


def test_a_thread_that_waits_goes_on_when_a_reader_releases_that_cannot_say_so(full):
    arena, blocks = full
    opened = arena_peers.readers()  # tells nobody
    held = [lease(opened, arena, blocks[0])]
    blocks.clear()
    waiter = wait_for_room(arena)
    held.clear()
    waiter.join(DEADLINE_S / 2)
    assert waiter.block is not None
    opened.close()


def test_a_thread_that_waits_goes_on_when_the_reader_is_killed(full):
    arena, blocks = full
    reader = arena_peers.Reader(arena)
    reader.hold(*blocks)
    blocks.clear()
    waiter = wait_for_room(arena)
    reader.kill()
    waiter.join(DEADLINE_S / 2)
    assert waiter.block is not None
    reader.close()


def test_a_reader_says_nothing_to_an_owner_that_does_not_wait(new_arena, home):
    arena = new_arena(8 * MIB)
    told = []
    opened = arena_peers.readers(home, told.append)
    block = arena.allocate(100)
    held = [home.run(lambda: lease(opened, arena, block))]
    assert arena.allocate(100, wait_s=DEADLINE_S) is not None
    held.clear()
    home.run(opened.close)
    assert told == []
    assert not wants(arena)


def test_an_error_ends_the_wait_of_one_thread_at_once_and_no_other(full, home, monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.comm.shm.arena.LOOK_EVERY_S", 100 * DEADLINE_S)
    arena, blocks = full
    waiters = [wait_for_room(arena) for _ in range(2)]

    def fail(_size_bytes):
        monkeypatch.undo()
        raise ZeroDivisionError

    def serve():
        with pytest.raises(ZeroDivisionError):
            arena.serve()

    monkeypatch.setattr(arena._store, "take", fail)
    home.run(serve)
    waiters[0].join(DEADLINE_S / 2)
    assert waiters[0].block is None
    blocks.clear()
    waiters[1].join(DEADLINE_S / 2)
    assert waiters[1].block is not None


class Outrun(collections.deque):
    """Free blocks whose last one, which was large, another thread takes as soon as it is looked at."""

    def __getitem__(self, index):
        return types.SimpleNamespace(room_bytes=MIB) if index == -1 else super().__getitem__(index)


def test_a_block_that_is_too_small_is_not_kept_while_its_thread_waits(new_arena):
    arena = new_arena(MIB)
    too_small, rest = arena.allocate(70_000), arena.allocate(MIB - 80 * 1024)
    assert None not in (too_small, rest)
    del too_small
    free = arena._store.free
    eventually(lambda: any(free))
    size_class = arena._layout.size_class(70_000)
    free[size_class] = Outrun(free[size_class])
    started = time.monotonic()
    block = arena.allocate(76_000, wait_s=DEADLINE_S)
    assert block is not None
    assert time.monotonic() - started < DEADLINE_S / 2


def test_waiting_ends_in_time(full):
    arena, _blocks = full
    started = time.monotonic()
    assert arena.allocate(MIB, wait_s=0.1) is None
    assert 0.1 <= time.monotonic() - started < DEADLINE_S
    eventually(lambda: not wants(arena))


def test_what_cannot_be_had_at_once_is_not_waited_for(full, home):
    arena, _blocks = full
    assert arena.allocate(MIB) is None
    assert home.run(lambda: arena.allocate(MIB, wait_s=DEADLINE_S)) is None  # the I/O thread never waits
    assert not wants(arena)


def test_an_io_thread_that_does_not_answer_holds_nobody_up(new_arena, home):
    arena = new_arena(8 * MIB)
    stuck, go_on = threading.Event(), threading.Event()
    home.submit(lambda: (stuck.set(), go_on.wait(DEADLINE_S)))
    assert stuck.wait(DEADLINE_S)
    started = time.monotonic()
    assert arena.allocate(MIB) is None
    assert time.monotonic() - started < DEADLINE_S / 2
    go_on.set()
    eventually(arena.unused)  # what it would have got is free again


def test_of_many_threads_that_wait_each_gets_room_in_the_end(full):
    arena, blocks = full
    waiters = [wait_for_room(arena) for _ in range(4)]
    blocks.clear()
    served = set()

    def serve():
        for index, waiter in enumerate(waiters):
            if index not in served and not waiter.is_alive():
                served.add(index)
                assert waiter.block is not None
                del waiter.block
        return len(served) == 4

    eventually(serve)


def test_closing_wakes_who_waits(full, home):
    arena, _blocks = full
    waiter = wait_for_room(arena)
    home.run(arena.close)
    waiter.join(DEADLINE_S / 2)
    assert waiter.block is None
    assert arena.allocate(1, wait_s=DEADLINE_S) is None


def test_many_threads_that_take_and_drop_blocks_leave_all_of_them_free(new_arena):
    arena = new_arena(4 * MIB)
    wrong = []

    def run(number):
        for turn in range(200):
            block = arena.allocate(100_000 + 50_000 * (turn % 3), wait_s=DEADLINE_S)
            if block is None:
                wrong.append("no room")
                return
            mark = (number * 200 + turn) % 251
            block.memory[::4096] = mark
            if set(block.memory[::4096]) != {mark}:
                wrong.append("two have one block")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert wrong == []
    eventually(arena.unused)
    assert arena.touched_bytes <= 4 * MIB + 4096


class Interrupted(Exception):
    pass


@pytest.mark.interrupted
def test_a_thread_that_is_interrupted_anywhere_loses_no_block(new_arena, home, monkeypatch):
    """A signal handler that raises, at random moments of taking, holding and dropping."""
    # What a `__del__` raises is reported with its frames, which would keep blocks.
    monkeypatch.setattr(sys, "unraisablehook", lambda _report: None)
    arena = new_arena(2 * MIB)
    opened = arena_peers.readers(home)

    def interrupt(_number, _frame):
        raise Interrupted

    def use():
        kept = []
        for _ in range(100):
            block = arena.allocate(100_000)
            if block is None:  # a wake was lost
                home.submit(opened.serve)
                continue
            home.submit(lambda block=block: kept.append(lease(opened, arena, block)))
            block = None
            kept.clear()

    before = signal.signal(signal.SIGALRM, interrupt)
    num_interrupted, moments = 0, random.Random(7)
    try:
        while num_interrupted < 300:
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.0001, 0.002))
                use()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                num_interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    # A wake may be lost, but not what there is to do: whoever looks next finds it.
    eventually(lambda: home.run(opened.serve) is None and arena.unused())
    blocks = [arena.allocate(100_000, wait_s=DEADLINE_S) for _ in range(2 * MIB // 102_400)]
    assert None not in blocks
    home.run(opened.close)


def test_readers_are_asked_to_hurry_once_little_room_is_left(new_arena, home):
    arena = new_arena(8 * MIB)
    submitted = []
    opened = OpenArenas(submitted.append, lambda arena: None, lambda owner: None)
    first, second = arena.allocate(3 * MIB), arena.allocate(MIB)
    held = arena_peers.lease(opened, arena, first)
    del held
    assert not submitted  # with what comes next is soon enough
    assert len(opened.dropped) == 1
    third = arena.allocate(3 * MIB)
    held = arena_peers.lease(opened, arena, second)
    assert not opened.dropped
    del held
    assert submitted == [opened.serve]
    submitted.pop()()
    assert not opened.in_use()
    del third
    opened.close()
