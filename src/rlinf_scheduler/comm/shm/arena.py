"""The shared memory that one process writes and others read.

Pages that are touched for the first time cost ten times a copy, so a block that nobody uses any more is the first to
be used again. `blocks` decides; this is the shell around it, which has the memory and lets threads wait.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.promise import Wake
from rlinf_scheduler.comm.shm import kernel
from rlinf_scheduler.comm.shm.blocks import Block, BlockStore
from rlinf_scheduler.comm.shm.foreign import clear_dead_slots
from rlinf_scheduler.comm.shm.holders import HolderTable
from rlinf_scheduler.comm.shm.io_thread import IoThread, run_at
from rlinf_scheduler.comm.shm.kernel import Region, map_array, map_region
from rlinf_scheduler.comm.shm.layout import HEADER_BYTES, LOW_AT, UNPIN_AT, WANTED_AT, Layout, new_header
from rlinf_scheduler.comm.shm.ledger import Ledger

# The I/O thread answers in microseconds; one that does not answer at all must not hold up a caller without end.
ANSWER_S = 0.25
# While somebody waits for room, the holder table is looked at so often even if no reader says anything: the children
# of readers cannot.
LOOK_EVERY_S = 0.05
_HUGE_BYTES = 4 << 20
# Once more than this part of the arena was written, readers release at once what they drop.
LOW_SHARE = 0.5
# The regions of many arenas must find room among the addresses of one reader.
MAX_LIMIT_BYTES = 256 << 30


class _BlockRequest:
    """One thread's wish for a block; it waits on a lock of its own."""

    __slots__ = ("answered", "block", "deadline", "size_bytes")

    def __init__(self, size_bytes: int, deadline: float) -> None:
        self.size_bytes = size_bytes
        self.deadline = deadline
        self.block: Block | None = None
        self.answered = threading.Lock()
        self.answered.acquire()


