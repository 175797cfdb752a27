"""One call as the rank that runs it knows it: what was asked, who waits for its values, how it is answered."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rlinf_scheduler.comm import WAIT_S, Endpoint, Messenger, Request, encode
from rlinf_scheduler.comm.cancellation import Scope
from rlinf_scheduler.comm.failure import dump_failure
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.comm.waits import OTHER, Cause, Wait
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.timing import recording
from rlinf_scheduler.observe.process_stats import RunningCall
from rlinf_scheduler.observe.timekeeping import TIMES


class _Turn(Promise[None]):
    """Done when a stream's caller asks for a further value.

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
        scope: ends its waits when its caller gives it up.
        durations: what was timed in it, in seconds.
        demand: of its values; None where it streams none.
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


# -- answers -----------------------------------------------------------------------------------------


class _Unsent(NamedTuple):
    """An answer without its value: to which request, under which number it can be asked for again, and its head."""

    request: Request
    key: tuple[str, int]
    head: protocol.Returned | protocol.StreamValue


class Answers:
    """Sends what calls end with, and the values of streams."""

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger
        self._payloads = messenger.payloads
        # In shared memory, and not with their caller yet; by its process and the number that it asked under.
        self._lying: dict[tuple[str, int], Payload] = {}
        messenger.serve(protocol.AGAIN, self._on_again, protocol.ResultAsBytes)
        messenger.stay_while(lambda: bool(self._lying))

    def _on_again(self, request: Request) -> None:
        """A caller cannot read a result where it lies: it gets the bytes, now and for some time."""
        message: protocol.ResultAsBytes = request.head
        self._payloads.distrust(request.peer_id, message.reason)
        payload = self._lying[request.peer_id, message.number]
        request.reply(protocol.Returned(), payload.frames_for(_peer(request)), snapshot=False)

    # -- the end of a call -----------------------------------------------------------------------

    def succeed(self, job: Job, result: Any, *, wait_s: float) -> None:
        """Answer with a result.

        Args:
            wait_s: how long this thread may wait for room in shared memory.
        """
        job.note_end()
        try:
            self._send(_Unsent(job.request, job.key, protocol.Returned(job.durations)), result, wait_s)
        except Exception as error:  # noqa: BLE001 - a result that cannot be sent is the call's failure
            self.fail(job, error)
            return
        if job.demand is not None:
            job.demand.close()

    def fail(self, job: Job, error: BaseException) -> None:
        """Answer with what the method raised."""
        job.note_end()
        if isinstance(error, asyncio.CancelledError) and job.scope.cancelled:
            job.request.reply(protocol.Cancelled(job.durations))
        else:
            job.request.reply(protocol.Raised(job.durations), [dump_failure(without_own_frames(error))])
        if job.demand is not None:
            job.demand.close()

    # -- the values of streams -------------------------------------------------------------------

    def stream(self, demand: Demand, result: Any) -> Any:
        """Send a generator's values, one for each that is asked for; what it returns at last."""
        if not inspect.isgenerator(result):
            return result
        try:
            while True:
                request = demand.first()
                began = time.monotonic()
                try:
                    value = next(result)
                except StopIteration as end:
                    return end.value
                self._send_value(request, value, WAIT_S)
                TIMES.note_value(began, request.peer_name)
                demand.answered()
                del value
        finally:
            result.close()

    async def stream_async(self, demand: Demand, result: Any) -> Any:
        """As `stream`, of an asynchronous generator."""
        if not inspect.isasyncgen(result):
            return await result
        try:
            while True:
                request = await demand.async_first()
                began = time.monotonic()
                try:
                    value = await anext(result)
                except StopAsyncIteration:
                    return None
                self._send_value(request, value, 0.0)
                TIMES.note_value(began, request.peer_name)
                demand.answered()
                del value
        finally:
            await result.aclose()

    def _send_value(self, request: Request, value: Any, wait_s: float) -> None:
        key = (request.peer_id, request.head.item)
        self._send(_Unsent(request, key, protocol.StreamValue()), value, wait_s)

    def _send(self, reply: _Unsent, value: Any, wait_s: float) -> None:
        peer = _peer(reply.request)
        payload = self._payloads.pack(encode(value), peer, snapshot=False, wait_s=wait_s)
        if not payload.in_shared_memory:
            reply.request.reply(reply.head, payload.frames_for(peer))
            return
        # Handed over, for this thread may come back from here only when its caller has the result, and calls again:
        # the memory would not be free for the next one.
        handed = [payload]
        del payload
        self._messenger.submit(ending(partial(self._lend, reply, handed), reply.request.fail))

    def _lend(self, reply: _Unsent, handed: list[Payload]) -> None:
        """Answer with what lies in shared memory; on the I/O thread."""
        payload = handed.pop()
        self._payloads.release_dropped()
        frames = payload.frames_for(_peer(reply.request))
        self._lying[reply.key] = payload
        taken = partial(self._on_taken, reply.key)
        if not reply.request.reply(reply.head, frames, snapshot=False, on_confirmed=taken):
            taken(False)

    def _on_taken(self, key: tuple[str, int], _taken: bool) -> None:
        """The caller holds a result itself, or nobody wants it any more."""
        self._lying.pop(key, None)


def _peer(request: Request) -> Endpoint:
    """Who asked, as far as it is known here: the id, by which it is decided how its answer travels."""
    return Endpoint(request.peer_id, "", "", "")


# -- tracebacks --------------------------------------------------------------------------------------


E = TypeVar("E", bound=BaseException)

_FOLDER = f"{Path(__file__).parent}/"


def without_own_frames(error: E) -> E:
    """The error, its traceback without the first frames, which are of this package; as it is if all are."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_FOLDER):
        traceback = traceback.tb_next
    return error if traceback is None else error.with_traceback(traceback)
