"""Runs the calls that arrive at a worker: in order on the main thread, `async def` methods on a loop beside it."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from functools import lru_cache, partial
from heapq import nsmallest
from itertools import zip_longest
from operator import attrgetter
from typing import Any, TypeAlias, TypeVarTuple, Unpack

from msgspec.structs import replace

from rlinf_scheduler.comm import WAIT_S, Messenger, Request
from rlinf_scheduler.comm.cancellation import working_in
from rlinf_scheduler.comm.forking import children_end_here
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.waits import IDLE, Wait, awaited
from rlinf_scheduler.errors import SharedMemoryUnreadable
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.calls import Answers, Job
from rlinf_scheduler.observe.process_stats import (
    IDLE_RANK,
    MAX_CALLS,
    RUNNING,
    STARTING,
    WAITING,
    Activity,
    ProcessStats,
    RunningCall,
)
from rlinf_scheduler.observe.stacks import Threads, wait_of_task
from rlinf_scheduler.observe.timekeeping import TIMES
from rlinf_scheduler.wording import no_attribute

# The place in the line of a call whose arguments are still to come, as bytes; None if its caller dies before that.
Reservation: TypeAlias = Promise[Job | None]
# What a task came to: its result, or what it raised.
_TaskOutcome: TypeAlias = tuple[Any, BaseException | None]
_Args = TypeVarTuple("_Args")


class CallLoop:
    """The calls of one worker.

    Plain methods run one after the other in the order of arrival, on the process's main thread (which many simulators
    and CUDA libraries want); with `max_concurrency` n, on n threads. `async def` methods run on one event loop beside
    them, any number at a time, as soon as they arrive. A generator runs as a method of its kind does, and waits
    whenever its caller has not asked for a further value.

    Args:
        tell_method: told the name of each plain method that begins, and "" when it has ended and is not answered yet.

    Attributes:
        before: what is called with the arguments of a method, by its name, before that is.
    """

    def __init__(
        self,
        messenger: Messenger,
        tell_method: Callable[[str], None] = lambda _: None,
        threads: Threads | None = None,
    ) -> None:
        self.before: dict[str, Callable[..., object]] = {}
        self._messenger = messenger
        self._threads = threads or Threads()
        self._tell_method = tell_method
        self._payloads = messenger.payloads
        self._answers = Answers(messenger)
        self._calls: queue.SimpleQueue[Job | Reservation | None] = queue.SimpleQueue()
        # Those that have no answer yet, and places; by the caller's process and the number that it gave the call.
        self._jobs: dict[tuple[str, int], Job] = {}
        self._places: dict[tuple[str, int], Reservation] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._num_threads = 1
        self._stopping = self._finishing = self._closed = False
        self._worker: Any = None
        # asyncio holds running tasks weakly: what nobody holds can be collected in the middle of a wait.
        self._tasks: set[asyncio.Task[_TaskOutcome]] = set()
        messenger.serve(protocol.CALL, self._on_call, protocol.CallRequest)
        messenger.serve(protocol.CANCEL, self._on_cancel, protocol.Cancel)
        messenger.serve(protocol.NEXT, self._on_next, protocol.Next)
        messenger.on_peer_lost(self._give_up_places)

    # -- the I/O thread --------------------------------------------------------------------------

    def _on_call(self, request: Request) -> None:
        if self._closed:
            return  # it leaves, and has answered all that it had begun: its goodbye says that it never begins this
        key = (request.peer_id, request.head.number)
        place = self._places.get(key)
        runs_beside = self._runs_beside(request.head)
        try:
            job = Job(request, self._payloads.receive(request.frames))
        except SharedMemoryUnreadable as error:
            if not runs_beside:
                # Later calls wait behind it.
                self._places[key] = Promise()
                self._calls.put(self._places[key])
            request.reply(protocol.Unread(str(error)))
            return
        self._jobs[key] = job
        self._places.pop(key, None)
        if place is not None:
            place.set_result(job)
        elif runs_beside:
            self._begin_task(job)
        else:
            self._calls.put(job)
        # While the call's thread wakes up: what it answers with finds warm memory.
        self._payloads.see_released()

    def add_to(self, doing: Activity) -> Activity:
        """Add the calls of this rank to what its process says of itself; on the I/O thread."""
        return replace(doing, calls=tuple(job.running for job in tuple(self._jobs.values())))

    def running(self) -> tuple[RunningCall, ...]:
        """The calls that run and are not counted yet, in order, with what they wait for; on the I/O thread."""
        return self._begun([job for job in self._jobs.copy().values() if not job.is_counted])

    def add_stats(self, stats: ProcessStats) -> ProcessStats:
        """Add the calls that run, and how many others there are; on the I/O thread."""
        jobs = list(self._jobs.copy().values())
        calls = self._begun(jobs, MAX_CALLS)
        num_begun = sum(job.began_at is not None for job in jobs)
        found = replace(
            stats,
            takes_calls=True,
            is_starting=self._worker is None,
            calls_queued=len(jobs) - num_begun + len(self._places),
            calls=calls,
        )
        if not calls:
            return found
        # Of one that is at work, if any is: what is told of the rank is told of one call.
        told = next((call for call in calls if call.wait is None), calls[0])
        wait, since_s = ("", 0.0) if told.wait is None else (told.wait.operation, told.wait.since_s)
        told_since_s = told.since_s or 0.0
        return replace(
            found, method=told.method, method_since_s=told_since_s, wait=wait, wait_since_s=since_s
        )

    def state(self) -> str:
        """Return what this rank is at, in a word of `RankStatus`; on the I/O thread."""
        if self._worker is None:
            return STARTING
        calls = self._begun(list(self._jobs.copy().values()), MAX_CALLS)
        if not calls:
            return IDLE_RANK
        return RUNNING if any(call.wait is None for call in calls) else WAITING

    def _begun(self, jobs: Sequence[Job], limit: int | None = None) -> tuple[RunningCall, ...]:
        """Return those that run, the first begun first, the very first with what they wait for."""
        begun = [job for job in jobs if job.began_at is not None]
        first = nsmallest(len(begun) if limit is None else limit, begun, key=attrgetter("began_at"))
        looked_at = first[:MAX_CALLS]
        waits = self._threads.waits({job.thread for job in looked_at if job.task is None})
        waiting = (waits.get(job.thread) if job.task is None else wait_of_task(job.task) for job in looked_at)
        pairs = zip_longest((job.running for job in first), waiting)
        return tuple(replace(call, wait=wait) for call, wait in pairs)

    def _runs_beside(self, call: protocol.CallRequest) -> bool:
        """Whether it is an `async def` method."""
        worker_class: type = type(self._worker)
        return call.kind != "get" and _is_async(worker_class, call.method)

    def _on_cancel(self, notice: Request) -> None:
        """A caller gives its call up: it ends at its next wait, or never begins."""
        job = self._jobs.get((notice.peer_id, notice.head.number))
        if job is not None:
            self._cancel(job)

    def _cancel(self, job: Job) -> None:
        if job.scope.cancelled:
            return  # once: a task that is cancelled again is interrupted in what it does on its way out
        job.scope.cancel()
        if job.claim():
            job.request.reply(protocol.Cancelled())
            self._forget(job)
        elif job.task is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(job.task.cancel)

    def _on_next(self, request: Request) -> None:
        """A caller wants a further value of a stream."""
        job = self._jobs.get((request.peer_id, request.head.number))
        if job is None or job.demand is None:
            request.reply(protocol.Ended())
        else:
            job.demand.add(request)

    def _give_up_places(self, process_id: str) -> None:
        for key in [key for key in self._places if key[0] == process_id]:
            self._places.pop(key).set_result(None)
        for job in list(self._jobs.values()):
            if job.key[0] == process_id and job.demand is not None:
                self._cancel(job)  # nobody will ever ask it for a value

    def give_up_calls(self, process_id: str) -> None:
        """A caller is gone: nobody waits for what it has called."""
        for job in list(self._jobs.values()):
            if job.key[0] == process_id:
                self._cancel(job)

    # -- the threads that run calls --------------------------------------------------------------

    def stop(self) -> None:
        """End `run` once the calls that run now are done; those still queued are not run."""
        self._stopping = True
        for _ in range(self._num_threads):
            self._calls.put(None)
        for place in list(self._places.values()):
            place.set_result(None)
        for job in list(self._jobs.values()):
            if job.demand is not None and job.began_at is not None:
                self._cancel(job)
            elif job.demand is not None:
                job.scope.cancel()  # if it just begins; else its caller hears that it never did

    def finish(self) -> None:
        """End `run` once every call that has arrived is answered."""
        self._finishing = True
        self._stop_if_finished()

    def _stop_if_finished(self) -> None:
        """On the I/O thread: what arrives is there before it looks, or finds that it is over."""
        if self._finishing and not self._jobs and not self._places:
            self._closed = True
            self.stop()

    def close(self) -> None:
        """Begin no call any more, and answer those that go on; the process ends."""
        self.stop()
        self._messenger.submit(self._abandon_all)

    def _abandon_all(self) -> None:
        self._closed = True
        for job in list(self._jobs.values()):
            if not job.claim():  # else nobody begins it from now on
                job.request.reply(protocol.Abandoned())

    def take(self, worker: Any) -> None:
        """Let calls be for `worker`; its `async def` methods run from now on, the others once `run` is called."""
        self._worker = worker

    def has(self, method: str) -> bool:
        """Whether there is a worker whose class has that method; from any thread."""
        return callable(getattr(type(self._worker), method, None))

    def completed(self, result: Any) -> Any:
        """Return what a method's result comes to, on the event loop if it is a coroutine; before there are calls."""
        if not inspect.iscoroutine(result):
            return result
        return asyncio.run_coroutine_threadsafe(result, self._started_loop()).result()

    def run(self, max_concurrency: int = 1) -> None:
        """Run calls on the worker until `stop`."""
        self._num_threads = max(1, max_concurrency)
        if self._num_threads > 1:
            TIMES.keep_given()
        for index in range(1, self._num_threads):
            threading.Thread(target=self._serve, name=f"rlinf-call-{index}", daemon=True).start()
        self._serve()

    @awaited(lambda local: None if "job" in local else Wait(IDLE, "a call"))
    def _serve(self) -> None:
        while True:
            entry = self._calls.get()
            if entry is None or self._stopping:
                return
            job = entry.result() if isinstance(entry, Promise) else entry
            try:
                if job is not None:
                    self._execute(job)
            except SystemExit:
                self.stop()
            del entry, job  # else the arguments of the last call stay until the next one comes

    def _execute(self, job: Job) -> None:
        if not job.claim():
            return
        self._tell_method(job.request.head.method)
        try:
            with working_in(job.scope), job.recording(), children_end_here():
                result = self._invoke(job)
                if job.demand is not None:
                    result = self._answers.stream(job.demand, result)
        except BaseException as error:  # the process boundary: the caller gets it
            self._tell_method("")
            self._fail(job, error)
            if isinstance(error, SystemExit):
                raise
            return
        self._tell_method("")
        if inspect.iscoroutine(result):
            # Of a method that only returns a coroutine.
            begin = partial(self._begin, job, partial(_same, result))
            self._messenger.submit(ending(begin, partial(self._fail, job)))
            return
        self._answers.succeed(job, result, wait_s=WAIT_S)
        self._forget(job)

    def _invoke(self, job: Job) -> Any:
        call: protocol.CallRequest = job.request.head
        if call.method.startswith("_"):
            message = f"'{call.method}' is private to {type(self._worker).__name__}"
            raise AttributeError(message)
        args, kwargs = job.load_arguments()
        if call.kind == "get":
            return _attribute_of(self._worker, call.method)
        if call.method in self.before:
            self.before[call.method](*args, **kwargs)
        return getattr(self._worker, call.method)(*args, **kwargs)

    def _fail(self, job: Job, error: BaseException) -> None:
        self._answers.fail(job, error)
        self._forget(job)

    def _forget(self, job: Job) -> None:
        """It was answered: there is nothing left of it to cancel, nor to ask it for."""
        self._jobs.pop(job.key, None)
        if self._finishing:
            self._messenger.submit(self._stop_if_finished)

    # -- the event loop --------------------------------------------------------------------------

    def _begin_task(self, job: Job) -> None:
        """Run an `async def` method beside all others; from any thread."""

        def begin() -> None:
            if job.claim():
                self._begin(job, partial(self._invoke_async, job))

        self._messenger.submit(ending(begin, partial(self._fail, job)))

    async def _invoke_async(self, job: Job) -> Any:
        result = self._invoke(job)
        return await result if job.demand is None else await self._answers.stream_async(job.demand, result)

    def _begin(self, job: Job, invoke: Callable[[], Awaitable[Any]]) -> None:
        """Run something as a task; on the I/O thread."""
        try:
            loop = self._started_loop()
        except OSError as error:  # out of descriptors
            self._fail(job, error)
            return
        loop.call_soon_threadsafe(self._make_task, loop, job, invoke)

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = _CallsEventLoop()
            threading.Thread(target=loop.run_forever, name="rlinf-async-calls", daemon=True).start()
            self._loop = loop
            TIMES.keep_given()
        return self._loop

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, job: Job, invoke: Callable[[], Awaitable[Any]]
    ) -> None:
        job.task = task = loop.create_task(self._outcome_of(job, invoke))
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_task_ended, job))
        if job.scope.cancelled:
            task.cancel()

    async def _outcome_of(self, job: Job, invoke: Callable[[], Awaitable[Any]]) -> _TaskOutcome:
        """What a task came to; it raises nothing, for some exceptions would end the event loop."""
        try:
            with working_in(job.scope), job.recording(), children_end_here():
                return await invoke(), None
        except BaseException as error:  # noqa: BLE001 - the process boundary: the caller gets it
            return None, error

    def _on_task_ended(self, job: Job, task: asyncio.Task[_TaskOutcome]) -> None:
        self._tasks.discard(task)
        # Cancelled before its first step, it has no outcome.
        result, error = (None, asyncio.CancelledError()) if task.cancelled() else task.result()
        if error is not None:
            self._answers.fail(job, error)
        else:
            self._answers.succeed(job, result, wait_s=0.0)
        self._forget(job)