class Arena:
    """This process's shared memory.

    Args:
        owner: this process.
        limit_bytes: how much it holds at most, up to MAX_LIMIT_BYTES; only what is in use takes memory.
        io_thread: the I/O thread, to which everything here belongs but the free blocks.
        ledger: what all processes of the machine may take together.

    Attributes:
        fd: its descriptor; others open it through /proc. -1 when it is closed.
        limit_bytes: how much it holds at most, in whole pages.

    Raises:
        OSError: the system gives no such memory.
    """

    def __init__(
        self, owner: Endpoint, limit_bytes: int, io_thread: IoThread, ledger: Ledger | None = None
    ) -> None:
        self.limit_bytes = min(limit_bytes, MAX_LIMIT_BYTES) // kernel.PAGE_BYTES * kernel.PAGE_BYTES
        self._io_thread = io_thread
        self._ledger = ledger
        self._layout = Layout(self.limit_bytes)
        self.fd = kernel.create(self._layout.size_bytes)
        self._regions: dict[int, Region] = {}
        self._asks: deque[_BlockRequest] = deque()
        self._looks_later = False
        self._seen_refused_ns = 0 if ledger is None else ledger.refused_at_ns
        self._forked = False
        try:
            self._head = map_array(self.fd, self._layout.table_bytes)
        except OSError:
            os.close(self.fd)
            raise
        header = np.frombuffer(new_header(owner, self.limit_bytes), np.uint8)
        self._head[: len(header)] = header
        self._table = HolderTable(self._head[HEADER_BYTES:], self._layout.num_blocks)
        self._store = BlockStore(
            self._layout, self._table, make_block=self._make_block, punch=self._punch, charge=self._charge
        )

    # -- from any thread -------------------------------------------------------------------------

    def allocate(self, size_bytes: int, wait_s: float = 0.0) -> Block | None:
        """A block for `size_bytes` of data, or None if there is no room.

        Args:
            size_bytes: how much data.
            wait_s: how long to wait for others to release blocks when there is none. The I/O thread never waits.
        """
        if size_bytes > self.limit_bytes or self.fd < 0:
            return None
        block = _take_free(self._store.free[self._layout.size_class(size_bytes)], size_bytes)
        if block is not None:
            return block
        return self._take(size_bytes) if self._io_thread.on_io_thread() else self._ask(size_bytes, wait_s)

    def when_free(self, block: Block, tell: Callable[[], None]) -> None:
        """Call `tell` on the I/O thread once nobody uses a block any more; by who has it."""
        self._store.on_free[block.index] = tell

    def holders(self, block: Block) -> list[int]:
        """The ids of the processes that hold a block."""
        return self._table.holders(block.index) if self.fd >= 0 else []

    @property
    def touched_bytes(self) -> int:
        """How much memory its data takes at most: what was written since pages were last given back."""
        return HEADER_BYTES + self._store.touched_bytes

    def use_beside(self, size_bytes: int) -> str:
        """What is in use, of which limit: the one that leaves no room for `size_bytes` more."""
        ledger, own = self._ledger, self.touched_bytes
        if ledger is None or own + size_bytes > self.limit_bytes:
            return f"{own >> 20} of {self.limit_bytes >> 20} MiB of this process's shared memory are in use"
        return (
            f"{ledger.taken_bytes >> 20} of {ledger.limit_bytes >> 20} MiB of shared memory that all processes of the "
            f"job may have on this machine are in use, {own >> 20} MiB by this one"
        )

    @property
    def num_held(self) -> int:
        """Blocks that this process refers to."""
        return run_at(self._io_thread, self._num_held) if self.fd >= 0 else 0

    @property
    def generation(self) -> int:
        """How often a block was allocated."""
        return self._store.num_taken

    def unused(self) -> bool:
        """Whether nobody uses any block."""
        return self.fd < 0 or run_at(self._io_thread, self._unused)

    # -- the I/O thread --------------------------------------------------------------------------

    def serve(self) -> None:
        """See what came back, and give it to those who wait."""
        if self.fd < 0:
            return
        more = self._store.look()
        if self._asks:
            more = self._answer_asks() or more
        if more:
            self._io_thread.submit(self.serve)

    def clear_dead(self) -> None:
        """Processes may have ended: what they held is free."""
        if self.fd >= 0 and clear_dead_slots(self.fd, self._table):
            self.serve()

    def is_short(self) -> bool:
        """Whether some process was refused memory since this was asked last: what is free here should go."""
        refused_ns = 0 if self._ledger is None else self._ledger.refused_at_ns
        before, self._seen_refused_ns = self._seen_refused_ns, refused_ns
        return refused_ns > before

    def trim(self) -> bool:
        """Give pages of free blocks back to the system, some at a time; True if there are more."""
        if self.fd < 0:
            return False
        clear_dead_slots(self.fd, self._table)
        self._store.look()
        more = self._store.trim()
        self._ask_to_unpin()
        return more

    @property
    def keeps_pinned(self) -> bool:
        """Whether there were blocks, when it was trimmed last, that are free but pinned by others."""
        return self._store.pins_in_the_way

    def adopt(self, size_bytes: int) -> None:
        """Answer for so many bytes that a dead process wrote, in the ledger of the machine; less if it is negative."""
        if self._ledger is not None:
            self._ledger.adopt(size_bytes)

    def close(self) -> None:
        """Give everything up; blocks that others use live on with them, the others end here."""
        if self.fd < 0:
            return
        # Idle readers may keep the memory open for a while.
        while self.trim():
            pass
        if self._ledger is not None:
            self._ledger.close()
        self._drop()
        while self._asks:
            self._asks.popleft().answered.release()

    def abandon(self) -> None:
        """Close the descriptor in a forked child; its parent goes on."""
        self._forked = True
        if self.fd >= 0:
            self._drop()
        if self._ledger is not None:
            self._ledger.abandon()

    def _drop(self) -> None:
        fd, self.fd = self.fd, -1
        os.close(fd)
        # Blocks that are still written or sent keep their maps.
        self._regions.clear()
        self._store.close()
        del self._table, self._head

    def _unused(self) -> bool:
        clear_dead_slots(self.fd, self._table)
        while self._store.look():
            pass
        return not self._store.num_in_use and not self._store.num_lent

    def _num_held(self) -> int:
        while self._store.look():
            pass
        return self._store.num_in_use

    # -- waiting for room ------------------------------------------------------------------------

    def _ask(self, size_bytes: int, wait_s: float) -> Block | None:
        ask = _BlockRequest(size_bytes, self._io_thread.now() + wait_s)
        self._io_thread.submit(lambda: self._take_ask(ask))
        # Whenever this is interrupted, the block is dropped with what refers to it.
        ask.answered.acquire(timeout=wait_s + ANSWER_S)
        return ask.block

    def _take_ask(self, ask: _BlockRequest) -> None:
        if self.fd >= 0 and not self._serve_ask(ask):
            self._asks.append(ask)
            self._head[WANTED_AT] = 1
            kernel.fence()
            # What was released until now is found by this look; whoever releases later says so.
            self.serve()
            self._look_later()
        elif self.fd < 0:
            ask.answered.release()

    def _serve_ask(self, ask: _BlockRequest) -> bool:
        """Whether this thread need not wait any more, for it has its block or its time is over."""
        over = True
        try:
            ask.block = self._take(ask.size_bytes)
            over = ask.block is not None or self._io_thread.now() >= ask.deadline
        finally:
            # Also after an error: its object travels as bytes.
            if over:
                ask.answered.release()
        return over

    def _answer_asks(self) -> bool:
        """Give those who wait what there is; True if the next turn has to go on."""
        before = self._store.touched_bytes
        for _ in range(len(self._asks)):
            ask = self._asks.popleft()
            if not self._serve_ask(ask):
                self._asks.append(ask)
        self._head[WANTED_AT] = bool(self._asks)
        # Free blocks are given up for others a turn's worth at a time.
        return bool(self._asks) and self._store.touched_bytes < before

    def _take(self, size_bytes: int) -> Block | None:
        self._store.look()
        block = self._store.take(size_bytes)
        if block is None and clear_dead_slots(self.fd, self._table):
            self._store.look()
            block = self._store.take(size_bytes)
        if block is None:
            self._ask_to_unpin()
        return block

    def _ask_to_unpin(self) -> None:
        if self._store.pins_in_the_way:
            self._head[UNPIN_AT] = 1

    def _look_later(self) -> None:
        if not self._looks_later:
            self._looks_later = True
            self._io_thread.call_later(LOOK_EVERY_S, self._look_again)

    def _look_again(self) -> None:
        self._looks_later = False
        if self._asks:
            self._look_later()
        self.serve()

    # -- what the store asks for -----------------------------------------------------------------

    def _make_block(self, index: int, generation: int, room: int) -> Block:
        region = self._region(self._layout.class_of(index))
        address = region.address + self._layout.offset_in_region(index)
        return Block(index, generation, room, region.memory, address, Wake(self._on_drop))

    def _on_drop(self) -> None:
        if not self._forked:
            self._io_thread.submit(self.serve)

    def _region(self, size_class: int) -> Region:
        region = self._regions.get(size_class)
        if region is None:
            offset, size = self._layout.region(size_class)
            region = self._regions[size_class] = map_region(self.fd, size, offset)
            if self._layout.block_bytes[size_class] >= _HUGE_BYTES:
                kernel.prefer_huge_pages(region.address, size)
        return region

    def _punch(self, index: int, room: int) -> None:
        kernel.punch(self.fd, self._layout.offset(index), room)

    def _charge(self, size_bytes: int) -> bool:
        touched_bytes = self._store.touched_bytes + size_bytes
        self._head[LOW_AT] = touched_bytes > LOW_SHARE * self.limit_bytes
        if touched_bytes > self.limit_bytes:
            return False
        return self._ledger is None or self._ledger.charge(size_bytes)


