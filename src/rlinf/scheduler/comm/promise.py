"""A future that no thread locks: whoever completes it never waits for whoever asks for it, and the other way round.

The futures of the standard library hold a lock while they are asked. A signal handler may run just then, and if it
waits for something that only the I/O thread can bring while that waits for the lock, neither goes on. Here every step
that counts is one that Python cannot interrupt: who fills the slot first has completed it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CANCELLED = object()


class Promise(Future[T]):
    """A `concurrent.futures.Future` without its locks; `concurrent.futures.wait` cannot be used on it."""

    def __init__(self) -> None:
        # Not the base class's own state: that is what the locks are for.
        self._slot: dict[str, tuple[Any, BaseException | None]] = {}
        self._sleepers: deque[Any] = deque()
        self._callbacks: deque[Callable[[Any], object]] = deque()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'done' if self._slot else 'pending'}>"

    def done(self) -> bool:
        """Whether it has completed, been cancelled or failed."""
        return bool(self._slot)

    def running(self) -> bool:
        """Whether it is not done."""
        return not self._slot

    def cancelled(self) -> bool:
        """Whether it was cancelled before it completed."""
        slot = self._slot.get("outcome")
        return slot is not None and slot[0] is _CANCELLED

    def cancel(self) -> bool:
        """Give it up, unless it is done."""
        if self._fill((_CANCELLED, None)):
            self.on_cancelled()
        return self.cancelled()

    def on_cancelled(self) -> None:
        """Called once, by the thread that cancelled it."""

    def set_result(self, result: Any) -> None:
        """Complete it; nothing happens if it is done."""
        self._fill((result, None))

    def set_exception(self, exception: BaseException | None) -> None:
        """Let it fail; nothing happens if it is done."""
        self._fill((None, exception))

    def set_running_or_notify_cancel(self) -> bool:
        """Whether it was not cancelled."""
        return not self.cancelled()

    def result(self, timeout: float | None = None) -> T:
        """The result.

        Raises:
            TimeoutError: it is not there after `timeout` seconds.
            CancelledError: it was cancelled.
            BaseException: what it failed with.
        """
        result, error = self._outcome(timeout)
        if error is None:
            return result  # type: ignore[no-any-return]
        try:
            raise error
        finally:
            error = None  # no circle through this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What it failed with; raises as `result` does when it was cancelled or is late."""
        return self._outcome(timeout)[1]

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call `fn(self)` when it is done: at once, or on the thread that completes it."""
        self._callbacks.append(fn)
        if self._slot:
            self._run_callbacks()

    def _outcome(self, timeout: float | None) -> tuple[Any, BaseException | None]:
        if not self._slot:
            self._wait(timeout)
        outcome = self._slot.get("outcome")
        if outcome is None:
            raise FutureTimeout
        if outcome[0] is _CANCELLED:
            raise CancelledError
        return outcome

    def _wait(self, timeout: float | None) -> None:
        waiter = threading.Lock()
        waiter.acquire()
        self._sleepers.append(waiter)
        # Looked at after the entry: whoever fills the slot afterwards finds the entry.
        if self._slot:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._slot:
            left_s = -1.0 if deadline is None else min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
            if deadline is not None and left_s <= 0:
                return
            waiter.acquire(timeout=left_s)

    def _fill(self, outcome: tuple[Any, BaseException | None]) -> bool:
        # One call of C: the first one wins, whichever threads come.
        first = self._slot.setdefault("outcome", outcome) is outcome
        # By the loser too: the winner may have been interrupted here.
        while self._sleepers:
            try:
                self._sleepers.popleft().release()
            except IndexError:
                break
        self._run_callbacks()
        return first

    def _run_callbacks(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return
            try:
                callback(self)
            except Exception:
                logger.exception("a callback of a future failed")
