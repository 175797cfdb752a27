"""Shared memory inside one process: blocks, loans and what keeps them, limits, seals."""

import gc
import mmap
import os
import threading
import time
import weakref

import numpy as np
import pytest

import arena_peers
from rlinf.scheduler.comm.codec import encode
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.parcel import Arrived, Written, frame_offsets
from rlinf.scheduler.comm.shm import Arena, Loan, OpenArenas, default_limit_bytes, kernel, limit, open_arena
from rlinf.scheduler.comm.shm.arena import DATA_AT
from rlinf.scheduler.comm.shm.header import WANTED_AT

DEADLINE_S = 20.0
MIB = 1 << 20
OWNER = Endpoint("f" * 32, "here", "/nowhere", "")


@pytest.fixture
def new_arena():
    arenas = []

    def make(limit_bytes=8 * MIB):
        arenas.append(Arena(OWNER, limit_bytes))
        return arenas[-1]

    yield make
    for arena in arenas:
        arena.close()


@pytest.fixture
def arena(new_arena):
    return new_arena()


def reader_of(arena):
    return open_arena(OWNER.process_id, os.getpid(), arena.fd)


def borrow(reader, block, *, shared=False, on_returned=lambda owner: None):
    return Loan(reader, block.offset, block.size_bytes, block.token, shared, on_returned)


def lend(arena, obj):
    """Write an object and give it away: what arrives at the other side."""
    encoded = encode(obj)
    block = arena.allocate(frame_offsets(encoded.sizes)[1])
    written = Written(arena, block, encoded)
    arrived = Arrived([], borrow(reader_of(arena), block), encoded.sizes)
    del written
    return arrived


def pages_in_memory(arena):
    """Bytes of memory that the arena takes."""
    return os.fstat(arena.fd).st_blocks * 512


def is_free(arena):
    return arena.unused()


# -- blocks --------------------------------------------------------------------------------------


def test_a_block_that_nobody_uses_is_the_next_to_be_used(arena):
    first, second = arena.allocate(MIB), arena.allocate(MIB)
    touched = arena.touched_bytes
    arena.let_go(first)
    again = arena.allocate(MIB)
    assert again.offset == first.offset != second.offset
    assert again.token != first.token
    assert arena.touched_bytes == touched


def test_a_warm_block_deep_in_the_line_is_found_before_cold_memory_is_touched(new_arena):
    arena = new_arena(64 * MIB)
    reader = reader_of(arena)
    blocks = [arena.allocate(MIB) for _ in range(20)]
    loans = [borrow(reader, block) for block in blocks[:-1]]
    for block in blocks:
        arena.let_go(block)
    touched = arena.touched_bytes
    assert arena.allocate(MIB).offset == blocks[-1].offset
    assert arena.touched_bytes == touched
    assert len(loans) == 19


def test_a_block_that_its_process_holds_or_another_has_locked_is_not_used_again(arena):
    reader = reader_of(arena)
    held, lent = arena.allocate(MIB), arena.allocate(MIB)
    loan = borrow(reader, lent)
    arena.let_go(lent)
    third = arena.allocate(MIB)
    assert len({held.offset, lent.offset, third.offset}) == 3
    assert arena.num_held == 2
    del loan
    assert arena.allocate(MIB).offset == lent.offset


def test_each_of_two_loans_of_one_block_keeps_it(arena):
    reader = reader_of(arena)
    block = arena.allocate(100)
    first = borrow(reader, block)
    for _ in range(2 * mmap.PAGESIZE):  # as many as there are bytes in the block, and once more
        borrow(reader, block)
    second = borrow(reader, block)
    arena.let_go(block)
    assert not is_free(arena)
    del first
    assert not is_free(arena)
    del second
    assert is_free(arena)


def test_a_block_of_a_page_has_room_for_a_page_of_loans_and_refuses_the_next(arena):
    reader = reader_of(arena)
    block = arena.allocate(100)
    loans = [borrow(reader, block) for _ in range(block.size_bytes)]
    with pytest.raises(OSError, match="No locks"):
        borrow(reader, block)
    loans.pop()
    loans.append(borrow(reader, block))
    arena.let_go(block)
    loans.clear()
    assert is_free(arena)


def test_a_late_descriptor_is_refused(arena):
    reader = reader_of(arena)
    old = arena.allocate(100)
    arena.let_go(old)
    assert is_free(arena)
    with pytest.raises(ValueError, match="used for something else"):
        borrow(reader, old)
    new = arena.allocate(100)
    assert new.offset == old.offset
    with pytest.raises(ValueError, match="used for something else"):
        borrow(reader, old)
    # The refused one left no lock.
    arena.let_go(new)
    assert is_free(arena)