def _take_free(free: deque[Block], size_bytes: int) -> Block | None:
    """The warmest of some free blocks, if it has room."""
    try:
        if free[-1].room_bytes >= size_bytes:
            # In one step: a thread that is interrupted after it drops the block, which goes back.
            block = free.pop()
            # Another thread may have been faster: then this one may be too small, and goes back now.
            return block if block.room_bytes >= size_bytes else None
    except IndexError:
        pass
    return None


# Pages of free blocks go back when so long nothing was allocated; a slice in each turn of the I/O thread.
TRIM_AFTER_S = 30.0
# As long as there are any, one number in memory is looked at so often: whether another process was refused some.
LOOK_AFTER_S = 0.25


class Trimmer:
    """Gives up what an arena merely keeps warm. On the I/O thread.

    Attributes:
        on_duty: it looks by itself until the arena is empty.
    """

    def __init__(self, io_thread: IoThread, arena: Arena) -> None:
        self.on_duty = False
        self._io_thread = io_thread
        self._arena = arena
        self._generation = 0
        self._used_at = 0.0
        self._gives_up = False

    def begin(self) -> None:
        """Something was allocated."""
        if not self.on_duty:
            self.on_duty = True
            self._used_at = self._io_thread.now()
            self._io_thread.call_later(LOOK_AFTER_S, self._look)

    def _look(self) -> None:
        arena, now = self._arena, self._io_thread.now()
        if arena.generation != self._generation:
            self._generation, self._used_at = arena.generation, now
        idle = now - self._used_at >= TRIM_AFTER_S
        self._gives_up = arena.is_short() or idle or self._gives_up
        if self._gives_up:
            self._gives_up = arena.trim()
            if idle and not self._gives_up and arena.unused() and not arena.keeps_pinned:
                self.on_duty = False
                return
        # Others may still have blocks, which nobody says when they are released.
        self._io_thread.call_later(0.0 if self._gives_up else LOOK_AFTER_S, self._look)
