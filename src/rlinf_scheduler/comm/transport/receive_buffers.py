"""Where what arrives over connections is received: memory that was received into before is warm.

The pages of fresh memory are cleared by the system, one by one, which takes half as long as receiving into them. So
large buffers come back when nobody refers to them any more, and are kept for a while.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np

from rlinf_scheduler.comm import framing
from rlinf_scheduler.comm.framing import Bytes
from rlinf_scheduler.comm.loop import Clock

SCRATCH_BYTES = 256 << 10
# Smaller ones malloc keeps warm by itself.
KEPT_FROM_BYTES = 1 << 20
# There is so much of it in all, in use or kept; what is beyond is freed as soon as it is dropped.
MAX_BYTES = 512 << 20
# What is not in use is kept for so long after the last use.
KEEP_S = 5.0
# A buffer is used for what fills so much of it at least.
LEAST_FILLED = 0.75


class _Lent:
    """What keeps a buffer in use: numpy makes an array of it, which refers to it."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, memory: Bytes, size: int) -> None:
        self.__array_interface__ = {**memory.__array_interface__, "shape": (size,)}


class _LentRef(weakref.ref[_Lent]):
    """Stands for a buffer in use; the interpreter itself puts it among those that came back."""

    __slots__ = ("memory",)
    memory: Bytes


class ReceiveBuffers:
    """Memory to receive into, for all connections of a process; on the I/O thread.

    Args:
        max_bytes: what is in use and will come back, and what is kept, are no more than this together.

    Attributes:
        scratch: for small messages, which are copied out of it.
        lent_bytes: what is in use and will come back.
    """

    def __init__(self, loop: Clock, *, max_bytes: int = MAX_BYTES) -> None:
        self.scratch = framing.allocate(SCRATCH_BYTES)
        self._loop = loop
        self._max_bytes = max_bytes
        self.lent_bytes = 0
        # As long as what stands for a buffer is here, the buffer comes back.
        self._lent: set[_LentRef] = set()
        self._dropped: deque[_LentRef] = deque()
        # The one that came back last is the last.
        self._kept: list[Bytes] = []
        self._used_at = 0.0
        self._looks_later = False

    @property
    def kept_bytes(self) -> int:
        """How much came back and is kept warm."""
        return sum(map(len, self._kept))

    def allocate(self, size: int) -> memoryview:
        """Writable memory of `size` bytes, not zeroed; it comes back when nobody refers to it any more."""
        if size < KEPT_FROM_BYTES:
            return framing.allocate(size)
        self._collect()
        self._used_at = self._loop.now()
        memory = self._take_kept(size)
        if memory is None:
            if self.lent_bytes + size > self._max_bytes:
                return framing.allocate(size)
            memory = np.frombuffer(framing.allocate(size), np.uint8)
        lent = _Lent(memory, size)
        ref = _LentRef(lent, self._dropped.append)
        ref.memory = memory
        self._lent.add(ref)
        self.lent_bytes += len(memory)
        self._forget_beyond(self._max_bytes)
        if not self._looks_later:
            self._looks_later = True
            self._loop.call_later(KEEP_S, self._look)
        return np.asarray(lent).data

    def _take_kept(self, size: int) -> Bytes | None:
        for number in reversed(range(len(self._kept))):
            if LEAST_FILLED * len(self._kept[number]) <= size <= len(self._kept[number]):
                return self._kept.pop(number)
        return None

    def _collect(self) -> None:
        while self._dropped:
            ref = self._dropped.popleft()
            self._lent.discard(ref)
            self.lent_bytes -= len(ref.memory)
            self._kept.append(ref.memory)

    def _forget_beyond(self, max_bytes: int) -> None:
        while self._kept and self.lent_bytes + self.kept_bytes > max_bytes:
            self._kept.pop(0)

    def _look(self) -> None:
        """Give back what was not used for a while; as long as there is anything that will come back."""
        self._collect()
        if self._loop.now() - self._used_at >= KEEP_S:
            self._kept.clear()
        self._looks_later = bool(self._kept or self._lent)
        if self._looks_later:
            self._loop.call_later(KEEP_S, self._look)