def test_a_descriptor_from_inside_a_larger_block_is_refused(arena):
    blocks = [arena.allocate(100) for _ in range(4)]
    for block in blocks:
        arena.let_go(block)
    large = arena.allocate(3 * blocks[0].size_bytes)
    assert large.offset == blocks[0].offset
    with pytest.raises(ValueError, match="used for something else"):
        borrow(reader_of(arena), blocks[2])


def test_many_blocks_that_a_reader_holds_do_not_slow_the_others_down(new_arena, monkeypatch):
    arena = new_arena(256 * MIB)
    reader = reader_of(arena)
    loans = []

    def lend_one():
        block = arena.allocate(60_000)
        loans.append(borrow(reader, block))
        arena.let_go(block)

    for _ in range(1000):
        lend_one()
    touched = arena.touched_bytes
    asked = []
    lock_alone = kernel.try_lock_alone
    monkeypatch.setattr(kernel, "try_lock_alone", lambda *args: asked.append(1) or lock_alone(*args))
    for size in (60_000, 600_000):
        for _ in range(500):
            arena.let_go(arena.allocate(size))
    assert len(asked) < 5000
    assert arena.touched_bytes < touched + 2 * MIB
    # What was held for long is found again when it is given back, and before cold memory is touched.
    loans.clear()
    for _ in range(1000):
        lend_one()
    assert arena.touched_bytes < touched + 2 * MIB
    loans.clear()
    assert is_free(arena)


# -- what keeps a block --------------------------------------------------------------------------


def slices_of(array):
    return [array[10:20], array[::-1], array.view(np.uint8)[5:]]


@pytest.mark.parametrize(
    "derive",
    [
        lambda array: array,
        lambda array: array[100:200],
        lambda array: array.reshape(10, -1).T[3],
        lambda array: memoryview(array)[7:9],
        lambda array: iter(array),
        lambda array: slices_of(array),
    ],
    ids=["array", "slice", "transposed row", "memoryview", "iterator", "list of slices"],
)
def test_whatever_is_made_of_an_array_keeps_its_block(arena, derive):
    array = lend(arena, np.arange(100_000)).load()
    derived = derive(array)
    del array
    gc.collect()
    assert not is_free(arena)
    del derived
    assert is_free(arena)


@pytest.mark.parametrize(
    "derive",
    [
        lambda tensor: tensor[5:7],
        lambda tensor: tensor.view(10, -1).t()[1],
        lambda tensor: tensor.numpy()[::2],
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: tensor.detach().requires_grad_(),
        lambda tensor: np.from_dlpack(tensor),
    ],
    ids=["slice", "view", "numpy", "storage", "leaf", "dlpack"],
)
def test_whatever_is_made_of_a_tensor_keeps_its_block(arena, derive):
    torch = pytest.importorskip("torch")
    tensor = lend(arena, torch.ones(100_000)).load()
    derived = derive(tensor)
    del tensor
    gc.collect()
    assert not is_free(arena)
    del derived
    assert is_free(arena)


def test_the_last_of_many_arrays_and_tensors_of_an_object_gives_the_block_back(arena):
    torch = pytest.importorskip("torch")
    obj = {"a": torch.ones(10_000), "b": [np.ones(10_000), np.zeros(0)], "c": "text" * 10_000}
    value = lend(arena, obj).load()
    kept = value["b"][0]
    del value
    assert not is_free(arena)
    kept += 1  # writable
    assert kept.sum() == 20_000
    del kept
    assert is_free(arena)


def test_an_object_without_arrays_gives_its_block_back_at_once(arena):
    assert lend(arena, "text" * 100_000).load() == "text" * 100_000
    assert is_free(arena)


def test_a_block_is_given_back_by_another_thread(arena):
    held = [lend(arena, np.ones(100_000)).load()]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join(DEADLINE_S)
    assert is_free(arena)


def test_a_block_is_given_back_by_the_collector_of_cycles_in_any_thread(arena):
    class Holder:
        pass

    holder = Holder()
    holder.itself = holder
    holder.array = lend(arena, np.ones(100_000)).load()
    del holder
    assert not is_free(arena)
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join(DEADLINE_S)
    assert is_free(arena)


