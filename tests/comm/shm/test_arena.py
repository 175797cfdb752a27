"""Shared memory inside one process: blocks, leases and what keeps them, limits, seals."""

import gc
import mmap
import os
import threading
import time
import weakref

import numpy as np
import pytest

import arena_peers
from arena_peers import OWNER, lease
from open_files import open_twins
from rlinf_scheduler.comm.codec import encode
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.shm import ledger
from rlinf_scheduler.comm.shm.arena import Arena
from rlinf_scheduler.comm.shm.foreign import COPIED_BYTES, open_arena
from rlinf_scheduler.comm.shm.ledger import default_limit_bytes
from rlinf_scheduler.comm.shm.payload import ReceivedPayload, frame_offsets
from rlinf_scheduler.comm.shm.sent_payload import Written

DEADLINE_S = 60.0
MIB = 1 << 20
KIB = 1 << 10


@pytest.fixture
def new_arena():
    arenas = []

    def make(limit_bytes=8 * MIB):
        arenas.append(Arena(OWNER, limit_bytes, arena_peers.Inline()))
        return arenas[-1]

    yield make
    for arena in arenas:
        arena.close()


@pytest.fixture
def arena(new_arena):
    return new_arena()


@pytest.fixture
def opened():
    """What this process has open, as if it were another."""
    opened = arena_peers.readers()
    yield opened
    opened.close()


def give(arena, opened, obj):
    """Write an object and give it away: what arrives at the other side."""
    encoded = encode(obj)
    size_bytes = frame_offsets(encoded.sizes)[1]
    block = arena.allocate(size_bytes)
    Written(arena, block, encoded.sizes).write(encoded)
    return ReceivedPayload([], lease(opened, arena, block, size_bytes=size_bytes), encoded.sizes)


def pages_in_memory(arena):
    """Bytes of memory that the arena takes."""
    return os.fstat(arena.fd).st_blocks * 512


# -- where frames lie ----------------------------------------------------------------------------


def test_large_frames_begin_at_a_page_and_others_follow_each_other_closely():
    large = 4 * MIB
    offsets, end = frame_offsets([100, 1000, large, 10, large + 1, large - 1])

    assert offsets == [0, 128, 4096, 4096 + large, 8192 + large, 8192 + 2 * large + 64]
    assert end == 8192 + 3 * large + 64


# -- blocks --------------------------------------------------------------------------------------


def test_a_block_that_nobody_uses_is_the_next_to_be_used(arena):
    first, second = arena.allocate(MIB), arena.allocate(MIB)
    first_index, first_generation = first.index, first.generation
    touched = arena.touched_bytes
    del first
    again = arena.allocate(MIB)
    assert again.index == first_index != second.index
    assert again.generation != first_generation
    assert arena.touched_bytes == touched


def test_a_block_that_its_process_refers_to_or_another_holds_is_not_used_again(arena, opened):
    kept, held = arena.allocate(MIB), arena.allocate(MIB)
    held_index = held.index
    kept_lease = lease(opened, arena, held)
    del held
    third = arena.allocate(MIB)
    assert len({kept.index, held_index, third.index}) == 3
    assert arena.num_held == 2
    del kept_lease
    assert arena.allocate(MIB).index == held_index


def test_each_of_many_leases_of_one_block_keeps_it(arena, opened):
    block = arena.allocate(100)
    first = lease(opened, arena, block)
    for _ in range(1000):
        lease(opened, arena, block)
    second = lease(opened, arena, block)
    del block
    assert not arena.unused()
    del first
    assert not arena.unused()
    del second
    assert arena.unused()


def test_an_array_of_the_writers_keeps_its_block(arena):
    memory = arena.allocate(100).memory[3:5]
    assert arena.num_held == 1
    del memory
    assert arena.num_held == 0


def test_a_late_descriptor_is_refused(arena, opened):
    old = arena_peers.Told.of(arena.allocate(100))
    assert arena.unused()
    with pytest.raises(ValueError, match="used for something else"):
        lease(opened, arena, old)
    new = arena.allocate(100)
    assert new.index == old.index
    with pytest.raises(ValueError, match="used for something else"):
        lease(opened, arena, old)
    # The refused one holds nothing.
    del new
    assert arena.unused()


@pytest.mark.parametrize("index", [-1, 10**9])
def test_a_descriptor_of_no_block_is_refused(arena, opened, index):
    with pytest.raises(ValueError, match="none of number"):
        lease(opened, arena, arena_peers.Told(index, 1, 100))