class _CallsEventLoop(asyncio.SelectorEventLoop):
    """The event loop of `async def` methods, which the plain methods of the same worker may use, too.

    Under Ray alone both run on one thread, so programs cancel a task, answer a future, or set a timer, from a plain
    method. asyncio does not wake a loop that sleeps for what another thread does so.
    """

    def __init__(self) -> None:
        super().__init__()
        self._runs_on: int | None = None

    def run_forever(self) -> None:
        """Run on the calling thread."""
        self._runs_on = threading.get_ident()
        super().run_forever()

    def call_soon(
        self,
        callback: Callable[[Unpack[_Args]], object],
        *args: *_Args,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call something in the loop's next round, which comes at once; from any thread."""
        if threading.get_ident() != self._runs_on:
            return self.call_soon_threadsafe(callback, *args, context=context)
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Args]], object],
        *args: *_Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call something in the loop at a time of its clock; from any thread."""
        if threading.get_ident() == self._runs_on:
            return super().call_at(when, callback, *args, context=context)
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        ring = partial(_ring, timer, partial(callback, *args))
        self.call_soon_threadsafe(partial(super().call_at, when, ring, context=context))
        return timer


def _ring(timer: asyncio.TimerHandle, callback: Callable[[], object]) -> None:
    if not timer.cancelled():
        callback()


@lru_cache(maxsize=1024)
def _is_async(worker_class: type, name: str) -> bool:
    """Whether a method is an `async def`; to find out takes longer than to remember it."""
    method = getattr(worker_class, name, None)
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)


def _attribute_of(worker: Any, name: str) -> Any:
    try:
        return getattr(worker, name)
    except AttributeError as error:
        if error.obj is not worker or error.name != name:
            raise
        public = [each for each in dir(worker) if not each.startswith("_")]
        raise AttributeError(no_attribute(type(worker).__name__, name, public)) from None


async def _same(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return await coroutine
