"""Runs the calls that arrive at a worker: in order on the main thread, coroutines on a loop of their own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import pickle
import queue
import threading
import traceback
from collections.abc import Coroutine
from typing import Any

from rlinf.scheduler.comm import Request, decode, encode
from rlinf.scheduler.worker import protocol
from rlinf.scheduler.worker.info import WorkerAddress


class CallLoop:
    """The calls of one worker.

    Plain methods run one after the other in the order of arrival, on the process's main thread (which many simulators
    and CUDA libraries want); with `max_concurrency` n, on n threads. `async def` methods run on one event
    loop beside them, any number at a time.
    """

    def __init__(self, address: WorkerAddress) -> None:
        self._address = address
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_lock = threading.Lock()
        self._num_threads = 1
        # asyncio holds running tasks weakly: what nobody holds can be collected in the middle of a wait.
        self._running: set[concurrent.futures.Future[None]] = set()

    def submit(self, request: Request) -> None:
        """Queue a call; never blocks."""
        self._requests.put(request)

    def stop(self) -> None:
        """End `run` once the calls that run now are done; those still queued are not run."""
        for _ in range(self._num_threads):
            self._requests.put(None)

    def run(self, worker: Any, max_concurrency: int = 1) -> None:
        """Run calls on `worker` until `stop`."""
        self._num_threads = max(1, max_concurrency)
        for index in range(1, self._num_threads):
            threading.Thread(
                target=self._serve, args=(worker,), name=f"rlinf-call-{index}", daemon=True
            ).start()
        self._serve(worker)

    def _serve(self, worker: Any) -> None:
        while (request := self._requests.get()) is not None:
            try:
                self._execute(worker, request)
            except SystemExit:
                self.stop()

    def _execute(self, worker: Any, request: Request) -> None:
        try:
            args, kwargs = decode(request.frames[0], request.frames[1:])
            result = getattr(worker, request.head)(*args, **kwargs)
        except BaseException as error:  # the process boundary: the caller gets it
            _reply_error(request, error)
            if isinstance(error, SystemExit):
                raise
            return
        if inspect.iscoroutine(result):
            running = asyncio.run_coroutine_threadsafe(_finish(request, result), self._event_loop())
            self._running.add(running)
            running.add_done_callback(self._running.discard)
        else:
            _reply(request, result)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        with self._loop_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="rlinf-async-calls", daemon=True).start()
            return self._loop


async def _finish(request: Request, coroutine: Coroutine[Any, Any, Any]) -> None:
    try:
        result = await coroutine
    except BaseException as error:  # noqa: BLE001 - the process boundary: the caller gets it
        _reply_error(request, error)
    else:
        _reply(request, result)


def _reply(request: Request, result: Any) -> None:
    try:
        encoded = encode(result)
    except Exception as error:  # noqa: BLE001 - a result that cannot be sent is the call's failure
        _reply_error(request, error)
    else:
        request.reply([protocol.OK], [encoded.head, *encoded.buffers])


def _reply_error(request: Request, error: BaseException) -> None:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - an exception's own __str__ may fail
        text = f"{type(error).__qualname__}, which cannot be shown"
    try:
        cause = pickle.dumps(error)
    except Exception:  # noqa: BLE001 - an exception may hold anything; its text is what must arrive
        cause = b""
    # A frame takes any text of any length; half of a surrogate pair would have no place in a message's head.
    request.reply([protocol.RAISED], [text.encode("utf-8", "backslashreplace"), cause])