def test_a_descriptor_of_more_than_a_block_is_refused(arena, opened):
    with pytest.raises(ValueError, match="do not fit"):
        lease(opened, arena, arena.allocate(100), size_bytes=MIB)


def test_what_an_operation_costs_does_not_depend_on_the_blocks_in_use(new_arena):
    """Take, hold, drop and release, beside few and beside 20,000 blocks of 64 KiB that readers hold."""
    num_rounds, num_blocks = 15, 100

    def fill(depth):
        arena, opened = new_arena(4 << 30), arena_peers.readers()
        blocks = [arena.allocate(64 * KIB) for _ in range(depth)]
        leases = []
        for block in blocks:
            block.memory[0] = 1  # a page of each is really there
            leases.append(lease(opened, arena, block))
        return arena, opened, leases

    def took(arena, opened, _leases):
        started = time.perf_counter()
        blocks = [arena.allocate(64 * KIB) for _ in range(num_blocks)]
        leases = [lease(opened, arena, block) for block in blocks]
        blocks.clear()
        leases.clear()
        return time.perf_counter() - started

    few, many = fill(10), fill(20_000)
    # Of both in turn the fastest: what the machine does besides hits either.
    times = [(took(*few), took(*many)) for _ in range(num_rounds)]
    fastest_few, fastest_many = (min(column) for column in zip(*times, strict=True))
    assert fastest_many < 3 * fastest_few
    assert pages_in_memory(many[0]) < 1 << 30


def test_what_a_full_arena_refuses_costs_the_same_whatever_it_holds(new_arena):
    def fill(depth):
        arena, opened = new_arena(depth * 64 * KIB), arena_peers.readers()
        blocks = [arena.allocate(64 * KIB) for _ in range(depth)]
        return arena, [lease(opened, arena, block) for block in blocks]

    def took(arena):
        started = time.perf_counter()
        for _ in range(100):
            assert arena.allocate(64 * KIB) is None
        return time.perf_counter() - started

    few, _ten = fill(10)
    many, _all = fill(20_000)
    times = [(took(few), took(many)) for _ in range(15)]
    fastest_few, fastest_many = (min(column) for column in zip(*times, strict=True))
    assert fastest_many < 3 * fastest_few


