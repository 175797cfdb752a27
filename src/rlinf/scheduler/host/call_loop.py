"""Runs the calls that arrive at a worker: in order on the main thread, coroutines on a loop of their own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from rlinf.scheduler.comm import WAIT_S, Endpoint, Messenger, Request, encode
from rlinf.scheduler.comm.failure import dump_failure
from rlinf.scheduler.comm.promise import Promise
from rlinf.scheduler.comm.shm.parcel import Arrived
from rlinf.scheduler.comm.shm.parcels import Parcel
from rlinf.scheduler.errors import SharedMemoryUnreadable
from rlinf.scheduler.host import protocol


@dataclass(frozen=True, slots=True)
class IncomingCall:
    """A call whose arguments are here."""

    request: Request
    arguments: Arrived


# The place in the line of a call whose arguments are still to come, as bytes; None if its caller dies before that.
Place: TypeAlias = Promise[IncomingCall | None]

# Sends what came of a call.
Answer: TypeAlias = Callable[[], object]


class CallLoop:
    """The calls of one worker.

    Plain methods run one after the other in the order of arrival, on the process's main thread (which many simulators
    and CUDA libraries want); with `max_concurrency` n, on n threads. `async def` methods run on one event
    loop beside them, any number at a time.
    """

    def __init__(self, messenger: Messenger) -> None:
        self._parcels = messenger.parcels
        self._submit = messenger.submit
        self._calls: queue.SimpleQueue[IncomingCall | Place | None] = queue.SimpleQueue()
        # By the caller's process and the number that it gave the call.
        self._places: dict[tuple[str, int], Place] = {}
        # Results in shared memory that their caller does not hold yet.
        self._lying: dict[tuple[str, int], Parcel] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_lock = threading.Lock()
        self._num_threads = 1
        # asyncio holds running tasks weakly: what nobody holds can be collected in the middle of a wait.
        self._running: set[concurrent.futures.Future[None]] = set()
        messenger.serve(protocol.CALL, self._on_call, protocol.Call)
        messenger.serve(protocol.AGAIN, self._on_again, protocol.Again)
        messenger.on_peer_lost(self._give_up_places)
        messenger.stay_while(lambda: bool(self._lying))

    # -- the I/O thread --------------------------------------------------------------------------

    def _on_call(self, request: Request) -> None:
        self._parcels.see_released()
        key = (request.peer_id, request.head.number)
        place = self._places.pop(key, None)
        try:
            call = IncomingCall(request, self._parcels.receive(request.frames))
        except SharedMemoryUnreadable as error:
            # Later calls wait behind it.
            self._places[key] = Promise()
            self._calls.put(self._places[key])
            request.reply(protocol.Unread(str(error)))
            return
        if place is None:
            self._calls.put(call)
        else:
            place.set_result(call)

    def _on_again(self, request: Request) -> None:
        """A caller cannot read a result where it lies: it gets the bytes, now and for some time."""
        message: protocol.Again = request.head
        self._parcels.distrust(request.peer_id, message.reason)
        parcel = self._lying[request.peer_id, message.number]
        request.reply(protocol.Returned(), parcel.frames_for(_peer(request)), snapshot=False)

    def _give_up_places(self, process_id: str) -> None:
        for key in [key for key in self._places if key[0] == process_id]:
            self._places.pop(key).set_result(None)

    # -- the threads that run calls --------------------------------------------------------------

    def stop(self) -> None:
        """End `run` once the calls that run now are done; those still queued are not run."""
        for _ in range(self._num_threads):
            self._calls.put(None)

    def run(self, worker: Any, max_concurrency: int = 1) -> None:
        """Run calls on `worker` until `stop`."""
        self._num_threads = max(1, max_concurrency)
        for index in range(1, self._num_threads):
            threading.Thread(
                target=self._serve, args=(worker,), name=f"rlinf-call-{index}", daemon=True
            ).start()
        self._serve(worker)

    def _serve(self, worker: Any) -> None:
        while True:
            entry = self._calls.get()
            if entry is None:
                return
            answers: list[Answer] = []
            try:
                answers += self._execute(worker, entry)
            except SystemExit:
                self.stop()
            del entry  # the arguments go before the answer: then the caller finds their memory warm
            while answers:
                answers.pop()()

    def _execute(self, worker: Any, entry: IncomingCall | Place) -> Sequence[Answer]:
        call = entry.result() if isinstance(entry, Promise) else entry
        if call is None:
            return ()
        try:
            args, kwargs = call.arguments.load()
            result = getattr(worker, call.request.head.method)(*args, **kwargs)
        except BaseException as error:  # the process boundary: the caller gets it
            _reply_error(call.request, error)
            if isinstance(error, SystemExit):
                raise
            return ()
        if inspect.iscoroutine(result):
            running = asyncio.run_coroutine_threadsafe(self._finish(call, result), self._event_loop())
            self._running.add(running)
            running.add_done_callback(self._running.discard)
            return ()
        return (self._answer(call, result, wait_s=WAIT_S),)

    async def _finish(self, call: IncomingCall, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            result = await coroutine
        except BaseException as error:  # noqa: BLE001 - the process boundary: the caller gets it
            _reply_error(call.request, error)
        else:
            self._answer(call, result, wait_s=0.0)()

    def _answer(self, call: IncomingCall, result: Any, *, wait_s: float) -> Answer:
        """Write a result; `wait_s` is how long this thread may wait for room in shared memory."""
        request = call.request
        try:
            parcel = self._parcels.pack(encode(result), _peer(request), snapshot=False, wait_s=wait_s)
        except Exception as error:  # noqa: BLE001 - a result that cannot be sent is the call's failure
            return partial(_reply_error, request, error)
        if parcel.in_shared_memory:
            lend = partial(self._lend, request, (request.peer_id, request.head.number), parcel)
            return partial(self._submit, lend)
        return partial(request.reply, protocol.Returned(), parcel.frames_for(_peer(request)))

    def _lend(self, request: Request, key: tuple[str, int], parcel: Parcel) -> None:
        """Answer with what lies in shared memory; on the I/O thread."""
        self._parcels.release_dropped()
        frames = parcel.frames_for(_peer(request))
        self._lying[key] = parcel
        taken = partial(self._on_taken, key)
        if not request.reply(protocol.Returned(), frames, snapshot=False, settled=taken):
            taken(False)

    def _on_taken(self, key: tuple[str, int], _taken: bool) -> None:
        """The caller holds a result itself, or nobody wants it any more."""
        self._lying.pop(key, None)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        with self._loop_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="rlinf-async-calls", daemon=True).start()
            return self._loop


def _peer(request: Request) -> Endpoint:
    """Who asked, as far as it is known here: the id, by which it is decided how its answer travels."""
    return Endpoint(request.peer_id, "", "", "")


def _reply_error(request: Request, error: BaseException) -> None:
    request.reply(protocol.Raised(), [dump_failure(error)])
