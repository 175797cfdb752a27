"""The trace of a job that outlives its drivers.

Its job server makes it, for a driver that begins it and has the file.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from rlinf_scheduler.comm import Reply, Request
from rlinf_scheduler.comm.directory import ANSWER_TIMEOUT_S
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.rundir import private_file
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.comm.waits import IDLE, Wait, awaited
from rlinf_scheduler.errors import ClusterError, ConfigError
from rlinf_scheduler.observe.job_trace import (
    MAX_BYTES,
    TRACE_VARIABLE,
    JobTrace,
    TraceContent,
    TraceFile,
    wanted_trace,
)
from rlinf_scheduler.session import Session
from rlinf_scheduler.tracing.service import CLOSING_S, PART_BYTES, TOLD_S, TraceService
from rlinf_scheduler.tracing.span_file_folder import drop_span_files, folder_of, hold_folder
from rlinf_scheduler.tracing.timeline import opened_file, trace_file

# Services of the job server.
BEGIN_TRACE = "kept.begin_trace"
END_TRACE = "kept.end_trace"
READ_TRACE = "kept.read_trace"
DROP_TRACE = "kept.drop_trace"
# As a segment of a span file is called: what is left of it goes as these do.
_FILE = "run.0"


class BeginTrace(msgspec.Struct, frozen=True, array_like=True):
    """Trace the job from now on -> None.

    Attributes:
        path: where the driver will write it, for messages.
        max_bytes: how large it may become.
    """

    path: str
    max_bytes: int


class EndTrace(msgspec.Struct, frozen=True, array_like=True):
    """End the trace that you have begun for me, and make its file within so many seconds -> its `TraceContent`."""

    timeout_s: float


class ReadTrace(msgspec.Struct, frozen=True, array_like=True):
    """Ask for a part of the file -> None, and it in a frame."""

    start: int


@dataclass(slots=True, eq=False)
class _Made:
    """A trace that is made for a driver."""

    about: BeginTrace
    driver: str
    trace: JobTrace
    lock_fd: int

    def drop(self) -> None:
        """Nobody wants it any more; a thread's own work."""
        with suppress(Exception):  # whatever it fails at, nobody asks
            self.trace.stop(CLOSING_S)
        os.close(self.lock_fd)
        drop_span_files(self.trace.path.parent)