def test_the_owner_looks_at_those_groups_only_in_which_something_was_released(new_arena, opened, monkeypatch):
    arena = new_arena(1 << 30)
    leases = [lease(opened, arena, arena.allocate(64 * KIB)) for _ in range(10_000)]
    looked = []
    unheld = arena._table.unheld
    monkeypatch.setattr(arena._table, "unheld", lambda group: looked.append(group) or unheld(group))
    index = leases[5000].hold.index
    del leases[5000]
    assert arena.allocate(64 * KIB).index == index
    assert looked == [index // 256]


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
def test_whatever_is_made_of_an_array_keeps_its_block(arena, opened, derive):
    array = give(arena, opened, np.arange(100_000)).load()
    derived = derive(array)
    del array
    gc.collect()
    assert not arena.unused()
    del derived
    assert arena.unused()


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
def test_whatever_is_made_of_a_tensor_keeps_its_block(arena, opened, derive):
    torch = pytest.importorskip("torch")
    tensor = give(arena, opened, torch.ones(100_000)).load()
    derived = derive(tensor)
    del tensor
    gc.collect()
    assert not arena.unused()
    del derived
    assert arena.unused()


def test_the_last_of_many_arrays_and_tensors_of_an_object_releases_the_block(arena, opened):
    torch = pytest.importorskip("torch")
    obj = {"a": torch.ones(10_000), "b": [np.ones(10_000), np.zeros(0)], "c": "text" * 10_000}
    value = give(arena, opened, obj).load()
    kept = value["b"][0]
    del value
    assert not arena.unused()
    kept += 1  # writable
    assert kept.sum() == 20_000
    del kept
    assert arena.unused()


def test_an_object_without_arrays_releases_its_block_at_once(arena, opened):
    assert give(arena, opened, "text" * 100_000).load() == "text" * 100_000
    assert arena.unused()


def test_a_block_is_released_by_another_thread(arena, opened):
    held = [give(arena, opened, np.ones(100_000)).load()]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join(DEADLINE_S)
    assert arena.unused()


def test_a_block_is_released_by_the_collector_of_cycles_in_any_thread(arena, opened):
    class Holder:
        pass

    holder = Holder()
    holder.itself = holder
    holder.array = give(arena, opened, np.ones(100_000)).load()
    del holder
    assert not arena.unused()
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join(DEADLINE_S)
    assert arena.unused()


def test_collecting_cycles_inside_of_the_arena_is_harmless():
    """The collector may run in the midst of anything, and what it drops is released."""

    class Holder:
        pass

    home = arena_peers.Threaded()
    arena, opened = Arena(OWNER, 64 * MIB, home), arena_peers.readers(home)
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for number in range(300):
            block = arena.allocate(5000, wait_s=DEADLINE_S)
            holder = Holder()
            holder.itself, holder.block = holder, block
            shared = bool(number % 2)
            holder.lease = home.run(
                lambda block=block, shared=shared: lease(opened, arena, block, shared=shared)
            )
            holder.array = holder.lease.array()
            del holder, block
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    arena_peers.eventually(arena.unused)
    home.run(arena.close)
    home.close()


# -- one block, several readers ------------------------------------------------------------------


# A small block that several read is copied by each, a large one is mapped once more.
@pytest.fixture(params=[3 * mmap.PAGESIZE, COPIED_BYTES + 3 * mmap.PAGESIZE], ids=["copied", "mapped"])
def shared_bytes(request):
    return request.param


def test_who_writes_into_a_shared_block_is_seen_by_nobody_else(arena, shared_bytes):
    block = arena.allocate(shared_bytes)
    block.memory[:] = 7
    sides = [arena_peers.readers() for _ in range(2)]
    mine, theirs = (lease(opened, arena, block, shared=True) for opened in sides)
    array = mine.array()
    array[:] = 1
    array[5] = 2
    for seen in (theirs.array(), block.memory, theirs.original(), mine.original()):
        assert (seen == 7).all()
    assert array[5] == 2  # and its own writes stay
    assert (array == 1).sum() == shared_bytes - 1


def test_two_leases_of_a_shared_block_in_one_process_are_two_readers(arena, opened, shared_bytes):
    block = arena.allocate(shared_bytes)
    block.memory[:] = 7
    mine, theirs = (lease(opened, arena, block, shared=True) for _ in range(2))
    array = mine.array()
    array[:] = 1
    assert (theirs.array() == 7).all()
    del theirs
    assert (array == 1).all()


def test_a_shared_block_that_is_used_again_shows_what_it_holds_now(arena, opened, shared_bytes):
    first = arena.allocate(shared_bytes)
    first.memory[:] = 1
    first_index = first.index
    held = lease(opened, arena, first, shared=True)
    held.array()[:] = 99
    del first, held
    second = arena.allocate(shared_bytes)
    assert second.index == first_index
    second.memory[:] = 2
    assert (lease(opened, arena, second, shared=True).array() == 2).all()


def test_the_copy_of_a_small_shared_block_does_not_keep_it(arena, opened):
    block = arena.allocate(COPIED_BYTES)
    block.memory[:] = 7
    kept = lease(opened, arena, block)
    kept.map()
    areas = arena_peers.num_areas(arena_peers.inode_of(arena))
    array = lease(opened, arena, block, shared=True).array()
    assert arena_peers.num_areas(arena_peers.inode_of(arena)) == areas
    del block, kept
    opened.serve()
    assert arena.unused()
    assert (array == 7).all()


def test_a_dropped_private_map_is_gone_from_the_process(arena, opened):
    block = arena.allocate(COPIED_BYTES + 1)
    kept = lease(opened, arena, block)
    kept.map()
    inode = arena_peers.inode_of(arena)
    before = arena_peers.num_areas(inode)
    array = lease(opened, arena, block, shared=True).array()
    assert arena_peers.num_areas(inode) == before + 1
    assert array[0] == 0
    del array
    assert arena_peers.num_areas(inode) == before


# -- limits --------------------------------------------------------------------------------------


def test_a_full_arena_gives_none_and_takes_no_more_memory(arena):
    blocks = []
    while (block := arena.allocate(100_000)) is not None:
        blocks.append(block)
        block.memory[:] = 1
    assert len(blocks) == arena.limit_bytes // blocks[0].room_bytes
    assert arena.touched_bytes <= arena.limit_bytes + mmap.PAGESIZE
    assert pages_in_memory(arena) <= arena.limit_bytes + 64 * KIB  # and the table
    del block, blocks[3]
    assert arena.allocate(100_000) is not None
    kept = arena.allocate(100_000)
    assert arena.allocate(100_000) is None
    assert kept is not None


def test_what_is_larger_than_the_limit_gets_none_and_what_is_as_large_gets_it(arena):
    assert arena.allocate(arena.limit_bytes + 1, wait_s=DEADLINE_S) is None
    assert arena.allocate(arena.limit_bytes) is not None


def test_free_blocks_of_other_sizes_make_room(arena):
    for size in (64 * KIB, 100 * KIB, MIB, 3 * MIB):
        blocks = []
        while (block := arena.allocate(size)) is not None:
            block.memory[:] = 1
            blocks.append(block)
        assert len(blocks) == arena.limit_bytes // blocks[0].room_bytes
        assert pages_in_memory(arena) <= arena.limit_bytes + 64 * KIB
        del block, blocks


def test_a_block_takes_memory_for_what_was_written_and_not_for_its_whole_length(arena):
    block = arena.allocate(65 * KIB)  # the next size is 80 KiB
    block.memory[:] = 1
    assert len(block.memory) == 68 * KIB
    assert arena.touched_bytes == 72 * KIB
    index = block.index
    del block
    larger = arena.allocate(78 * KIB)
    assert larger.index == index
    assert arena.touched_bytes == 84 * KIB


def test_the_default_limit_is_what_the_variable_says(monkeypatch):
    monkeypatch.setenv(ledger.VARIABLE, "3")
    assert default_limit_bytes() == 3 * MIB
    monkeypatch.setenv(ledger.VARIABLE, "0")
    assert default_limit_bytes() == 0


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1 GiB", "²", "much"])
def test_a_variable_that_is_no_number_is_named_with_what_it_takes(monkeypatch, text):
    monkeypatch.setenv(ledger.VARIABLE, text)
    with pytest.raises(ValueError, match=f"{ledger.VARIABLE}.*takes a whole number of MiB"):
        default_limit_bytes()


def test_the_default_limit_is_a_share_of_the_memory_that_there_is(monkeypatch):
    monkeypatch.delenv(ledger.VARIABLE, raising=False)
    assert default_limit_bytes() == ledger.memory_bytes() // 2


@pytest.mark.parametrize("group_bytes", [None, 80 * MIB, 1 << 62])
def test_the_memory_that_there_is_ends_where_that_of_the_control_group_does(monkeypatch, group_bytes):
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr(ledger, "memory_limit_bytes", lambda: group_bytes)
    assert ledger.memory_bytes() == min(machine, group_bytes or machine)


# -- the memory itself ---------------------------------------------------------------------------


def trim(arena):
    while arena.trim():
        pass


def test_trimming_gives_free_pages_back_and_loses_nothing_that_is_in_use(arena, opened):
    blocks = [arena.allocate(MIB) for _ in range(6)]
    for number, block in enumerate(blocks):
        block.memory[:] = number
    held = lease(opened, arena, blocks[4])
    del block, blocks[4:], blocks[1:3]
    before = pages_in_memory(arena)
    trim(arena)
    assert before - pages_in_memory(arena) == 3 * MIB
    assert arena.touched_bytes < 4 * MIB
    for number, block in zip((0, 3), blocks, strict=True):
        assert set(block.memory[:: mmap.PAGESIZE]) == {number}
    assert set(held.array()[:: mmap.PAGESIZE]) == {4}
    again = arena.allocate(2 * MIB)
    again.memory[:] = 9
    assert set(held.array()[:: mmap.PAGESIZE]) == {4}
    assert lease(opened, arena, again).array()[-1] == 9


def test_trimming_much_is_done_in_slices(new_arena):
    arena = new_arena(512 * MIB)
    block = arena.allocate(64 * KIB)
    blocks = [arena.allocate(4 * MIB) for _ in range(100)]
    blocks.clear()
    num_slices = 1
    while arena.trim():
        num_slices += 1
    assert num_slices > 10
    assert arena.touched_bytes == 4 * KIB + block.room_bytes


def test_closing_gives_the_pages_back_though_a_reader_keeps_the_memory_open(arena, opened):
    used, unused = arena.allocate(MIB), arena.allocate(2 * MIB)
    used.memory[:] = unused.memory[:] = 1
    held = lease(opened, arena, used)
    array = held.array()
    del used, unused
    arena.close()
    assert os.fstat(held.hold.arena.fd).st_blocks * 512 < 1.5 * MIB
    assert set(array) == {1}


def test_the_last_who_holds_a_block_of_a_gone_owner_gives_its_pages_back(arena):
    sides = [arena_peers.readers() for _ in range(2)]
    first, second = arena.allocate(MIB), arena.allocate(MIB)
    first.memory[:] = second.memory[:] = 1
    leases = [[lease(opened, arena, block) for block in (first, second)] for opened in sides]
    del first, second
    fd = os.dup(arena.fd)
    arena.close()
    for opened in sides:
        opened.forget(OWNER.process_id)
    full = os.fstat(fd).st_blocks
    del leases[0][0]
    assert os.fstat(fd).st_blocks == full  # the other still has it
    del leases[1][0]
    assert full - os.fstat(fd).st_blocks == MIB // 512
    assert set(leases[0][0].array()) == set(leases[1][0].array()) == {1}
    os.close(fd)


@pytest.mark.parametrize("size", [0, 1, mmap.PAGESIZE, 10 << 30])
def test_nobody_can_change_the_size(arena, opened, size):
    held = lease(opened, arena, arena.allocate(1))
    with pytest.raises(PermissionError):
        os.ftruncate(held.hold.arena.fd, size)


def test_an_object_that_is_being_sent_outlives_its_arena(new_arena):
    arena = new_arena()
    encoded = encode(np.arange(1000))
    written = Written(arena, arena.allocate(frame_offsets(encoded.sizes)[1]), encoded.sizes)
    written.write(encoded)
    arena.close()
    frames = written.frames()
    del written
    assert np.array_equal(np.frombuffer(frames[-1], np.int64), np.arange(1000))


def test_a_closed_arena_is_not_mapped_any_more_though_something_refers_to_it(new_arena):
    arena = new_arena()
    inode = arena_peers.inode_of(arena)
    block = arena.allocate(100)
    assert arena_peers.num_areas(inode)
    arena.close()
    del block
    assert not arena_peers.num_areas(inode)
    assert arena.allocate(100) is None


def test_a_block_whose_object_cannot_be_written_is_free(arena):
    class Broken:
        sizes = (10,)

        def write_into(self, memory, offsets):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        Written(arena, arena.allocate(100), Broken.sizes).write(Broken())
    gc.collect()
    assert arena.unused()


def test_another_file_is_not_taken_for_an_arena(arena, tmp_path):
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    pipe = os.pipe()
    before = open_twins(descriptor, *pipe, arena.fd)
    for fd in (descriptor, pipe[0], pipe[1], 10_000):
        with pytest.raises((ValueError, OSError)):
            open_arena(OWNER.process_id, os.getpid(), fd)
    with pytest.raises(ValueError, match="the arena of another process"):
        open_arena("0" * 32, os.getpid(), arena.fd)
    assert open_twins(descriptor, *pipe, arena.fd) == before
    for fd in (descriptor, *pipe):
        os.close(fd)


def test_arenas_stay_open_while_in_use_and_a_while_after(monkeypatch, opened):
    monkeypatch.setattr("rlinf_scheduler.comm.shm.readers.MAX_IDLE_ARENAS", 2)
    owners = [Endpoint(f"{number:032x}", "here", "", "") for number in range(4)]
    arenas = [Arena(owner, MIB, arena_peers.Inline()) for owner in owners]
    watched = []
    for number, (owner, arena) in enumerate(zip(owners, arenas, strict=True)):
        place = (owner.process_id, os.getpid(), arena.fd)
        watched.append(weakref.ref(opened.get(*place)))
        if number == 0:
            held = lease(opened, place, arena.allocate(10))
    assert [ref() is not None for ref in watched] == [True, False, True, True]
    assert opened.get(owners[0].process_id, os.getpid(), -1) is held.hold.arena  # known, and not opened again
    del held
    opened.forget(owners[0].process_id)
    assert [ref() is not None for ref in watched] == [False, False, False, True]
    opened.close()
    assert watched[3]() is None
    for arena in arenas:
        arena.close()


def test_what_comes_from_the_arena_of_a_gone_owner_does_not_keep_it_open(arena, opened):
    place = (OWNER.process_id, os.getpid(), arena.fd)
    reader = opened.get(*place)
    opened.forget(OWNER.process_id)
    assert opened.get(*place) is reader  # handed on by somebody else
    watched = weakref.ref(reader)
    del reader
    assert watched() is None


def test_an_arena_that_is_not_used_any_more_leaves_no_descriptor_and_no_slot(arena, opened):
    before = open_twins(arena.fd)
    held = lease(opened, arena, arena.allocate(10))
    assert len(arena._table.slots()) == 1
    opened.forget(OWNER.process_id)
    del held
    assert open_twins(arena.fd) == before
    assert len(arena._table.slots()) == 0
