"""Threads of users' programs: they run the product's blocking calls as they are, and are interrupted anywhere.

A thread is a greenlet. Where it would block it gives the processor back to the world, and an event resumes it. Where it
hands something over, waits, or finds an end, a seed may interrupt it, as Ctrl-C does.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any
from weakref import WeakSet

from greenlet import GreenletExit, greenlet

from rlinf_scheduler.comm.cancellation import current_scope
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.session import Session
from rlinf_scheduler.session import session as current
from simulator.world import Process

# A thread gets its turn so soon; now and then long after what goes another way.
SOON_US = 60
SLOW_US = 5_000
SLOW_SHARE = 0.05
# A destructor that hands something over is at most so many calls away.
DEPTH = 8


class UserThread:
    """One thread, for one call.

    Args:
        process: whose it is.
        number: of its call.
        draw: decides when it gets its turn.
        on_send: called when it is about to send something by itself.

    Attributes:
        ticket: of the operation that it runs.
        points_left: after so many points at which it may be interrupted it is; None: it is not.
        leaves_at_end: it is interrupted when it finds that what it waits for has ended.
        is_over: its call has ended.
        session: that of its process, where it needs that.
    """

    def __init__(
        self, process: Process, number: int, draw: Random, on_send: Callable[[UserThread], None]
    ) -> None:
        self.process = process
        self.number = number
        self.ticket = 0
        self.points_left: int | None = None
        self.leaves_at_end = False
        self.is_over = False
        self.session: Session | None = None
        self._draw = draw
        self._on_send = on_send
        self._greenlet: Any = None
        self._num_waits = 0
        self._is_blocked = False

    # -- the world -----------------------------------------------------------------------------------

    def run(self, function: Callable[..., None], *args: Any) -> None:
        """Begin a call; this returns when it blocks or has ended."""
        self._greenlet = greenlet(function)
        _alive.add(self)
        self._go_on(self._greenlet.switch, *args)

    def wake(self) -> None:
        """Let it go on soon, if it is blocked."""
        slow = self._draw.random() < SLOW_SHARE
        delay_us = self._draw.randrange(SLOW_US if slow else SOON_US)
        self.process.later(delay_us, self._resume, self._num_waits)

    def interrupt(self) -> None:
        """Interrupt it where it is blocked."""
        if self._is_blocked:
            self._go_on(self._greenlet.throw, KeyboardInterrupt())

    def kill(self) -> None:
        """End it with its process."""
        if self._greenlet is not None and not self.is_over:
            self.is_over, self._is_blocked = True, False
            self.points_left, self.leaves_at_end = None, False
            with suppress(GreenletExit):
                self._greenlet.throw(GreenletExit())

    def _resume(self, number: int) -> None:
        if self._is_blocked and number == self._num_waits:
            self._go_on(self._greenlet.switch)

    def _go_on(self, switch: Callable[..., Any], *args: Any) -> None:
        global _running
        self._is_blocked = False
        self._num_waits += 1
        before, _running = _running, self
        session_before, current._current = current._current, self.session
        try:
            switch(*args)
        finally:
            _running, current._current = before, session_before
            self.is_over = self.is_over or bool(self._greenlet.dead)

    # -- the thread itself ---------------------------------------------------------------------------

    def block(self, timeout_s: float | None = None) -> None:
        """Give the processor back until `wake` is called, or so much time has passed."""
        if timeout_s is not None:
            self.process.later(math.ceil(timeout_s * 1e6), self._resume, self._num_waits)
        self._is_blocked = True
        self._greenlet.parent.switch()

    def point(self) -> None:
        """Be interrupted here, if this is the place."""
        if self.points_left is None:
            return
        self.points_left -= 1
        if self.points_left < 0:
            self.points_left = None
            raise KeyboardInterrupt

    def find_end(self) -> None:
        """What it has waited for is over."""
        if self.leaves_at_end:
            self.leaves_at_end = False
            raise KeyboardInterrupt
        self.point()

    def sends(self) -> None:
        """Note that it is about to send something by itself."""
        self.point()
        self._on_send(self)

    def wait(self, promise: Promise[Any], timeout_s: float | None) -> bool:
        """Wait for a promise, as `Promise.wait` does."""
        if promise.done() or timeout_s == 0:
            return promise.done()
        scope, gate = current_scope(), _Gate(self)
        waker = gate.release
        promise._gates.append(gate)
        try:
            if scope is not None:
                scope.begin_wait(waker)
            self.point()
            if not promise.done():
                self.block(timeout_s)
        finally:
            with suppress(ValueError):
                promise._gates.remove(gate)
            if scope is not None:
                scope.end_wait(waker)
        if promise.done():
            self.find_end()
        elif scope is not None:
            scope.check()
        return promise.done()


class _Gate:
    """What opens when a promise is complete."""

    def __init__(self, thread: UserThread) -> None:
        self._thread = thread

    def release(self) -> None:
        self._thread.wake()


_running: UserThread | None = None
_alive: WeakSet[UserThread] = WeakSet()


def running() -> UserThread | None:
    """Return the thread that runs now; None: none of users does."""
    return _running


def hands_over() -> None:
    """Let the thread that runs be interrupted where it has handed something over, or is about to."""
    if _running is not None and _running.points_left is not None and not _is_in_destructor():
        _running.point()


def _is_in_destructor() -> bool:
    """Whether what is raised would be heard by nobody."""
    frame = sys._getframe(2)
    for _ in range(DEPTH):
        if frame.f_back is None:
            return False
        frame = frame.f_back
        if frame.f_code.co_name == "__del__":
            return True
    return False


def end_all() -> None:
    """The story is over: no thread goes on."""
    for thread in list(_alive):
        thread.kill()
    _alive.clear()
