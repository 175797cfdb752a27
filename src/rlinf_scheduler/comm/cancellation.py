"""Lets whoever waits in this library be told to stop: a scope around some work, and the waits that happen in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar


class Scope:
    """Work that can be cancelled: the next wait of this library in it, or the one that goes on, raises.

    As with a task of asyncio, a `cancel` raises `asyncio.CancelledError` once, so that what cleans up then may wait.
    It is cancelled by any one thread that no signal handler interrupts, and used by the threads and tasks that work
    under it.

    Attributes:
        cancelled: it was cancelled, at any time.
    """

    __slots__ = ("_due", "_wakers", "cancelled")

    def __init__(self) -> None:
        self.cancelled = False
        # One for each wait that is still to raise.
        self._due: list[None] = []
        self._wakers: list[Callable[[], None]] = []

    def cancel(self) -> None:
        """End the waits that go on now, or the next one."""
        self.cancelled = True
        # Before it is seen who waits: who begins to wait after that finds it.
        self._due.append(None)
        wakers = tuple(self._wakers)
        self._due.extend([None] * (len(wakers) - 1))
        for waker in wakers:
            waker()

    def begin_wait(self, waker: Callable[[], None]) -> None:
        """Have `waker` called, by the thread that cancels, if that happens before `end_wait`.

        Raises:
            asyncio.CancelledError: it was cancelled before.
        """
        self._wakers.append(waker)
        self.check()

    def end_wait(self, waker: Callable[[], None]) -> None:
        """Undo `begin_wait`."""
        with suppress(ValueError):  # the wait was refused, or an interruption came before it began
            self._wakers.remove(waker)

    def check(self) -> None:
        """Raise if a wait is to end.

        Raises:
            asyncio.CancelledError: it was cancelled.
        """
        try:
            self._due.pop()
        except IndexError:
            return
        message = "the call was cancelled by its caller"
        raise asyncio.CancelledError(message)


_current: ContextVar[Scope | None] = ContextVar("rlinf_scope", default=None)
current_scope = _current.get


class working_in:  # noqa: N801 - used as a function is
    """Let the waits of this thread or task, and of the tasks that it makes, belong to `scope`; None: to none."""

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: Scope | None) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._token = _current.set(self._scope)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
