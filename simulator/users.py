"""The users' threads of a process: they call, wait, take, and leave their calls at every step.

A user's thread changes nothing that is shared: it hands requests over to the I/O thread, and looks at what it is told.
So it can be interrupted, or drop a handle, whenever it likes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from rlinf_scheduler.queueing.client import Ending
from simulator.host import Host
from simulator.script import NOWAIT, Call
from simulator.world import Violation

UNANSWERED_US = 1_000_000
"""An operation without waiting has ended by then."""
# How much later than its deadline a call may end: an eighth of it, and the turn of a thread.
LATE_SHARE = 8
LATE_US = 1_000


class UserCall:
    """One call, as its user sees it.

    Attributes:
        step: what was asked.
        ticket: the number of its operation; another one when it begins anew.
        outcome: how it ended; empty while it has not.
        items: what was delivered.
        ended_us: when its operation was over, whether its user has looked or not.
        done_step: of a rank: the step that it has done with.
        part_step: of a rank: the step that was delivered.
    """

    __slots__ = (
        "began_us",
        "done_step",
        "ended_us",
        "items",
        "outcome",
        "part_step",
        "paused_us",
        "step",
        "ticket",
    )

    def __init__(self, step: Call) -> None:
        self.step = step
        self.ticket = step.number
        self.outcome = ""
        self.items: list[int] | None = None
        self.began_us = self.ended_us = self.paused_us = 0
        self.done_step = self.part_step = -1

    @property
    def limit_us(self) -> int | None:
        """How long it may take; None for ever."""
        return UNANSWERED_US if self.step.timeout_us == NOWAIT else self.step.timeout_us


class Users(ABC):
    """Users of one thing in one process; a subclass is the I/O thread's side.

    Attributes:
        calls: everything that was asked, by ticket.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.name = host.name
        self.world = host.world
        self.calls: dict[int, UserCall] = {}
        self._draw = host.world.randomness("users", host.name)
        # What one thread does, one after the other; the first is under way.
        self._thread: deque[UserCall] = deque()
        self._handed: deque[tuple[Callable[[UserCall], None], UserCall]] = deque()

    # -- the I/O thread: for subclasses ------------------------------------------------------------

    @abstractmethod
    def on_begin(self, call: UserCall) -> None:
        """A call begins."""

    @abstractmethod
    def on_drop(self, call: UserCall) -> None:
        """A user has left a call."""

    @abstractmethod
    def on_cancel(self, call: UserCall) -> None:
        """A user asks for the end of a call."""

    @abstractmethod
    def on_expire(self, call: UserCall) -> None:
        """A deadline has passed."""

    @abstractmethod
    def on_give_up(self, call: UserCall) -> None:
        """A deadline has passed a while ago, and nothing has come of it."""

    @abstractmethod
    def on_turn(self) -> None:
        """Everything that was handed over has been done."""

    @abstractmethod
    def told_begin(self, call: UserCall) -> None:
        """For the checks: a user begins."""

    @abstractmethod
    def told_end(self, call: UserCall) -> None:
        """For the checks: a user's call has ended."""

    def tell(self, call: UserCall, ending: Ending, detail: Any) -> None:
        """Hand an end to its user, who finds it a little later."""
        if ending is not Ending.DELIVERED:
            if not call.outcome:
                self._end(call, detail if ending is Ending.REFUSED else ending.value)
            return
        call.items, call.ended_us = detail, self.world.now_us
        # Most users wait for it; some look at their handles some time.
        soon = call.step.blocking or self._draw.random() < 0.7
        self.host.later(self._draw.randrange(100 if soon else 3_000_000), self.wake, call)

    @property
    def is_busy(self) -> bool:
        """Something was handed over that the I/O thread has not done."""
        return bool(self._handed)

    # -- users' threads ----------------------------------------------------------------------------

    def call(self, step: Call) -> None:
        """A user calls; one that blocks when its thread is free."""
        call = UserCall(step)
        if not step.blocking:
            self._begin(call)
            return
        self._thread.append(call)
        if len(self._thread) == 1:
            self._begin(call)

    def _begin(self, call: UserCall) -> None:
        step = call.step
        call.began_us, call.paused_us = self.world.now_us, self.host.paused_us
        self.calls[step.number] = call
        self.world.note(self.name, "begins", step.kind, step.number, step.queue, step.timeout_us)
        self.told_begin(call)
        self.start(call)
        if step.drop == "begun":
            self._drop(call)
        elif step.drop in ("later", "cancel"):
            action = self._drop if step.drop == "later" else self._cancel
            self.host.later(int(5_000 * self._draw.random()), action, call)

    def start(self, call: UserCall) -> None:
        """The user's thread asks for it, and waits."""
        self.hand_over(self._start, call)

    def _drop(self, call: UserCall) -> None:
        """The user is interrupted, or drops the handle."""
        if not call.outcome:
            self.hand_over(self.on_drop, call)
            self._end(call, "dropped")

    def _cancel(self, call: UserCall) -> None:
        """The user asks for the end and waits for it."""
        if not call.outcome:
            self.hand_over(self.on_cancel, call)

    def wake(self, call: UserCall) -> None:
        """The user finds items: from here on it alone decides whether they are taken."""
        if call.outcome:
            return
        if call.step.drop == "delivered":
            self._drop(call)
        else:
            # One store; the I/O thread sees it when it looks the next time.
            self._end(call, "taken")

    def _end(self, call: UserCall, outcome: str) -> None:
        call.outcome = outcome
        if call.items is None:
            call.ended_us = self.world.now_us
        items = call.items if outcome == "taken" and call.items is not None else ()
        self.world.note(self.name, "ends", call.step.kind, call.step.number, outcome, *items)
        self.told_end(call)
        if call.step.blocking:
            self._thread.popleft()
            if self._thread:
                self.host.later(self._draw.randrange(50), self._begin, self._thread[0])

    def hand_over(self, action: Callable[[UserCall], None], call: UserCall) -> None:
        """Ask the I/O thread to do something; it does so in order."""
        if not self._handed:
            self.host.later(self._draw.randrange(60), self._turn)
        self._handed.append((action, call))

    # -- the I/O thread ----------------------------------------------------------------------------

    def _turn(self) -> None:
        while self._handed:
            action, call = self._handed.popleft()
            action(call)
        self.on_turn()

    def _start(self, call: UserCall) -> None:
        self.start_clock(call)
        self.on_begin(call)

    def start_clock(self, call: UserCall) -> None:
        """Look at an operation when its deadline passes, and a while after."""
        limit_us = call.limit_us
        if limit_us is not None:
            due_us = max(0, call.began_us + limit_us - self.world.now_us)
            self.host.later(due_us, self._on_time, self.on_expire, call)
            self.host.later(due_us + limit_us // LATE_SHARE, self._on_time, self.on_give_up, call)

    def _on_time(self, action: Callable[[UserCall], None], call: UserCall) -> None:
        # The end of an operation stops its clock.
        if not call.outcome and call.items is None:
            action(call)
            self.on_turn()

    # -- at the end --------------------------------------------------------------------------------

    def check_calls(self) -> None:
        """Check that every call has ended, and by its deadline."""
        for number, call in self.calls.items():
            if not call.outcome:
                message = f"{call.step.kind} {number} of {self.name} never ends"
                raise Violation(message, (number,))
            if call.limit_us is None:
                continue
            may_take_us = call.limit_us + call.limit_us // LATE_SHARE + LATE_US
            took_us = call.ended_us - call.began_us - (self.host.paused_us - call.paused_us)
            if took_us > may_take_us:
                message = f"{call.step.kind} {number} took {took_us} µs of {call.limit_us}"
                raise Violation(message, (number,))