def test_collecting_cycles_inside_of_the_arena_is_harmless(arena):
    """The collector may run in the midst of anything, and what it drops gives blocks back."""
    reader = reader_of(arena)

    class Holder:
        pass

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for number in range(300):
            block = arena.allocate(5000)
            holder = Holder()
            holder.itself, holder.loan = holder, borrow(reader, block, shared=bool(number % 2))
            holder.array = holder.loan.array()
            arena.let_go(block)
            del holder, block
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert is_free(arena)


# -- one block, several readers ------------------------------------------------------------------


def test_who_writes_into_a_shared_block_is_seen_by_nobody_else(arena):
    block = arena.allocate(3 * mmap.PAGESIZE)
    block.memory[:] = 7
    mine, theirs = (borrow(reader_of(arena), block, shared=True) for _ in range(2))
    mine.array()[:] = 1
    mine.array()[5] = 2
    assert set(theirs.array()) == set(block.memory) == set(theirs.original()) == set(mine.original()) == {7}
    assert mine.array()[5] == 2  # and its own writes stay


def test_two_loans_of_a_shared_block_in_one_process_are_two_readers(arena):
    reader = reader_of(arena)
    block = arena.allocate(mmap.PAGESIZE)
    block.memory[:] = 7
    mine, theirs = (borrow(reader, block, shared=True) for _ in range(2))
    array = mine.array()
    array[:] = 1
    assert set(theirs.array()) == {7}
    del theirs
    assert set(array) == {1}


def test_a_shared_block_that_is_used_again_shows_what_it_holds_now(arena):
    reader = reader_of(arena)
    first = arena.allocate(5 * mmap.PAGESIZE)
    first.memory[:] = 1
    loan = borrow(reader, first, shared=True)
    loan.array()[:] = 99
    arena.let_go(first)
    del loan
    second = arena.allocate(5 * mmap.PAGESIZE)
    assert second.offset == first.offset
    second.memory[:] = 2
    assert set(borrow(reader, second, shared=True).array()) == {2}


def test_a_dropped_private_map_is_gone_from_the_process(arena):
    block = arena.allocate(MIB)
    gc.collect()  # of what tests before left
    before = arena_peers.num_maps(os.getpid())
    array = borrow(reader_of(arena), block, shared=True).array()
    assert arena_peers.num_maps(os.getpid()) == before + 1
    assert array[0] == 0
    del array
    assert arena_peers.num_maps(os.getpid()) == before


# -- limits --------------------------------------------------------------------------------------


def test_a_full_arena_gives_none_and_takes_no_more_memory(arena):
    blocks = []
    while (block := arena.allocate(100_000)) is not None:
        blocks.append(block)
        block.memory[:] = 1
    assert len(blocks) == arena.limit_bytes // blocks[0].size_bytes
    assert arena.touched_bytes <= arena.limit_bytes + mmap.PAGESIZE
    assert pages_in_memory(arena) <= arena.limit_bytes + mmap.PAGESIZE
    arena.let_go(blocks.pop(3))
    assert arena.allocate(100_000) is not None
    assert arena.allocate(100_000) is None


def test_what_is_larger_than_the_limit_gets_none_without_waiting(arena):
    started = time.monotonic()
    assert arena.allocate(arena.limit_bytes, wait_s=DEADLINE_S) is None
    assert time.monotonic() - started < DEADLINE_S / 2
    assert arena.allocate(arena.limit_bytes - DATA_AT) is not None


def wait_for_room(arena, wait_s=DEADLINE_S):
    """Start a thread that waits for room; what it gets is the thread's `block`."""

    class Waiter(threading.Thread):
        def run(self):
            self.block = arena.allocate(MIB, wait_s=wait_s)

    waiter = Waiter()
    waiter.start()
    deadline = time.monotonic() + DEADLINE_S
    while not arena.someone_waits():
        assert time.monotonic() < deadline
        os.sched_yield()
    return waiter


@pytest.fixture
def full(new_arena):
    arena = new_arena(MIB + 2 * mmap.PAGESIZE)
    return arena, arena.allocate(MIB)


def test_a_thread_that_waits_for_room_goes_on_when_this_process_lets_go(full):
    arena, block = full
    waiter = wait_for_room(arena)
    arena.let_go(block)
    waiter.join(DEADLINE_S / 2)
    assert waiter.block.offset == block.offset


def test_a_thread_that_waits_for_room_goes_on_when_a_reader_says_that_it_gave_back(full):
    arena, block = full
    told = []
    loan = borrow(reader_of(arena), block, on_returned=lambda owner: (told.append(owner), arena.look_again()))
    arena.let_go(block)
    waiter = wait_for_room(arena)
    del loan
    waiter.join(DEADLINE_S / 2)
    assert waiter.block.offset == block.offset
    assert told == [OWNER]


