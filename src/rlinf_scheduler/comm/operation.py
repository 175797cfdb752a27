"""One operation of a process with others, from its call to its end: where a user's thread and the I/O thread meet.

The user's thread makes it, hands it over, and waits for its promise. It is begun, sent, and done when that is complete.
What the user's thread says afterwards are attribute stores: `taken` (it has what the operation has brought) or
`dropped` (it was interrupted); and who holds a handle says by dropping it that nobody wants it any more. The I/O thread
looks at them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.comm.promise import NOWHERE, ConsumedFlag, Promise, PromiseRef
from rlinf_scheduler.comm.waits import Cause, Wait


class Operation(ConsumedFlag):
    """An operation under way, and the consumed flag of what it brings.

    Attributes:
        ticket: what tells it from others of its process.
        timeout_s: its deadline, in seconds after `started`; None without.
        now: the clock that this goes by, of the messenger that carries it out.
        dropped: nobody waits for it any more.
        timer: of its deadline.
    """

    __slots__ = ("_promise", "_promise_ref", "dropped", "now", "started", "ticket", "timeout_s", "timer")

    def __init__(self, ticket: int, timeout_s: float | None, now: Callable[[], float]) -> None:
        self.ticket = ticket
        self.timeout_s = timeout_s
        self.now = now
        self.started = now()
        self.dropped = False
        self.timer: Timer | None = None
        self._promise: Promise[Any] | None = None
        self._promise_ref: PromiseRef | None = None
        self.taken = False
        self.mark: Any = NOWHERE
        self.whole: ConsumedFlag | None = None

    @property
    def waited_s(self) -> float:
        """Seconds since it began."""
        return self.now() - self.started

    def promise_to(self, promise: Promise[Any], dropped: deque[Any] | None = None) -> None:
        """Let `promise` be its end; with `dropped`, nobody but its handle keeps it, and its end is noted there."""
        if dropped is None:
            self._promise = promise
        else:
            self._promise_ref = ref = PromiseRef(promise, dropped.append)
            ref.ticket = self.ticket

    def find_promise(self) -> Promise[Any] | None:
        """Its end; None if nobody waits for that any more."""
        return self._promise if self._promise_ref is None else self._promise_ref()

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for its end, or holds its handle."""
        return not self.dropped and self.find_promise() is not None

    def forget(self) -> None:
        """Refer to what it brought no longer: it was taken."""
        promise = self._promise if self._promise_ref is None else self._promise_ref()
        if promise is not None:
            promise.forget()

    def stop_clock(self) -> None:
        """Let its deadline pass."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    # -- what its promise asks for, in any thread --------------------------------------------------

    def awaits(self) -> Wait:
        """Return what a wait for its end is for."""
        raise NotImplementedError

    def cause(self) -> Cause:
        """Return the cause under which such a wait is counted."""
        raise NotImplementedError

    def withdraw(self, promise: OperationPromise) -> None:
        """Give it up; wait for a moment until that has ended it."""
        raise NotImplementedError

    def gone(self) -> None:
        """Hear that nobody has its promise any more; anywhere the garbage collector runs.

        So it may store, append to a deque and wake the I/O thread, and nothing else. An interruption may prevent the
        call: what it wakes for happens anyhow, later.
        """

    def explain(self, error: BaseException, limit_s: float | None, waited_s: float) -> None:
        """Add to what ended a wait for it why it did not end by itself, where somebody knows (see `Messenger`)."""


class _Gone:
    """Tells an operation that its promise is gone."""

    __slots__ = ("_operation",)

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    def __del__(self) -> None:
        operation = getattr(self, "_operation", None)  # none if an interruption came while it was made
        if operation is not None:
            operation.gone()


class OperationPromise(Promise[Any]):
    """The end of an operation that somebody holds a handle of; `cancel` withdraws it.

    Args:
        is_watched: whether the operation is told that nobody has the promise any more.

    Attributes:
        note: of what it brings, where that is noted when it is taken.
    """

    __slots__ = ("_gone", "_operation", "note")

    def __init__(self, operation: Operation, *, is_watched: bool = False) -> None:
        Promise.__init__(self, None, operation)
        self._operation = operation
        self._gone = _Gone(operation) if is_watched else None
        self.note: Any = None

    def awaits(self) -> Wait:
        """Return what a wait for it is for, None where that is not known here. From any thread."""
        return self._operation.awaits()

    def cause(self) -> Cause:
        """Return what a wait for it is counted as: of many small operations, words for each would cost most."""
        return self._operation.cause()

    def explain(self, error: BaseException, limit_s: float | None, waited_s: float) -> None:
        """Add to what ended a wait for it why it did not end by itself, where somebody knows (see `Messenger`)."""
        self._operation.explain(error, limit_s, waited_s)

    def cancel(self) -> bool:
        """Give it up, unless it is over; of what another process may have by then, that decides."""
        if not self.done():
            self._operation.withdraw(self)
        return self.cancelled()
