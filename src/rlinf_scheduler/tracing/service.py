"""The job's home begins and ends a trace, fetches what all processes wrote, and writes the file."""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from rlinf_scheduler.comm import Endpoint
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.rundir import private_file
from rlinf_scheduler.comm.waits import IDLE, Wait, awaited
from rlinf_scheduler.errors import CommError, ConfigError, SchedulerError
from rlinf_scheduler.events import Event, WorkerLogged, WorkerPrinted
from rlinf_scheduler.observe.job_trace import (
    FETCH_TIMEOUT_S,
    MAX_BYTES,
    TRACE_VARIABLE,
    JobTrace,
    TraceFile,
    wanted_trace,
)
from rlinf_scheduler.observe.process_stats import Enlist
from rlinf_scheduler.observe.survey import Inquiry, Poll, Survey
from rlinf_scheduler.observe.timekeeping import EVENT, TIMES, Span
from rlinf_scheduler.session import Session
from rlinf_scheduler.tracing.span_file import dropped_whole, read_span_file
from rlinf_scheduler.tracing.span_file_folder import (
    SpanFileRecord,
    drop_span_files,
    folder_of,
    part_of,
    span_files_in,
)
from rlinf_scheduler.tracing.timeline import written
from rlinf_scheduler.tracing.tracer import (
    SPAN_FILES,
    TRACE,
    DropSpanFiles,
    ListSpanFiles,
    OpenSpanFile,
    ReadSpanFile,
    TraceOff,
    TraceOn,
    Tracer,
)

# A span in the file is so many times as large as in a span file, about.
_TEXT_TO_SPAN_FILE = 4
# All processes are told in this time, and what lies on another machine is read in parts of this size.
TOLD_S, PART_BYTES = 2.0, 4 << 20
# How long a job that ends waits for it.
CLOSING_S = 10.0
_log = Reporter(__name__)


@dataclass(slots=True, eq=False)
class Tracing:
    """What is known of a trace besides its file.

    Attributes:
        trace_id: no other trace has it.
        max_bytes: how large the file may become, and all span files of a machine together.
        gone_before: who was gone already when it began.
        told_share: how much one process was told that it may write; 0 before anybody was told.
        asked: what each process that there was as it began answers.
        refused: which processes have not taken part, and why.
        is_ending: nobody is told any more to take part.
        told: whom to ask for what was written, by process id, when it has ended; None before.
        silent: the processes that have not said that all of it is written, and why.
    """

    trace_id: str
    max_bytes: int
    gone_before: frozenset[str] = frozenset()
    told_share: int = 0
    asked: list[Promise[Any]] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    is_ending: bool = False
    told: dict[str, tuple[str, Endpoint]] | None = None
    silent: dict[str, str] = field(default_factory=dict)

    @property
    def span_file_bytes(self) -> int:
        """How much all processes that live may write, and how much those that have ended may have left."""
        return self.max_bytes // _TEXT_TO_SPAN_FILE

    def order(self) -> TraceOn:
        """What a process is told."""
        return TraceOn(self.trace_id, self.told_share, self.span_file_bytes)


