"""One send or recv under way: its future, its deadline, and the look-up of its peer."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from rlinf.scheduler.comm.directory import DirectoryClient, Entry
from rlinf.scheduler.comm.loop import Timer
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.errors import CommTimeout, PeerDied


class Transfer:
    """What a waiting send and a waiting recv have in common.

    Args:
        operation: "send" or "recv", for messages.
        peer: the other side's name.
        timeout_s: how long it may take.
    """

    def __init__(self, operation: str, peer: str, timeout_s: float) -> None:
        self.operation = operation
        self.peer = peer
        self.timeout_s = timeout_s
        self.started = time.monotonic()
        self._future: Callable[[], Future[Any] | None] = _nobody
        self._timer: Timer | None = None
        self._lookup: Future[Entry] | None = None
        self._expired = False

    def new_future(self) -> Future[Any]:
        """The future of its end, which it keeps."""
        future: Future[Any] = Future()
        self._future = lambda: future
        return future

    def new_weak_future(self, on_dropped: Callable[[], None]) -> Future[Any]:
        """The future of its end, which its owner keeps; `on_dropped` is called once nobody has it any more.

        That call may come anywhere the garbage collector runs: it must take no lock.
        """
        future: Future[Any] = Future()
        self._future = weakref.ref(future, lambda _: on_dropped())
        return future

    def arm(self, messenger: Messenger, on_deadline: Callable[[], None]) -> None:
        """Call `on_deadline` on the I/O thread at the deadline, unless the transfer ends before."""

        def expire() -> None:
            self._expired = True
            # A look-up has the same deadline, and knows better what is missing.
            if self._lookup is None or self._lookup.done():
                on_deadline()

        self._timer = messenger.call_later(max(0.0, self.timeout_s), expire)
        # It may have ended just before; a timer left behind would keep its item in memory.
        if self.over():
            self.release()

    def look_up(
        self,
        directory: DirectoryClient,
        on_found: Callable[[Entry], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        """Find the peer; one of the callbacks runs, on the I/O thread, unless the transfer ends before."""
        left_s = max(0.0, self.timeout_s - self.waited_s())
        self._lookup = directory.lookup_async(self.peer, left_s)

        def found(lookup: Future[Entry]) -> None:
            if lookup.cancelled():
                return
            error = lookup.exception()
            if error is not None:
                on_failed(error)
            elif self._expired:
                on_failed(self.timeout("its registration"))
            else:
                on_found(lookup.result())

        self._lookup.add_done_callback(found)
        if self.over():
            self.release()

    def over(self) -> bool:
        """Whether it has ended, or nobody can learn of its end any more."""
        future = self._future()
        return future is None or future.done()

    @property
    def expired(self) -> bool:
        """Whether its deadline has passed."""
        return self._expired

    def cancelled(self) -> bool:
        """Whether it was given up."""
        future = self._future()
        return future is None or future.cancelled()

    def waited_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.started

    def timeout(self, waiting_for: str) -> CommTimeout:
        """The error of its deadline."""
        return CommTimeout(self.operation, self.peer, self.waited_s(), waiting_for)

    def claim(self) -> bool:
        """Take the right to end it; False if it was given up (or claimed) meanwhile."""
        future = self._future()
        try:
            return future is not None and future.set_running_or_notify_cancel()
        except (InvalidStateError, RuntimeError):
            return False

    def complete(self, value: Any) -> None:
        """End it well; it must have been claimed."""
        future = self._future()
        if future is not None:
            with contextlib.suppress(InvalidStateError):
                future.set_result(value)
        self.release()

    def fail(self, error: BaseException) -> None:
        """End it with an error; it must have been claimed."""
        future = self._future()
        if future is not None:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(error)
        self.release()

    def release(self) -> None:
        """Give up its timer and its look-up."""
        if self._timer is not None:
            self._timer.cancel()
        if self._lookup is not None and not self._lookup.done():
            self._lookup.cancel()


def _nobody() -> None:
    return None


def renamed(error: BaseException, peer: str) -> BaseException:
    """The error, with a dead peer called by the name that the user knows."""
    return PeerDied(peer, error.reason) if isinstance(error, PeerDied) else error
