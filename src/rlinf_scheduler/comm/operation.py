"""One operation of a process with others, from its call to its end: where a user's thread and the I/O thread meet.

The user's thread makes it, hands it over, and waits for its promise. It is begun, sent, and done when that is complete.
What the user's thread says afterwards are attribute stores: `taken` (it has what the operation has brought) or
`dropped` (it was interrupted); and who holds a handle says by dropping it that nobody wants it any more. The I/O thread
looks at them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.comm.promise import NOWHERE, ConsumedFlag, Promise, PromiseRef
from rlinf_scheduler.comm.waits import Cause, Wait

# Confirmations wait this long for an operation to travel with; until then a dead consumer's item comes back.
CONFIRM_DELAY_S = 0.002
# Items that were delivered and are not taken are looked after so often at least.
SWEEP_S = 1.0


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

    def let_go(self) -> None:
        """Refer no longer to its promise, which is kept: the two would be left to the garbage collector."""
        self._promise = None

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
    """

    __slots__ = ("_gone", "_operation")

    def __init__(self, operation: Operation, *, is_watched: bool = False) -> None:
        Promise.__init__(self, None, operation)
        self._operation = operation
        self._gone = _Gone(operation) if is_watched else None

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


class DeliveryOwner(Protocol):
    """What knows what is to happen with items that are here."""

    def look_at(self, operation: Any) -> None:
        """Confirm what an operation brought if its caller has it, and give it back if nobody wants it."""

    def catch_up(self) -> None:
        """Do what was handed over, and give back what was dropped."""

    def note_arrived(self, tickets: list[int]) -> None:
        """Hear whose items have been here for a moment, and are not taken."""

    def flush(self) -> None:
        """Send everything that has gathered."""


class Deliveries:
    """The operations whose items are here, until it is known whether somebody has taken them. On the I/O thread only.

    A user's thread takes items by a mark alone, and says nothing: so somebody has to look. What is about to be taken is
    looked at soon, so that it is confirmed; the rest now and then, for a dropped handle says so itself.

    Args:
        owner: calls `forget` when it looks at an operation whose items were taken, or go back.
        call_later: calls a function after so many seconds.

    Attributes:
        looks_soon: it will look by itself what became of delivered items.
    """

    def __init__(
        self, owner: DeliveryOwner, call_later: Callable[[float, Callable[[], None]], Timer]
    ) -> None:
        self.looks_soon = False
        self._owner = owner
        self._call_later = call_later
        self._here: dict[int, Operation] = {}
        # About to be taken: by callers that block, and by those who ask a handle.
        self._soon: dict[int, Operation] = {}
        self._arrivals: list[Operation] = []
        self._look_s = CONFIRM_DELAY_S
        self._timer: Timer | None = None
        self._sweep_due = False

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._here

    def find(self, ticket: int) -> Any:
        """Return an operation whose items are here; None if they are not."""
        return self._here.get(ticket)

    def add(self, operation: Operation) -> None:
        """The items of an operation have come."""
        self._here[operation.ticket] = operation

    def tell(self, operation: Operation) -> None:
        """Let the server know that the items of an operation have come, unless they are taken until then."""
        self._arrivals.append(operation)
        if not self.looks_soon:
            self.wake()

    def expect(self, operation: Operation) -> None:
        """The items of an operation are taken as soon as they come."""
        self._soon[operation.ticket] = operation

    def touch(self, operation: Operation) -> None:
        """Somebody is about to take the items of a handle."""
        if operation.ticket in self._here:
            self._soon[operation.ticket] = operation
            if not self.looks_soon:
                self.wake()

    def wake(self, _nothing: None = None) -> None:
        """Look soon whether items were taken."""
        self._look_s = CONFIRM_DELAY_S
        self.look_later()

    def look_later(self) -> None:
        """Look when it is due."""
        if self._soon or self._arrivals:
            # One that is due late gives way to one that is due soon.
            if not self.looks_soon:
                if self._timer is not None:
                    self._timer.cancel()
                self.looks_soon = self._look_s == CONFIRM_DELAY_S
                self._timer = self._call_later(self._look_s, self._on_soon)
        elif self._here and not self._sweep_due:
            self._sweep_due = True
            self._call_later(SWEEP_S, self._on_sweep)

    def look(self) -> None:
        """See what became of what was about to be taken."""
        for operation in list(self._soon.values()):
            self._owner.look_at(operation)

    def look_at_all(self) -> None:
        """See what became of all that is here."""
        self.look()
        for operation in list(self._here.values()):
            self._owner.look_at(operation)

    def forget(self, ticket: int) -> Any:
        """It is known what became of an operation; return that, if its items are here."""
        if self._here or self._soon:
            self._soon.pop(ticket, None)
            return self._here.pop(ticket, None)
        return None

    def clear(self) -> None:
        """Forget everything: there is nobody to tell."""
        self._here.clear()
        self._soon.clear()

    def _on_soon(self) -> None:
        self.looks_soon, self._timer = False, None
        self._look_s = min(2 * self._look_s, SWEEP_S)
        self._owner.catch_up()
        self.look()
        arrivals, self._arrivals = self._arrivals, []
        self._owner.note_arrived([each.ticket for each in arrivals if each.ticket in self._here])
        self.look_later()
        self._owner.flush()

    def _on_sweep(self) -> None:
        """A dropped handle says so itself, unless an interruption came in between."""
        self._sweep_due = False
        self.look_at_all()
        self.look_later()
        self._owner.flush()