class TraceMaker:
    """Makes traces for drivers; a service of the job server."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messenger = session.messenger
        # By the driver's process id; one goes on at a time.
        self._made: dict[str, _Made] = {}
        for service, work, kind in (
            (BEGIN_TRACE, self._begin, BeginTrace),
            (END_TRACE, self._end, EndTrace),
            (READ_TRACE, self._read, ReadTrace),
            (DROP_TRACE, self._drop, None),
        ):
            self._messenger.serve(service, partial(self._answer_beside, work), kind)
        self._messenger.on_peer_lost(self._on_peer_lost)

    # -- the I/O thread --------------------------------------------------------------------------

    def _answer_beside(self, work: Callable[[Request], None], request: Request) -> None:
        self._beside(_answered, work, request)

    def _on_peer_lost(self, process_id: str) -> None:
        made = self._made.pop(process_id, None)
        if made is not None:
            self._beside(made.drop)

    def _beside(self, function: Callable[..., object], *args: Any) -> None:
        run_beside_in_time(self._messenger.call_later, function, *args)

    # -- threads of their own --------------------------------------------------------------------

    def _begin(self, request: Request) -> None:
        wanted: BeginTrace = request.head
        for driver_id, other in list(self._made.items()):
            if other.trace.file is None and driver_id != request.peer_id:
                problem = f"this job is traced already, by '{other.driver}' to {other.about.path}"
                raise ConfigError(f"{problem}: that trace is to be stopped first")
        before = self._made.pop(request.peer_id, None)
        if before is not None:  # it has its file, or was interrupted when it began that one
            before.drop()
        folder = folder_of(f"{secrets.token_hex(8)}file", self._messenger.endpoint.machine_id)
        lock_fd = hold_folder(folder)
        try:
            trace = self._session.service(TraceService).begin(folder / _FILE, wanted.max_bytes)
        except BaseException:
            os.close(lock_fd)
            drop_span_files(folder)
            raise
        made = _Made(wanted, request.peer_name, trace, lock_fd)
        self._made[request.peer_id] = made
        self._session.service(TraceService).wait_until_begun(TOLD_S)
        if not request.reply(None) or request.peer_id in self._messenger.peers.lost:
            self._on_peer_lost(request.peer_id)

    def _end(self, request: Request) -> None:
        wanted: EndTrace = request.head
        request.reply(self._of(request).trace.stop(wanted.timeout_s).content)

    def _read(self, request: Request) -> None:
        wanted: ReadTrace = request.head
        with self._of(request).trace.path.open("rb") as file:
            file.seek(wanted.start)
            request.reply(None, [file.read(PART_BYTES)])

    def _drop(self, request: Request) -> None:
        made = self._made.pop(request.peer_id, None)
        if made is not None:
            made.drop()
        request.reply(None)

    def _of(self, request: Request) -> _Made:
        made = self._made.get(request.peer_id)
        if made is None:
            raise ClusterError("this trace is over: its job server has dropped it")
        return made


def _answered(work: Callable[[Request], None], request: Request) -> None:
    try:
        work(request)
    except BaseException as error:  # noqa: BLE001 - it belongs to the caller
        request.fail(error)


class DetachedTraces:
    """What this driver has the job server trace; a service of its session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # The last one, until its file is written; and whether the job server has not ended it.
        self._trace: JobTrace | None = None
        self._goes_on = False
        session.on_close_first(self.stop)

    def begin(self, path: str | os.PathLike[str], max_bytes: int, opened: BinaryIO | None = None) -> JobTrace:
        """Write a timeline of all processes: calls, phases, items from put to get, weights, waits, events.

        Raises:
            ConfigError: the job is traced already, or nothing fits into `max_bytes`.
            OSError: the file cannot be written.
            CommError: the job server does not answer.
        """
        if self._trace is not None and self._goes_on:
            raise ConfigError(
                f"this driver traces the job already, to {self._trace.path}: stop that trace first"
            )
        file = Path(path).absolute()
        with (
            nullcontext(opened) if opened is not None else open(file, "ab", opener=private_file) as now
        ):  # and not when all is over
            now.truncate(0)
        self._ask(BEGIN_TRACE, BeginTrace(str(file), max_bytes), None, ANSWER_TIMEOUT_S)
        self._trace, self._goes_on = JobTrace(file, partial(self._finish, file)), True
        return self._trace

    def stop(self) -> None:
        """Before this driver, or the job, ends: end what goes on, and write its file."""
        trace, self._trace = self._trace, None
        if trace is not None and not self._session.failure:
            trace.stop(CLOSING_S)

    def _finish(self, path: Path, timeout_s: float) -> TraceFile:
        deadline = time.monotonic() + timeout_s
        ended: TraceContent = self._ask(END_TRACE, EndTrace(timeout_s), TraceContent, timeout_s).head
        self._goes_on = False
        with opened_file(path) as file:
            for start in range(0, ended.size_bytes, PART_BYTES):
                left_s = max(1.0, deadline - time.monotonic())
                file.write(self._ask(READ_TRACE, ReadTrace(start), None, left_s).frames[0])
        self._session.messenger.notify(self._session.home, DROP_TRACE, None)
        self._trace = None
        return trace_file(path, ended)

    @awaited(lambda _local: Wait(IDLE, "a trace"))
    def _ask(self, service: str, head: Any, reply_type: Any, timeout_s: float) -> Reply:
        messenger, home = self._session.messenger, self._session.home
        limit_s = timeout_s + ANSWER_TIMEOUT_S
        asked: Promise[Reply] = messenger.request(
            home, service, head, timeout_s=limit_s, reply_type=reply_type
        )
        return asked.result()


@contextmanager
def wanted_trace_file(path: str | None = None) -> Iterator[BinaryIO | None]:
    """A block with the file of the trace that RLINF_TRACE wants, open before a job is begun; None if it wants none.

    What was in the file stays there until the trace is begun; if the block raises, a new file goes again.

    Args:
        path: the file that the config wants, whose folder is made; the variable goes before it.

    Raises:
        OSError: the file cannot be written.
    """
    if named := wanted_trace():
        path = named
    if not path:
        yield None
        return
    if not named:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    is_new = not Path(path).exists()
    with open(path, "ab", opener=private_file) as file:
        try:
            yield file
        except BaseException:
            if is_new:
                Path(path).unlink(missing_ok=True)
            raise


def begin_wanted_trace(session: Session, file: BinaryIO) -> None:
    """Trace the job for as long as this driver takes part in it.

    Raises:
        ConfigError, OSError, CommError: as of `DetachedTraces.begin`.
    """
    try:
        session.service(DetachedTraces).begin(file.name, MAX_BYTES, file)
    except ConfigError as error:
        raise ConfigError(f"{TRACE_VARIABLE}={file.name}: {error}; or leave {TRACE_VARIABLE} away") from error
