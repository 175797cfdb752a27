"""The users' threads of a process that runs the product: what they do with the handles of mailboxes and weights.

A user has a handle as soon as it has called. It looks at it when the operation is over, soon or late; in between it may
be interrupted, drop it, or give the operation up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import Any

from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.transfer import GRACE_FRACTION, GRACE_S
from simulator.host import Host
from simulator.script import Call
from simulator.users import UserCall
from simulator.world import Violation

# So much later than that may an end come, on an I/O thread with much to do.
LATE_US = 10_000


class HandleCall(UserCall):
    """One call, as its user sees it.

    Attributes:
        handle: of it, as long as the user has that.
        cancelled_us: when its user asked for its end; -1 if it has not.
    """

    __slots__ = ("cancelled_us", "handle")

    def __init__(self, step: Call) -> None:
        super().__init__(step)
        self.handle: AsyncHandle[Any] | None = None
        self.cancelled_us = -1

    @property
    def limit_us(self) -> int | None:
        """How long it may take, with the time for an answer; None for ever."""
        timeout_us = self.step.timeout_us
        return (
            None if timeout_us is None else timeout_us + int(max(GRACE_S * 1e6, GRACE_FRACTION * timeout_us))
        )


class HandleUsers(ABC):
    """Users of one thing in one process.

    Attributes:
        calls: everything that was asked, by number.
        leaves_within_us: how late a user leaves a call that it leaves later.
    """

    leaves_within_us = 5_000

    def __init__(self, host: Host, purpose: str) -> None:
        self.host = host
        self.name = host.name
        self.world = host.world
        self.calls: dict[int, HandleCall] = {}
        self._draw = host.world.randomness(purpose, host.name)
        # What one thread does, one after the other; the first is under way.
        self._thread: deque[HandleCall] = deque()

    @abstractmethod
    def start(self, call: HandleCall) -> AsyncHandle[Any]:
        """Return the handle of what a user asks for."""

    @abstractmethod
    def submit_cancel(self, call: HandleCall, cancel: Any) -> None:
        """Give an operation up on the I/O thread."""

    @abstractmethod
    def outcome(self, call: HandleCall, error: BaseException) -> str:
        """Return how a call ended that failed."""

    @abstractmethod
    def took(self, call: HandleCall, value: Any) -> list[int]:
        """Return what is to be noted of what a user has taken."""

    @abstractmethod
    def ended(self, call: HandleCall) -> None:
        """For the checks: a user's call has ended."""

    # -- users' threads ------------------------------------------------------------------------------

    def call(self, step: Call) -> None:
        """A user calls; one that blocks when its thread is free."""
        call = HandleCall(step)
        if step.blocking:
            self._thread.append(call)
        if not step.blocking or len(self._thread) == 1:
            self._begin(call)

    def _begin(self, call: HandleCall) -> None:
        step = call.step
        call.began_us, call.paused_us = self.world.now_us, self.host.paused_us
        self.calls[step.number] = call
        self.world.note(self.name, "begins", step.kind, step.number, step.queue, step.timeout_us)
        call.handle = self.start(call)
        call.handle.settled.add_done_callback(partial(self._on_done, call))
        if step.drop == "begun":
            self._drop(call)
        elif step.drop in ("later", "cancel"):
            action = self._drop if step.drop == "later" else self._cancel
            self.host.later(int(self.leaves_within_us * self._draw.random()), action, call)

    def _drop(self, call: HandleCall) -> None:
        """The user is interrupted, or drops the handle."""
        if not call.outcome:
            call.handle = None
            self._end(call, "dropped", [])

    def _cancel(self, call: HandleCall) -> None:
        """The user asks for the end and waits for it."""
        if not call.outcome and call.handle is not None:
            call.cancelled_us = self.world.now_us
            self.submit_cancel(call, partial(self._cancel_now, call))

    def _cancel_now(self, call: HandleCall) -> None:
        if not call.outcome and call.handle is not None:
            call.handle.cancel()

    def _on_done(self, call: HandleCall, promise: Promise[Any]) -> None:
        """An operation is over; its user finds that a little later."""
        if call.outcome:
            return
        call.ended_us = self.world.now_us
        if promise.cancelled():
            is_late = self.world.now_us - call.cancelled_us >= GRACE_S * 1e6
            self._fail(call, "unanswered" if is_late else "cancelled")
        elif (error := promise.exception(0)) is not None:
            self._fail(call, self.outcome(call, error))
        else:
            # Most users wait for it; some look at their handles some time.
            soon = call.step.blocking or self._draw.random() < 0.7
            self.host.later(self._draw.randrange(100 if soon else 3_000_000), self._wake, call)

    def _fail(self, call: HandleCall, outcome: str) -> None:
        call.handle = None
        self._end(call, outcome, [])

    def _wake(self, call: HandleCall) -> None:
        """The user finds that it is over: from here on it alone decides whether what came is taken."""
        handle = call.handle
        if call.outcome or handle is None:
            return
        if call.step.drop == "delivered":
            del handle
            self._drop(call)
            return
        try:
            value = handle.wait()
        except Exception as error:  # noqa: BLE001 - the user's, whose call ends so
            self._fail(call, self.outcome(call, error))
            return
        self._end(call, "taken", self.took(call, value))
        # Who keeps a handle keeps what it has brought.
        self.host.later(self._draw.choice((0, 0, 3_000_000)), self._forget, call)

    def _forget(self, call: HandleCall) -> None:
        call.handle = None

    def _end(self, call: HandleCall, outcome: str, items: list[int]) -> None:
        call.outcome, call.items = outcome, items
        if not call.ended_us:
            call.ended_us = self.world.now_us
        self.world.note(self.name, "ends", call.step.kind, call.step.number, outcome, *items)
        self.ended(call)
        if call.step.blocking:
            self._thread.popleft()
            if self._thread:
                self.host.later(self._draw.randrange(50), self._begin, self._thread[0])

    # -- at the end ----------------------------------------------------------------------------------

    def check_calls(self, *, for_ever: bool = False) -> None:
        """Check that every call has ended, and by its deadline; one without may wait `for_ever`."""
        for number, call in self.calls.items():
            if not call.outcome and for_ever and call.limit_us is None:
                continue
            if not call.outcome:
                raise Violation(f"{call.step.kind} {number} of {self.name} never ends", (number,))
            if call.limit_us is None:
                continue
            took_us = call.ended_us - call.began_us - (self.host.paused_us - call.paused_us)
            if took_us > call.limit_us + LATE_US:
                raise Violation(f"{call.step.kind} {number} took {took_us} µs of {call.limit_us}", (number,))