def test_a_reader_says_nothing_to_an_owner_that_does_not_wait(arena):
    told = []
    block = arena.allocate(100)
    loan = borrow(reader_of(arena), block, on_returned=told.append)
    arena.let_go(block)
    assert arena.allocate(100, wait_s=1) is not None
    del loan
    assert told == []
    assert os.pread(arena.fd, 1, WANTED_AT) == b"\0"


def test_waiting_for_room_ends_in_time_and_looks_only_when_told(full, monkeypatch):
    arena, _block = full
    looked = []
    find = Arena._find
    monkeypatch.setattr(Arena, "_find", lambda *args: looked.append(1) or find(*args))
    started = time.monotonic()
    assert arena.allocate(MIB, wait_s=0.1) is None
    assert 0.1 <= time.monotonic() - started < DEADLINE_S
    assert 2 <= len(looked) <= 4  # at once, when the wait begins, and at its end
    assert not arena.someone_waits()
    assert os.pread(arena.fd, 1, WANTED_AT) == b"\0"


def test_of_many_threads_that_wait_each_gets_room_in_the_end(full):
    arena, block = full
    waiters = [wait_for_room(arena) for _ in range(4)]
    arena.let_go(block)
    served = set()
    deadline = time.monotonic() + DEADLINE_S
    while len(served) < 4:
        assert time.monotonic() < deadline
        for index, waiter in enumerate(waiters):
            if index not in served and not waiter.is_alive():
                served.add(index)
                arena.let_go(waiter.block)
        os.sched_yield()


def test_closing_wakes_who_waits_for_room(full):
    arena, _block = full
    waiter = wait_for_room(arena)
    arena.close()
    waiter.join(DEADLINE_S / 2)
    assert waiter.block is None
    assert arena.allocate(1, wait_s=DEADLINE_S) is None


def test_the_default_limit_is_what_the_variable_says(monkeypatch):
    monkeypatch.setenv(limit.VARIABLE, "3")
    assert default_limit_bytes() == 3 * MIB
    monkeypatch.setenv(limit.VARIABLE, "0")
    assert default_limit_bytes() == 0


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1 GiB", "²", "much"])
def test_a_variable_that_is_no_number_is_named_with_what_it_takes(monkeypatch, text):
    monkeypatch.setenv(limit.VARIABLE, text)
    with pytest.raises(ValueError, match=f"{limit.VARIABLE}.*takes a whole number of MiB"):
        default_limit_bytes()


