"""How a rank answers calls: results, values of streams, failures, and what lies in shared memory until it is read."""

from __future__ import annotations

import asyncio
import inspect
import time
from functools import partial
from typing import Any, NamedTuple

from rlinf_scheduler.comm import WAIT_S, Endpoint, Messenger, Request, encode
from rlinf_scheduler.comm.failure import dump_failure
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.job import Demand, Job
from rlinf_scheduler.host.own_frames import without_own_frames
from rlinf_scheduler.observe.timekeeping import TIMES
from rlinf_scheduler.tape.tape import YIELDED, Tape


class _Unsent(NamedTuple):
    """An answer without its value: to which request, under which number it can be asked for again, and its head."""

    request: Request
    key: tuple[str, int]
    head: protocol.Returned | protocol.StreamValue


class Answers:
    """Sends what calls end with, and the values of streams.

    Args:
        messenger: this process's messenger.
    """

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
            job: the call.
            result: what the method returned.
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

    def stream(self, demand: Demand, result: Any, tape: Tape) -> Any:
        """Send a generator's values, one for each that is asked for, and note how many; what it returns at last."""
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
                tape.begin(*YIELDED).took()
                demand.answered()
        finally:
            result.close()

    async def stream_async(self, demand: Demand, result: Any, tape: Tape) -> Any:
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
                tape.begin(*YIELDED).took()
                demand.answered()
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
