"""The shared memory that one process writes and others read: blocks, used again while they are warm.

Pages that are touched for the first time cost ten times a copy, so a block that nobody uses any more is the first
to be used again. Who uses a block is known from the locks on it (see `kernel`): a block that its process has let go
and that nobody has locked is free, whatever became of those who had it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
import time
from collections import deque

import numpy as np

from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.shm import kernel
from rlinf.scheduler.comm.shm.blocks import FreeRanges
from rlinf.scheduler.comm.shm.header import HEADER_BYTES, WANTED_AT, new_header
from rlinf.scheduler.comm.shm.maps import Bytes, map_array

# Blocks begin at pages, so that pages can be given back and copies are aligned.
GRAIN_BYTES = kernel.PAGE_BYTES
# The first bytes of a block say which one it is: a descriptor that comes late, because everybody who vouched for it
# died, must not be taken for the block that lies there now.
TOKEN_BYTES = 8
DATA_AT = 64
# One byte that the users of a block agree on, 0 in a new one.
MARK_AT = 8
_NO_TOKEN = bytes(TOKEN_BYTES)
# Asking about a block costs two microseconds, as much as touching this much memory for the first time; and more where
# there are many locks, because the kernel goes through them one by one.
BYTES_WORTH_ONE_QUESTION = 2048
MAX_QUESTIONS = 64
# A block that was in use so many times when it was asked about is likely to stay so: it stands in the way no more.
PATIENCE = 4


class Block:
    """A part of an arena that its process writes once and then lends.

    Attributes:
        offset: where it begins.
        size_bytes: how long it is, a multiple of GRAIN_BYTES.
        token: what stands in its first 8 bytes as long as it is this block; data begins at DATA_AT.
        memory: where its data goes, uint8 of shape (size_bytes - DATA_AT,); it keeps the map.
        num_refusals: how often it was in use when it was asked about.
    """

    __slots__ = ("memory", "num_refusals", "offset", "size_bytes", "token")

    def __init__(self, offset: int, size_bytes: int, token: bytes, memory: Bytes) -> None:
        self.offset = offset
        self.size_bytes = size_bytes
        self.token = token
        self.memory = memory
        self.num_refusals = 0


class Arena:
    """This process's shared memory.

    Args:
        owner: this process.
        limit_bytes: how much it holds at most; only what is in use takes memory.

    Attributes:
        fd: its descriptor; others open it through /proc.

    Raises:
        OSError: the system gives no such memory.
    """

    def __init__(self, owner: Endpoint, limit_bytes: int) -> None:
        self._size = HEADER_BYTES + limit_bytes // GRAIN_BYTES * GRAIN_BYTES
        self.fd = kernel.create(self._size)
        self._address = 0
        self._memory = np.empty(0, np.uint8)
        self._free = FreeRanges(HEADER_BYTES, self._size)
        # Blocks that this process has let go; others may still use them. Appended to without the lock.
        self._lent: deque[Block] = deque()
        # Those of them that others keep for long.
        self._kept: deque[Block] = deque()
        self._lock = threading.Lock()
        # One locked lock for each thread that waits for room; whoever has news unlocks it.
        self._waiting: deque[threading.Lock] = deque()
        self._num_waiting = 0
        # Data that happens to lie where a block began must not look like its token.
        self._next_token = secrets.randbits(8 * TOKEN_BYTES)
        self._num_live = 0  # blocks that are not free
        self._touched = HEADER_BYTES  # no byte from here on was ever written
        self.generation = 0  # grows with each allocation
        try:
            self._map(owner)
        except OSError:
            self._drop()
            raise

    def _map(self, owner: Endpoint) -> None:
        self._memory = map_array(self.fd, self._size)
        self._address = self._memory.ctypes.data
        kernel.prefer_huge_pages(self._address, self._size)
        header = np.frombuffer(new_header(owner), np.uint8)
        self._memory[: len(header)] = header

    @property
    def limit_bytes(self) -> int:
        """How much it holds at most."""
        return self._size - HEADER_BYTES

    @property
    def touched_bytes(self) -> int:
        """How much memory it takes at most: what was written since pages were last given back."""
        return self._touched

    @property
    def num_held(self) -> int:
        """Blocks that this process has not let go."""
        return self._num_live - len(self._lent) - len(self._kept)

    def allocate(self, size_bytes: int, wait_s: float = 0.0) -> Block | None:
        """A block for `size_bytes` of data, or None if there is no room.

        Args:
            size_bytes: how much data.
            wait_s: how long to wait for others to give blocks back when there is none; never on the I/O thread.
        """
        size = -(-(DATA_AT + size_bytes) // GRAIN_BYTES) * GRAIN_BYTES
        if size > self.limit_bytes or self.fd < 0:
            return None
        with self._lock:
            block = self._find(size)
        return block if block is not None or wait_s <= 0 else self._wait_for(size, wait_s)

    def let_go(self, block: Block) -> None:
        """This process has no more use of a block; once. Takes no lock: the garbage collector may call this."""
        self._lent.append(block)
        # The others may have given it back before: then nobody else would say that there is room.
        if self._num_waiting:
            self.look_again()

    def someone_waits(self) -> bool:
        """Whether a thread of this process waits for room."""
        return self._num_waiting > 0

    def look_again(self) -> None:
        """Blocks may have been given back: let the threads that wait look. Takes no lock either."""
        with contextlib.suppress(IndexError):
            while self._waiting:
                self._waiting.popleft().release()

    def unused(self) -> bool:
        """Whether nobody uses any block."""
        with self._lock:
            self._reclaim(sys.maxsize)
            return self._num_live == 0

    def trim(self) -> None:
        """Give the pages of free blocks back to the system."""
        with self._lock:
            self._trim()

    def close(self) -> None:
        """Give everything up; blocks that others use live on with them, the others end here."""
        with self._lock:
            if self.fd < 0:
                return
            # Idle readers may keep the memory open for a while.
            self._trim()
            self._drop()
        self.look_again()

    def abandon(self) -> None:
        """Close the descriptor in a forked child, where nobody can be waited for; its parent goes on."""
        if self.fd >= 0:
            self._drop()

    # -- under the lock --------------------------------------------------------------------------

    def _find(self, size: int) -> Block | None:
        if self.fd < 0:
            return None
        # Blocks come back in about the order in which they were lent.
        self._reclaim(max_refusals=1)
        where = self._free.first_fit(size)
        if where is None or where + size > self._touched:
            # Looking for warm memory pays up to what touching cold memory would cost.
            worth = min(size // BYTES_WORTH_ONE_QUESTION, MAX_QUESTIONS)
            self._reclaim(sys.maxsize if where is None else worth)
        offset = self._free.take(size)
        if offset is None:
            return None
        self._touched = max(self._touched, offset + size)
        self._num_live += 1
        self.generation += 1
        self._next_token = (self._next_token + 1) % (1 << 8 * TOKEN_BYTES)
        token = self._next_token.to_bytes(TOKEN_BYTES, "little")
        self._memory.data[offset : offset + TOKEN_BYTES] = token
        self._memory.data[offset + MARK_AT] = 0
        return Block(offset, size, token, self._memory[offset + DATA_AT : offset + size])

    def _reclaim(self, max_refusals: int) -> None:
        """Free lent blocks that nobody uses, the oldest first, until so many were found in use.

        Those go to the end of the line; those that are kept for long have a line of their own.
        """
        for line in (self._lent, self._kept):
            for _ in range(len(line)):
                if max_refusals <= 0:
                    return
                block = line.popleft()
                if not self._try_free(block):
                    max_refusals -= 1
                    block.num_refusals += 1
                    (self._lent if block.num_refusals < PATIENCE else self._kept).append(block)

    def _try_free(self, block: Block) -> bool:
        if not kernel.try_lock_alone(self.fd, block.offset, block.size_bytes):
            return False
        # Nobody has it, and who locks it from now on sees that it is no block any more.
        self._memory.data[block.offset : block.offset + TOKEN_BYTES] = _NO_TOKEN
        kernel.unlock(self.fd, block.offset, block.size_bytes)
        self._num_live -= 1
        self._free.give(block.offset, block.size_bytes)
        return True

    def _trim(self) -> None:
        if self.fd < 0:
            return
        self._reclaim(sys.maxsize)
        for begin, end in self._free.ranges():
            if begin < self._touched:
                kernel.free_pages(self._address + begin, min(end, self._touched) - begin)
        last_begin, last_end = (self._free.ranges() or [(self._size, 0)])[-1]
        if last_end == self._size:
            self._touched = min(self._touched, last_begin)

    def _drop(self) -> None:
        fd, self.fd = self.fd, -1
        os.close(fd)
        # Blocks that are still written or sent keep the map.
        self._memory = np.empty(0, np.uint8)

    # -- waiting for room ------------------------------------------------------------------------

    def _wait_for(self, size: int, wait_s: float) -> Block | None:
        deadline = time.monotonic() + wait_s
        self._count_waiting(1)
        try:
            while True:
                turn = threading.Lock()
                turn.acquire()
                self._waiting.append(turn)
                # What comes back from here on unlocks the turn; what came back before is found now.
                with self._lock:
                    block = self._find(size)
                left_s = deadline - time.monotonic()
                if block is not None or left_s <= 0 or self.fd < 0:
                    with contextlib.suppress(ValueError):
                        self._waiting.remove(turn)
                    return block
                turn.acquire(timeout=left_s)
        finally:
            self._count_waiting(-1)

    def _count_waiting(self, change: int) -> None:
        with self._lock:
            self._num_waiting += change
            if self.fd >= 0:
                self._memory[WANTED_AT] = self._num_waiting > 0
