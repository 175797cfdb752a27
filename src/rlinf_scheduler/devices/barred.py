"""Processes whose buckets could not be opened here lately: for a while nobody tries again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rlinf_scheduler.comm.loop import Timer

# For how long a process is barred, in seconds, since it was the last time.
BARRED_S = 60.0


class Barred:
    """Who is barred; on the I/O thread.

    Args:
        call_later: calls a function after so many seconds.
    """

    def __init__(self, call_later: Callable[[float, Callable[[], Any]], Timer]) -> None:
        self._call_later = call_later
        self._timers: dict[str, Timer] = {}

    def __contains__(self, process_id: str) -> bool:
        return process_id in self._timers

    def __len__(self) -> int:
        return len(self._timers)

    def add(self, process_id: str) -> None:
        """Bar a process, anew if it is barred already."""
        self.discard(process_id)
        self._timers[process_id] = self._call_later(BARRED_S, partial(self.discard, process_id))

    def discard(self, process_id: str) -> None:
        """Let a process in again."""
        timer = self._timers.pop(process_id, None)
        if timer is not None:
            timer.cancel()
