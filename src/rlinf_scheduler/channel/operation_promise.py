"""The end of an operation that goes on while its caller holds a handle of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from rlinf_scheduler.channel.operation import Operation
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.waits import Cause, Wait
from rlinf_scheduler.tape.tape import Note


class PromiseOwner(Protocol):
    """The executor of operations."""

    def awaits(self, operation: Operation) -> Wait:
        """Return what the caller of an operation waits for; from any thread."""

    def cause(self, operation: Operation) -> Cause:
        """Return the cause under which that wait is counted."""

    def withdraw(self, operation: Operation, promise: OperationPromise) -> None:
        """Give one up."""

    def explain(self, error: BaseException, limit_s: float | None, waited_s: float) -> None:
        """Add to what ended a wait for it why it did not end by itself, where somebody knows (see `Messenger`)."""


class _Unclaimed:
    """Wakes the I/O thread when a promise is gone, unless somebody has what came; see `comm.promise.Wake`."""

    __slots__ = ("_consumed", "_wake")

    def __init__(self, consumed: Operation, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._consumed = consumed

    def __del__(self) -> None:
        consumed = getattr(self, "_consumed", None)  # none if an interruption came while it was made
        if consumed is not None and not consumed.is_taken:  # else the I/O thread is about to look
            self._wake()


class OperationPromise(Promise[Any]):
    """The end of an operation that somebody holds a handle of; `cancel` withdraws it.

    Args:
        owner: knows what is waited for, and gives it up.
        wake: wakes the I/O thread once nobody has the promise any more.

    Attributes:
        note: of what it brings, where that is noted when it is taken.
    """

    __slots__ = ("_operation", "_owner", "_unclaimed", "note")

    def __init__(
        self,
        owner: PromiseOwner,
        operation: Operation,
        wake: Callable[[], None] | None = None,
    ) -> None:
        Promise.__init__(self, None, operation)
        self._operation = operation
        self._owner = owner
        self._unclaimed = None if wake is None else _Unclaimed(operation, wake)
        self.note: Note | None = None

    def awaits(self) -> Wait:
        """Return what a wait for it is for, None where that is not known here. From any thread."""
        return self._owner.awaits(self._operation)

    def cause(self) -> Cause:
        """Return what a wait for it is counted as: of many small operations, words for each would cost most."""
        return self._owner.cause(self._operation)

    def explain(self, error: BaseException, limit_s: float | None, waited_s: float) -> None:
        """Add to what ended a wait for it why it did not end by itself, where somebody knows (see `Messenger`)."""
        self._owner.explain(error, limit_s, waited_s)

    def cancel(self) -> bool:
        """Give a get up, unless it is over; whether a put still can be is its server's decision."""
        if not self.done():
            self._owner.withdraw(self._operation, self)
        return self.cancelled()
