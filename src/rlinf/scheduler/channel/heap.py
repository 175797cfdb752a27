"""Gives the memory of a channel's process back to the system after a peak; on the I/O thread but for the act."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf.scheduler.comm.shm.kernel import trim_heap
from rlinf.scheduler.comm.threads import run_beside

# A peak is more than so many bytes; it is over when a quarter of it is left.
PEAK_BYTES = 64 << 20
SHARE = 4
# What comes meanwhile may use the memory again.
TRIM_AFTER_S = 2.0


class Heap:
    """What the items of a channel took, as far as they lie in the heap of its process.

    The C library keeps what was freed among what is in use, and small items leave much of that.

    Args:
        call_later: calls a function on the I/O thread after so many seconds.
        trim: gives the free parts of the heap back; on a thread of its own, for it takes milliseconds a GiB.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], Any],
        trim: Callable[[], None] = trim_heap,
    ) -> None:
        self._call_later = call_later
        self._trim = trim
        self._peak_bytes = 0
        self._held_bytes = 0
        self._due = False

    def note(self, held_bytes: int) -> None:
        """The channel holds so many bytes now."""
        self._held_bytes = held_bytes
        if held_bytes > self._peak_bytes:
            self._peak_bytes = held_bytes
        elif self._is_over() and not self._due:
            self._due = True
            self._call_later(TRIM_AFTER_S, self._look)

    def _is_over(self) -> bool:
        return self._peak_bytes >= PEAK_BYTES and SHARE * self._held_bytes <= self._peak_bytes

    def _look(self) -> None:
        self._due = False
        if self._is_over():
            self._peak_bytes = self._held_bytes
            run_beside(self._trim)
