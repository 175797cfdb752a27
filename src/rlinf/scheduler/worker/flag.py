"""Something that happens once and is waited for, in a way that an interruption anywhere leaves whole."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress


class Flag:
    """Set once, by the one thread that owns it; waited for by any.

    No lock is shared: who waits adds a private lock to the waiters in one step, and the owner releases it. So the
    owner never waits for a thread that was interrupted, and a wait that was interrupted can be made again.
    """

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: deque[Callable[[], object]] = deque()

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """Say that it has happened; by the owner."""
        self._is_set = True
        while self._waiters:
            with suppress(IndexError):  # a waiter gave up in between
                self._waiters.popleft()()

    def when_set(self, callback: Callable[[], object]) -> None:
        """Call `callback` once it is set: on the owner's thread, or here and now; it must neither block nor raise."""
        self._waiters.append(callback)
        if self._is_set and self.forget(callback):
            callback()

    def forget(self, callback: Callable[[], object]) -> bool:
        """Do not call `callback`; False if that was done already."""
        try:
            self._waiters.remove(callback)
        except ValueError:
            return False
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set, for at most so many seconds; whether it is."""
        if self._is_set:
            return True
        mine = threading.Lock()
        mine.acquire()
        wake = mine.release
        self._waiters.append(wake)
        try:
            if not self._is_set:
                mine.acquire(
                    timeout=-1 if timeout_s is None else min(max(0.0, timeout_s), threading.TIMEOUT_MAX)
                )
        finally:
            self.forget(wake)
        return self._is_set
