"""One call as the rank that runs it knows it: what was asked, whether it goes on, and who waits for its values."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from typing import Any

from rlinf_scheduler.comm import Request
from rlinf_scheduler.comm.cancellation import Scope
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.waits import OTHER, Cause, Wait
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.timing import recording
from rlinf_scheduler.observe.process_stats import RunningCall


class _Turn(Promise[None]):
    """Done when a stream's caller asks for a further value.

    Args:
        caller: that process.

    Attributes:
        since: when the generator began to wait for it, on the monotonic clock.
    """

    __slots__ = ("since",)

    def __init__(self, caller: str) -> None:
        super().__init__()
        self.by = caller
        self.since = time.monotonic()

    def cause(self) -> Cause:
        """Return what the wait is counted as."""
        return Cause(OTHER, "the next value's turn: its caller has not asked for one")

    def awaits(self) -> Wait:
        """Return what the generator waits for; from any thread."""
        return Wait(OTHER, self.cause().operation, time.monotonic() - self.since, peers=(self.by,))


class Demand:
    """The values that the caller of a stream has asked for and does not have yet.

    The generator runs only while there is one: that is what holds it back. The I/O thread adds requests; the thread
    or task that runs the generator answers them, in order.

    Args:
        caller: the process that asks for them.
    """

    def __init__(self, caller: str) -> None:
        self._caller = caller
        self._requests: deque[Request] = deque()
        self._more = _Turn(caller)
        self._closed = False

    def add(self, request: Request) -> None:
        """The caller asks for one more value."""
        self._requests.append(request)
        if self._closed:
            self._refuse_all()
        self._more.set_result(None)

    def first(self) -> Request:
        """The request to be answered next; waits for one.

        Raises:
            asyncio.CancelledError: the call was cancelled.
        """
        while (more := self._renewed()) is not None:
            more.wait_described()
        return self._requests[0]

    async def async_first(self) -> Request:
        """As `first`, in a task."""
        while (more := self._renewed()) is not None:
            await AsyncHandle(more)
        return self._requests[0]

    def answered(self) -> None:
        """The first request has its answer."""
        self._requests.popleft()

    def close(self) -> None:
        """There are no further values."""
        self._closed = True
        self._refuse_all()

    def _renewed(self) -> _Turn | None:
        """What is done when there is a request; None if there is one."""
        if self._more.done():
            self._more = _Turn(self._caller)
        if self._requests:
            return None
        self._more.since = time.monotonic()
        return self._more

    def _refuse_all(self) -> None:
        while self._requests:
            try:
                request = self._requests.popleft()
            except IndexError:  # the other thread was faster
                return
            request.reply(protocol.Ended())


class Job:
    """A call whose arguments are here.

    Attributes:
        request: what is to be answered.
        scope: ends its waits when its caller gives it up.
        durations: what was timed in it, in seconds.
        demand: of its values; None where it streams none.
        task: what runs it, if that is a task.
        is_counted: its time is, for it has ended, answered or not.
        thread: the number of the thread that runs it; of a task, its event loop's.
        began_at: when it began, on the clock of `time.perf_counter`; None: it waits for its turn.
    """

    def __init__(self, request: Request, arguments: ReceivedPayload) -> None:
        self.request = request
        self._arguments: ReceivedPayload | None = arguments
        self.scope = Scope()
        self.durations: dict[str, float] = {}
        self.demand = Demand(request.peer_name) if request.head.kind == "stream" else None
        self.task: asyncio.Task[Any] | None = None
        self.is_counted = False
        self.thread = 0
        self.began_at: float | None = None
        self._unclaimed: list[None] = [None]

    @property
    def key(self) -> tuple[str, int]:
        """Its caller's process and the number that it gave the call."""
        return self.request.peer_id, self.request.head.number

    def load_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its arguments, once: they go before the answer, so that the caller finds their memory warm."""
        arguments, self._arguments = self._arguments, None
        loaded: tuple[tuple[Any, ...], dict[str, Any]] = ((), {}) if arguments is None else arguments.load()
        return loaded

    def arguments(self) -> list[Buffer]:
        """The bytes of its arguments, before they are loaded."""
        return [] if self._arguments is None else self._arguments.frames()

    def claim(self) -> bool:
        """Whether it is the caller's to run it, or to answer it without: the first one's."""
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        self.began_at = time.perf_counter()
        return True

    @property
    def running(self) -> RunningCall:
        """What it is, and for how long it runs; from any thread."""
        began = self.began_at
        since_s = None if began is None else time.perf_counter() - began
        return RunningCall(self.request.head.method, since_s, self.request.peer_name, self.thread)

    def recording(self) -> recording:
        """A block of this thread that does what was called: its time is counted, and that of the phases in it."""
        self.thread = threading.get_ident()
        request = self.request
        return recording(self.durations, request.head.method, request.peer_name, self._note_counted)

    def _note_counted(self) -> None:
        self.is_counted = True

    def note_end(self) -> None:
        """Its method has ended: that is timed under the method's own name, unless a timer of that name was."""
        if self.began_at is not None:
            self.durations.setdefault(self.request.head.method, time.perf_counter() - self.began_at)
