"""Watches the owners of open arenas to whom nobody is connected: their memory must not outlive them for nothing."""

from __future__ import annotations

import os
from collections.abc import Callable

from rlinf_scheduler.comm.shm.io_thread import Carrier


class OwnerWatch:
    """Descriptors of processes (pidfd_open(2)), watched by the I/O thread, to which it belongs."""

    def __init__(self, messenger: Carrier) -> None:
        self._messenger = messenger
        self._watches: set[int] = set()

    def begin(self, pid: int, on_ended: Callable[[], None]) -> Callable[[], None] | None:
        """Call `on_ended` when a process ends; what ends the watch, None if it is gone or cannot be watched."""
        try:
            watch = os.pidfd_open(pid)
        except OSError:
            return None
        self._watches.add(watch)

        def ended() -> None:
            self._end(watch)
            on_ended()

        self._messenger.watch(watch, ended)
        return lambda: self._end(watch)

    def _end(self, watch: int) -> None:
        if watch in self._watches:
            self._watches.remove(watch)
            self._messenger.unwatch(watch)
            os.close(watch)

    def close(self) -> None:
        """End all."""
        for watch in list(self._watches):
            self._end(watch)

    def abandon(self) -> None:
        """Close the descriptors in a forked child."""
        watches, self._watches = self._watches, set()
        for watch in watches:
            os.close(watch)