class TraceService:
    """Begins and ends traces; a service of the job's home.

    Args:
        session: the home's.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messenger = session.messenger
        self._survey = session.service(Survey)
        self._tracer = session.service(Tracer)
        # The one that goes on. A dict, for its `setdefault` is one step: of two who begin at once one does.
        self._going_on: dict[None, tuple[JobTrace, Tracing]] = {}
        self._survey.on_enlisted.append(self._on_enlisted)

    def begin(self, path: str | os.PathLike[str], max_bytes: int) -> JobTrace:
        """Have all processes write down what they are at, from now on.

        Raises:
            ConfigError: a trace goes on already, or nothing fits into `max_bytes`.
            OSError: the file, or a span file, cannot be written.
        """
        if max_bytes < 1 << 20:
            raise ConfigError(f"trace(max_bytes={max_bytes}): a trace needs a megabyte at least")
        file, tracing = Path(path).absolute(), Tracing(secrets.token_hex(8), max_bytes)
        trace = JobTrace(file, partial(self._finish, file, tracing))
        opened: list[OpenSpanFile] = []
        try:
            self._claim(trace, tracing)
            with open(file, "wb", opener=private_file):  # now, and not when all is over
                pass
            self._session.bus.subscribe(self._on_event)
            self._session.on_close_first(self._stop_at_close)
            opened.append(self._tracer.open(TraceOn(tracing.trace_id, max_bytes, tracing.span_file_bytes)))
            self._on_io_thread(partial(self._begin_telling, tracing, opened))
        except BaseException:
            with suppress(IndexError):
                opened.pop().close()
            if self._tracing is tracing:
                self._give_up(tracing)
                self._messenger.submit(partial(self._call_off, tracing))
            raise
        return trace

    def wait_until_begun(self, timeout_s: float) -> None:
        """Wait until the trace that goes on has begun in every process that there was, for at most so many seconds.

        What this process sends after `begin` is traced in any case; not what others send, who have heard of it.
        """
        deadline = time.monotonic() + timeout_s
        tracing = self._tracing
        for asked in tracing.asked if tracing is not None else ():
            asked.wait(max(0.0, deadline - time.monotonic()))

    def _claim(self, trace: JobTrace, tracing: Tracing) -> None:
        other, _ = self._going_on.setdefault(None, (trace, tracing))
        if other is not trace:
            raise ConfigError(f"this job is traced already, to {other.path}: stop that trace first")

    def _finish(self, path: Path, tracing: Tracing, timeout_s: float) -> TraceFile:
        """End a trace, unless it has ended already and could not be written, and write its file."""
        deadline = time.monotonic() + timeout_s
        told = self._end(tracing) if tracing.told is None else tracing.told
        span_files, missing = self._fetch(tracing.trace_id, told, deadline)
        contents = [each for each in map(read_span_file, span_files.values()) if each is not None]
        dropped = Counter[str]()
        for segments in span_files.values():
            dropped.update(dropped_whole(segments[0]))
        gone = self._on_io_thread(partial(self._gone, tracing))
        reasons = {**gone, **tracing.silent, **missing, **tracing.refused}
        known = {content.head.process for content in contents}
        absent = {name: why for name, why in reasons.items() if name not in known}
        result = written(path, tracing.max_bytes, contents, absent, dropped)
        self._drop(tracing.trace_id, told)
        return result

    def _end(self, tracing: Tracing) -> dict[str, tuple[str, Endpoint]]:
        """Have all write what is left, and no more; who that is."""
        members = self._on_io_thread(partial(self._end_telling, tracing))
        told = {process_id: (name, known.endpoint) for process_id, (name, known) in members.items()}
        tracing.silent = self._tell_end(members, TraceOff(tracing.trace_id))
        _result(self._on_io_thread(partial(self._tracer.end, tracing.trace_id)))
        self._give_up(tracing)
        tracing.told = told
        return told

    def _gone(self, tracing: Tracing) -> dict[str, str]:
        """Who was traced and is gone; what it wrote is mostly there."""
        departed = self._survey.departed
        return {name: why for ident, (name, why) in departed.items() if ident not in tracing.gone_before}

    def _give_up(self, tracing: Tracing) -> None:
        if self._tracing is tracing:
            self._session.bus.unsubscribe(self._on_event)
            self._session.forget(self._stop_at_close)
            self._going_on.pop(None, None)

    @property
    def _tracing(self) -> Tracing | None:
        return self._going_on.get(None, (None, None))[1]

    def _stop_at_close(self) -> None:
        trace, _ = self._going_on.get(None, (None, None))
        if trace is not None and not self._session.failure:
            trace.stop(CLOSING_S)

    # -- telling ---------------------------------------------------------------------------------

    def _begin_telling(self, tracing: Tracing, opened: list[OpenSpanFile]) -> None:
        if opened:  # else its caller was interrupted
            self._tracer.begin(opened.pop())
        tracing.gone_before = frozenset(self._survey.departed)
        tracing.asked = self._tell_all(tracing)

    def _tell_all(self, tracing: Tracing) -> list[Promise[Any]]:
        tracing.told_share = self._share(tracing)
        self._tracer.limit(tracing.order())
        members = self._survey.members.values()
        return [self._tell(name, known.endpoint, tracing) for name, known in members]

    def _call_off(self, tracing: Tracing) -> None:
        """Who was told of a trace that nobody has is told that it is over."""
        self._tracer.end(tracing.trace_id)
        for _, known in self._survey.members.values():
            TRACE.tell(self._messenger, known.endpoint, TraceOff(tracing.trace_id))

    def _share(self, tracing: Tracing) -> int:
        """What one process may write: what there is, divided among as many as there are, or twice as many."""
        num_processes = 1 + len(self._survey.members)
        return tracing.span_file_bytes // (1 << num_processes.bit_length())

    def _end_telling(self, tracing: Tracing) -> dict[str, tuple[str, Enlist]]:
        """Who is to be told that it is over; who comes now is not told that there is a trace."""
        tracing.is_ending = True
        return self._survey.members

    def _on_enlisted(self, name: str, known: Enlist) -> None:
        tracing = self._tracing
        if tracing is None or not tracing.told_share or tracing.is_ending:
            return
        if self._share(tracing) < tracing.told_share:
            self._tell_all(tracing)
        else:
            self._tell(name, known.endpoint, tracing)

    def _tell(self, name: str, endpoint: Endpoint, tracing: Tracing) -> Promise[Any]:
        asked = TRACE.ask(self._messenger, endpoint, tracing.order(), timeout_s=FETCH_TIMEOUT_S)

        def note(answer: Promise[Any]) -> None:
            error = answer.exception(0)
            if error is not None:
                tracing.refused[name] = str(error)

        asked.add_done_callback(note)
        return asked

    def _on_event(self, event: Event) -> None:
        if TIMES.span_file is not None and not isinstance(event, WorkerLogged | WorkerPrinted):
            now = time.monotonic()
            about = ", ".join(f"{each.name}={getattr(event, each.name)!r}" for each in fields(event))
            TIMES.span_file(Span(EVENT, now, now, type(event).__name__, 0, "", about[:500]))

    # -- fetching --------------------------------------------------------------------------------

    def _fetch(
        self, trace_id: str, told: Mapping[str, tuple[str, Endpoint]], deadline: float
    ) -> tuple[dict[tuple[str, str], list[bytes]], dict[str, str]]:
        """The span files on all machines, by machine and process; and of whom there is none, and why."""
        here = self._messenger.endpoint.machine_id
        folder = folder_of(trace_id, here)
        span_files: dict[tuple[str, str], list[bytes]] = {}
        for file in span_files_in(folder):
            with suppress(FileNotFoundError):  # who joined last has just removed it
                whole = part_of(folder, file.name, 0, file.size_bytes)
                span_files.setdefault((here, Path(file.name).stem), []).append(whole)
        missing: dict[str, str] = {}
        for machine, members in _by_machine(told).items():
            if machine != here:
                problem = self._fetch_from(machine, members, trace_id, deadline, span_files)
                missing.update((name, problem) for name, _ in members if problem)
        return span_files, missing

    def _fetch_from(
        self,
        machine: str,
        members: Iterable[tuple[str, Endpoint]],
        trace_id: str,
        deadline: float,
        span_files: dict[tuple[str, str], list[bytes]],
    ) -> str:
        """Fetch what lies on another machine, of the first process there that gives it; why there is nothing."""
        problem = ""
        for name, endpoint in members:
            try:
                found: list[SpanFileRecord] = self._request(
                    endpoint, ListSpanFiles(trace_id), list[SpanFileRecord], deadline
                ).head
                segments = [b"".join(self._parts(endpoint, trace_id, file, deadline)) for file in found]
            except (SchedulerError, OSError) as error:
                problem = f"its span file was not to be had of {name}: {error}"
            else:
                for file, whole in zip(found, segments, strict=True):
                    span_files.setdefault((machine, Path(file.name).stem), []).append(whole)
                return ""
        return problem

    def _parts(
        self, endpoint: Endpoint, trace_id: str, file: SpanFileRecord, deadline: float
    ) -> Iterable[bytes]:
        for start in range(0, file.size_bytes, PART_BYTES):
            asked = ReadSpanFile(trace_id, file.name, start, PART_BYTES)
            yield bytes(self._request(endpoint, asked, None, deadline).frames[0])

    @awaited(lambda _local: Wait(IDLE, "a trace"))
    def _request(self, endpoint: Endpoint, head: Any, reply_type: Any, deadline: float) -> Any:
        left_s = max(0.1, deadline - time.monotonic())
        asked = self._messenger.request(endpoint, SPAN_FILES, head, timeout_s=left_s, reply_type=reply_type)
        return asked.result()

    def _drop(self, trace_id: str, told: Mapping[str, tuple[str, Endpoint]]) -> None:
        here = self._messenger.endpoint.machine_id
        self._tracer.release(trace_id)
        drop_span_files(folder_of(trace_id, here))
        for machine, members in _by_machine(told).items():
            if machine != here:
                with suppress(CommError):
                    self._messenger.notify(members[0][1], SPAN_FILES, DropSpanFiles(trace_id))

    # -- on the I/O thread and back ---------------------------------------------------------------

    def _tell_end(self, members: dict[str, tuple[str, Enlist]], order: TraceOff) -> dict[str, str]:
        """Have all write what is left; return the processes that did not say so, and why."""
        inquiry = Inquiry(TRACE, TOLD_S, order, is_patient=True)
        told: Promise[Poll] = Promise()
        asking = Poll(self._session, inquiry, members, [known for _, known in members.values()], told)
        self._messenger.submit(ending(asking.begin, told.set_exception))
        return {each.process: each.detail for each in _result(told).silent}

    def _on_io_thread(self, step: Callable[[], Any]) -> Any:
        done: Promise[Any] = Promise()
        self._messenger.submit(lambda: done.set_from(step))
        return _result(done)


@awaited(lambda _local: Wait(IDLE, "a trace"))
def _result(promise: Promise[Any]) -> Any:
    return promise.result(FETCH_TIMEOUT_S)


def _by_machine(
    members: Mapping[str, tuple[str, Endpoint]],
) -> dict[str, list[tuple[str, Endpoint]]]:
    found: dict[str, list[tuple[str, Endpoint]]] = {}
    for name, endpoint in members.values():
        found.setdefault(endpoint.machine_id, []).append((name, endpoint))
    return found


def trace_whole_job(session: Session, path: str | None = None) -> None:
    """Trace a job from its beginning to its end, if RLINF_TRACE or its config says where to; on the driver.

    Args:
        session: the driver's.
        path: what the config says; the variable goes before it.

    Raises:
        OSError: that file cannot be written.
    """
    named = wanted_trace()
    if path and not named:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    if wanted := named or path:
        session.service(TraceService).begin(wanted, MAX_BYTES)
        _log.info("%s: this job is traced, to %s", TRACE_VARIABLE if named else "tracer", wanted)
