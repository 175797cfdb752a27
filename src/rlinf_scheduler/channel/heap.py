"""Gives the memory of a channel's process back to the system after a peak; on the I/O thread but for the act."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf_scheduler.comm.shm.kernel import trim_heap
from rlinf_scheduler.comm.threads import run_beside_in_time

# A peak is more than so many bytes; it is over when a quarter of it is left. What is left of one is looked after until
# it is small.
PEAK_BYTES = 64 << 20
SMALL_BYTES = PEAK_BYTES // 16
SHARE = 4
# What comes meanwhile may use the memory again. Items that are no longer held may be on their way to a slow client, and
# lie in the heap until they are there: it is trimmed again, later and later.
TRIM_AFTER_S = (2.0, 8.0, 32.0)


class Heap:
    """The memory that a channel's items take in the heap of its process.

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
        self._least_bytes = PEAK_BYTES
        self._peak_bytes = 0
        self._held_bytes = 0
        self._due = False

    def note(self, held_bytes: int) -> None:
        """The channel holds so many bytes now."""
        self._held_bytes = held_bytes
        if held_bytes > self._peak_bytes:
            self._peak_bytes = held_bytes
        elif self._is_over() and not self._due:
            self._come_again(0)

    def _is_over(self) -> bool:
        return self._peak_bytes >= self._least_bytes and SHARE * self._held_bytes <= self._peak_bytes

    def _come_again(self, times: int) -> None:
        self._due = True
        self._call_later(TRIM_AFTER_S[times], lambda: self._look(times + 1))

    def _look(self, times: int) -> None:
        self._due = False
        if not self._is_over():
            return
        run_beside_in_time(self._call_later, self._trim)
        if times < len(TRIM_AFTER_S):
            self._come_again(times)
            return
        self._peak_bytes = self._held_bytes
        self._least_bytes = PEAK_BYTES if self._held_bytes < SMALL_BYTES else SMALL_BYTES
