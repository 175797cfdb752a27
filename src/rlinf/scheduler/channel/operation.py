"""One operation of a client that is under way, and how its end reaches whoever waits."""

from __future__ import annotations

import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from rlinf.scheduler.comm.loop import Timer


class Operation:
    """What is known of an operation while it is under way.

    Attributes:
        kind: "put", "get" or "get_batch".
        queue_name: its queue.
        timeout_s: its deadline, None without.
        batch_weight: what a batch has to reach.
        ticket: its number, given when it starts.
    """

    __slots__ = ("batch_weight", "kind", "queue_name", "started", "ticket", "timeout_s")

    def __init__(
        self, kind: str, queue_name: str, timeout_s: float | None, batch_weight: float | None = None
    ) -> None:
        self.kind = kind
        self.queue_name = queue_name
        self.timeout_s = timeout_s
        self.batch_weight = batch_weight
        self.ticket = 0
        self.started = time.monotonic()

    @property
    def waited_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.started


class PendingOperation(Operation, ABC):
    """One whose end comes on the I/O thread."""

    __slots__ = ()

    @abstractmethod
    def succeed(self, value: Any) -> bool:
        """End well; False if nobody can take the value any more. On the I/O thread."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """End badly. On the I/O thread, mostly."""


class BlockingOperation(PendingOperation):
    """An operation whose caller waits in its own thread."""

    __slots__ = ("_ended", "error", "value")

    def __init__(
        self, kind: str, queue_name: str, timeout_s: float | None, batch_weight: float | None = None
    ) -> None:
        super().__init__(kind, queue_name, timeout_s, batch_weight)
        self.value: Any = None
        self.error: BaseException | None = None
        # A bare lock: making one costs a tenth of an Event.
        self._ended = threading.Lock()
        self._ended.acquire()

    def succeed(self, value: Any) -> bool:
        """See `PendingOperation.succeed`."""
        self.value = value
        self._ended.release()
        return True

    def fail(self, error: BaseException) -> None:
        """See `PendingOperation.fail`."""
        self.error = error
        self._ended.release()

    def wait(self, limit_s: float | None) -> bool:
        """Wait for the end; False if it did not come within `limit_s` seconds."""
        return self._ended.acquire(timeout=-1 if limit_s is None else min(limit_s, threading.TIMEOUT_MAX))


class HandleOperation(PendingOperation):
    """An operation that somebody holds a handle of.

    A get ends with its handle: once nobody can take its item any more, `on_dropped` is called. A put goes on.
    """

    __slots__ = ("_future", "timer")

    def __init__(
        self, kind: str, queue_name: str, timeout_s: float | None, batch_weight: float | None = None
    ) -> None:
        super().__init__(kind, queue_name, timeout_s, batch_weight)
        self.timer: Timer | None = None
        self._future: Callable[[], OperationFuture | None] = _nobody

    def attach(
        self, future: OperationFuture, on_dropped: Callable[[weakref.ref[OperationFuture]], None]
    ) -> None:
        """Give the operation the future that its handle waits on."""
        if self.kind == "put":
            self._future = lambda: future
        else:
            self._future = weakref.ref(future, on_dropped)

    def succeed(self, value: Any) -> bool:
        """See `PendingOperation.succeed`."""
        future = self._end()
        if future is None:
            return False
        try:
            future.set_result(value)
        except InvalidStateError:
            return False
        return True

    def fail(self, error: BaseException) -> None:
        """See `PendingOperation.fail`."""
        future = self._end()
        if future is not None and not future.done():
            future.set_exception(error)

    def _end(self) -> OperationFuture | None:
        if self.timer is not None:
            self.timer.cancel()
        future = self._future()
        if self.kind == "put":
            # Its future refers to it; without this the pair would wait for the cycle collector.
            self._future = _nobody
        return future


def _nobody() -> None:
    return None


class OperationFuture(Future[Any]):
    """The end of an operation, to come; `cancel` withdraws the operation."""

    def __init__(self, withdraw: Callable[[], bool]) -> None:
        super().__init__()
        self._withdraw = withdraw

    def cancel(self) -> bool:
        """Give a get up, unless it is over; whether a put still can be is its server's decision."""
        if self.done() or not self._withdraw():
            return self.cancelled()
        super().cancel()
        self.set_running_or_notify_cancel()
        return True