def test_the_default_limit_is_a_share_of_the_memory_that_the_container_has(monkeypatch, tmp_path):
    monkeypatch.delenv(limit.VARIABLE, raising=False)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    group = tmp_path / "memory.max"
    monkeypatch.setattr(limit, "_CGROUP_LIMITS", (str(tmp_path / "missing"), str(group)))
    group.write_text("max\n")
    assert default_limit_bytes() == min(machine // 8, 32 << 30)
    group.write_text(f"{80 * MIB}\n")
    assert default_limit_bytes() == 10 * MIB
    group.write_text(f"{machine * 1000}\n")  # more than there is
    assert default_limit_bytes() == min(machine // 8, 32 << 30)


# -- the memory itself ---------------------------------------------------------------------------


def test_trimming_gives_free_pages_back_and_loses_nothing_that_is_in_use(arena):
    reader = reader_of(arena)
    blocks = [arena.allocate(MIB) for _ in range(6)]
    for number, block in enumerate(blocks):
        block.memory[:] = number
    loan = borrow(reader, blocks[4])
    for number in (1, 2, 4, 5):
        arena.let_go(blocks[number])
    before = pages_in_memory(arena)
    arena.trim()
    assert before - pages_in_memory(arena) >= 3 * MIB
    assert arena.touched_bytes < 6 * MIB
    for number in (0, 3):
        assert set(blocks[number].memory[:: mmap.PAGESIZE]) == {number}
    assert set(loan.array()[:: mmap.PAGESIZE]) == {4}
    again = arena.allocate(2 * MIB)
    again.memory[:] = 9
    assert set(loan.array()[:: mmap.PAGESIZE]) == {4}
    assert borrow(reader, again).array()[-1] == 9


def test_closing_gives_the_pages_back_though_a_reader_keeps_the_memory_open(arena):
    reader = reader_of(arena)
    used, unused = arena.allocate(MIB), arena.allocate(2 * MIB)
    used.memory[:] = unused.memory[:] = 1
    array = borrow(reader, used).array()
    for block in (used, unused):
        arena.let_go(block)
    arena.close()
    assert os.fstat(reader.fd).st_blocks * 512 < 1.5 * MIB
    assert set(array) == {1}


@pytest.mark.parametrize("size", [0, 1, mmap.PAGESIZE, 100 * MIB])
def test_nobody_can_change_the_size(arena, size):
    reader = reader_of(arena)
    with pytest.raises(PermissionError):
        os.ftruncate(reader.fd, size)


def test_an_object_that_is_being_sent_outlives_its_arena(new_arena):
    arena = new_arena()
    encoded = encode(np.arange(1000))
    written = Written(arena, arena.allocate(frame_offsets(encoded.sizes)[1]), encoded)
    arena.close()
    frames = written.frames()
    del written
    assert np.array_equal(np.frombuffer(frames[-1], np.int64), np.arange(1000))


def test_a_block_whose_object_cannot_be_written_is_given_back(arena):
    class Broken:
        sizes = (10,)

        def write_into(self, memory, offsets):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        Written(arena, arena.allocate(100), Broken())
    gc.collect()
    assert is_free(arena)


def test_another_file_is_not_taken_for_an_arena(arena, tmp_path):
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    pipe = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    for fd in (descriptor, pipe[0], pipe[1], 10_000):
        with pytest.raises((ValueError, OSError)):
            open_arena(OWNER.process_id, os.getpid(), fd)
    with pytest.raises(ValueError, match="the arena of another process"):
        open_arena("0" * 32, os.getpid(), arena.fd)
    assert len(os.listdir("/proc/self/fd")) == before
    for fd in (descriptor, *pipe):
        os.close(fd)


def test_arenas_stay_open_while_in_use_and_a_while_after(new_arena, monkeypatch):
    monkeypatch.setattr("rlinf.scheduler.comm.shm.loans.MAX_IDLE_ARENAS", 2)
    arenas = [Arena(Endpoint(f"{number:032x}", "here", "", ""), MIB) for number in range(4)]
    opened = OpenArenas(lambda arena: None)
    watched = []
    for number, arena in enumerate(arenas):
        reader = opened.get(f"{number:032x}", os.getpid(), arena.fd)
        watched.append(weakref.ref(reader))
        if number == 0:
            loan = borrow(reader, arena.allocate(10))
        del reader
    assert [ref() is not None for ref in watched] == [True, False, True, True]
    assert opened.get(f"{0:032x}", os.getpid(), -1) is loan.arena  # known, and not opened again
    del loan
    opened.forget(f"{0:032x}")
    assert [ref() is not None for ref in watched] == [False, False, False, True]
    opened.close()
    assert watched[3]() is None
    for arena in arenas:
        arena.close()


def test_what_comes_from_the_arena_of_a_gone_owner_does_not_keep_it_open(arena):
    opened = OpenArenas(lambda arena: None)
    reader = opened.get(OWNER.process_id, os.getpid(), arena.fd)
    opened.forget(OWNER.process_id)
    assert opened.get(OWNER.process_id, os.getpid(), arena.fd) is reader  # handed on by somebody else
    watched = weakref.ref(reader)
    del reader
    assert watched() is None


# -- forks ---------------------------------------------------------------------------------------


def test_a_forked_child_neither_drops_its_parents_locks_nor_keeps_them(arena):
    block = arena.allocate(100)
    loan = borrow(reader_of(arena), block)
    array = loan.array()
    arena.let_go(block)
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        del loan, array
        gc.collect()
        os.write(ready[1], b"dropped")
        os.read(done[0], 1)
        os._exit(0)
    try:
        assert os.read(ready[0], 7) == b"dropped"
        assert not is_free(arena)  # the child has given back nothing
        del loan, array
        assert is_free(arena)  # and holds nothing
    finally:
        os.write(done[1], b"x")
        os.waitpid(child, 0)
        for fd in (*ready, *done):
            os.close(fd)


def test_locks_of_a_killed_process_end_though_its_forked_child_lives_on(arena):
    block = arena.allocate(100)
    with arena_peers.borrower_with_a_child(OWNER.process_id, arena, block) as (parent, child):
        arena.let_go(block)
        assert not is_free(arena)
        parent.kill()
        parent.join(DEADLINE_S)
        assert arena_peers.is_alive(child)
        assert is_free(arena)
