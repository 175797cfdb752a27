"""Jobs that outlive their drivers, as programs and people use them: begun, taken part in, listed, ended."""

from __future__ import annotations

import logging
import os
import pickle
import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

import msgspec

from rlinf_scheduler.comm import local_machine_id
from rlinf_scheduler.comm.directory import ANSWER_TIMEOUT_S
from rlinf_scheduler.config import ClusterConfig
from rlinf_scheduler.errors import ClusterError, CommError, SchedulerError
from rlinf_scheduler.extension import extension_named
from rlinf_scheduler.host.actor_spec import withdraw_of_the_dead
from rlinf_scheduler.host.progress import SlowStep
from rlinf_scheduler.job_server import JobServer, JobServerSpec
from rlinf_scheduler.observe.job_trace import JobTrace, wanted_trace
from rlinf_scheduler.opening import DRIVER_NAME, leave_when_interrupted
from rlinf_scheduler.ray_backend.backend import own_address
from rlinf_scheduler.ray_backend.ending import exit_on_sigterm
from rlinf_scheduler.ray_backend.job_servers import (
    by_force,
    detached_names,
    join_lasting,
    kill_job_server,
    record_of,
    records_of,
    start_job_server,
    wait_for_job_server_end,
)
from rlinf_scheduler.rooms import has_room, of_room
from rlinf_scheduler.session import Session, set_current
from rlinf_scheduler.session.job_file import RunningJob, own_program
from rlinf_scheduler.worker.group import WorkerGroup
from rlinf_scheduler.worker.home_wire import DESCRIBE, STOP, JobDescription, NodesKnown, StopJob
from rlinf_scheduler.worker.remote_home import STOP_WITHIN_S, AttachedDriver, RemoteHome

T = TypeVar("T")

_LOOKER = "rlinf-jobs"
_TRACES = "tracing.detached:DetachedTraces"
# A job server that has not answered a look by then is stopped or stuck, as far as one can tell.
JOB_SERVER_ANSWERS_S = 5.0
# One that has answered has at least so long to say more.
_DESCRIBES_S = 0.5
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DetachedJobReport:
    """A job that outlives its drivers.

    Attributes:
        job: its job server: where and since when it runs; None if that is not known.
        now: who takes part in it; likewise.
        problem: why one of them is not known; "" if both are.
    """

    name: str
    job: RunningJob | None
    now: JobDescription | None
    problem: str = ""


def take_part(
    name: str,
    begins: ClusterConfig | None,
    num_nodes: int | None,
    address: str | None,
    timeout_s: float,
    log_folder: str = "",
) -> Session:
    """The session of a driver in a job that outlives it.

    Args:
        name: the job's.
        begins: what the job is told if it has to be begun; None: it must run.
        num_nodes: how many nodes there must be then.
        address: of the Ray; None: the one that runs here.
        timeout_s: how long all of it may take, in seconds.
        log_folder: where ranks have files of what they print, if it has to be begun; "": a folder of the job's own.

    Raises:
        ClusterTimeout: the Ray, its nodes or the job server do not answer in time.
        ClusterError: there is no Ray to join, or no such job.
        OSError: RLINF_TRACE names a file that cannot be written; no job was begun.
    """
    deadline = time.monotonic() + timeout_s
    step = SlowStep(f"taking part in job '{name}'", "the Ray to answer")
    with _wanted_trace_file(None if begins is None else begins.trace_file) as trace, step.told():
        engine = join_lasting(address, timeout_s)
        restore = exit_on_sigterm()
        try:
            step.waits_for = "its job server to be there, and to answer"
            left_s = deadline - time.monotonic()
            if begins is None:
                record = record_of(name, left_s)
            else:
                about = pickle.dumps(begins), log_folder, extension_named()
                order = JobServerSpec(name, own_program(), num_nodes, left_s, *about)
                record = start_job_server(JobServer, name, pickle.dumps(order), left_s)
            session = _attach(name, record, trace, engine.stop, restore)
        except BaseException:
            engine.stop()
            restore()
            raise
    leave_when_interrupted(session)
    return session


def nodes_of(session: Session, refresh_s: float | None = None) -> NodesKnown:
    """Return what the job server of this process's job knows of the nodes."""
    return session.service(RemoteHome).nodes(refresh_s)


def attach(session: Session, name: str, worker_class: type[T] | None) -> WorkerGroup[T]:
    """A group of a job that outlives its drivers; see `Cluster.attach`."""
    return session.service(RemoteHome).attach(name, worker_class)


def trace(session: Session, path: str | os.PathLike[str], max_bytes: int) -> JobTrace:
    """Trace a job that outlives its drivers; see `Cluster.trace`."""
    _driver(session)
    begun: JobTrace = session.service(of_room(_TRACES)).begin(path, max_bytes)
    return begun


def end_job(session: Session) -> None:
    """End the job that this process's driver takes part in, and leave it.

    Raises:
        CommError: the job server does not answer.
        ClusterError: it has not ended; or this process is no driver of such a job.
    """
    attached = _driver(session)
    try:
        if has_room("tracing"):
            session.service(of_room(_TRACES)).stop()
    except (OSError, SchedulerError):  # the job ends all the same
        _log.warning("job '%s' is stopped, and its trace could not be written", attached.name, exc_info=True)
    attached.stop_job(_who())
    ended = wait_for_job_server_end(attached.name, STOP_WITHIN_S)
    session.close("the job was stopped")
    _check_ended(attached.name, ended=ended)


def detached_jobs(address: str | None, timeout_s: float) -> list[DetachedJobReport]:
    """The detached jobs on a Ray, by name.

    Args:
        address: of the Ray; None: the one that runs here.
        timeout_s: how long all of it may take, in seconds; job servers have `JOB_SERVER_ANSWERS_S` at most.

    Raises: as of `take_part`.
    """
    deadline = time.monotonic() + timeout_s

    def look() -> list[DetachedJobReport]:
        withdraw_of_the_dead()
        until = min(deadline, time.monotonic() + JOB_SERVER_ANSWERS_S)
        records = records_of(detached_names(), until - time.monotonic())
        return [_report(name, record, until) for name, record in records.items()]

    return _with_ray(address, timeout_s, look)


def stop_detached_job(name: str, address: str | None, timeout_s: float, *, force: bool = False) -> None:
    """End a job of a Ray from outside.

    Args:
        name: the job's.
        address: of the Ray; None: the one that runs here.
        timeout_s: how long the Ray may take to answer, in seconds.
        force: kill its job server, without which all of it ends by itself; also where that is stopped or stuck.

    Raises:
        ClusterError: there is none of that name; or it has not ended, or its job server does not answer.
    """

    def stop() -> None:
        record = record_of(name, min(timeout_s, ANSWER_TIMEOUT_S))
        try:
            with _decoded(record).attach(f"{_LOOKER}:{os.getpid()}") as session:
                session.messenger.request(
                    session.home, STOP, StopJob(_who()), timeout_s=STOP_WITHIN_S, reply_type=None
                ).result()
        except (ClusterError, CommError) as error:
            raise ClusterError(f"job '{name}' has not ended: {error}; {by_force(name)}") from error
        _check_ended(name, ended=wait_for_job_server_end(name, STOP_WITHIN_S))

    def kill() -> None:
        ended = kill_job_server(name, STOP_WITHIN_S)
        withdraw_of_the_dead()
        if not ended:
            raise ClusterError(
                f"Ray has not ended the job server of job '{name}' within {STOP_WITHIN_S:.0f} s"
            )

    _with_ray(address, timeout_s, kill if force else stop)


def _driver(session: Session) -> AttachedDriver:
    attached = session.fact(AttachedDriver)
    if attached is None:
        raise ClusterError(f"'{session.name}' is no driver of a job that outlives its drivers")
    return attached


def _wanted_trace_file(path: str | None) -> AbstractContextManager[BinaryIO | None]:
    if not (path or wanted_trace()):
        return nullcontext()
    file: AbstractContextManager[BinaryIO | None] = of_room("tracing.detached:wanted_trace_file")(path)
    return file


def _attach(name: str, record: bytes, trace: BinaryIO | None, *at_last: Callable[[], None]) -> Session:
    job = _decoded(record)
    if job.home.machine_id != local_machine_id() and not job.home.tcp_address:
        problem = f"job '{name}' was begun when its cluster was one machine, and listens to its own user there alone"
        raise ClusterError(f"{problem}: stop it and begin it again")
    session = job.attach(f"{DRIVER_NAME}@{platform.node()}.{os.getpid()}", own_address())
    for step in at_last:
        session.on_close_last(step)
    try:
        session.provide(AttachedDriver, AttachedDriver(session, name))
        set_current(session)
        if trace is not None:
            of_room("tracing.detached:begin_wanted_trace")(session, trace)
    except BaseException:
        session.close()
        raise
    return session


def _report(name: str, record: bytes | None, until: float) -> DetachedJobReport:
    if record is None:
        return DetachedJobReport(name, None, None, "its job server does not answer")
    job: RunningJob | None = None
    now: JobDescription | None = None
    problem = ""
    try:
        job = _decoded(record)
        with job.attach(f"{_LOOKER}:{os.getpid()}") as session:
            left_s = max(until - time.monotonic(), _DESCRIBES_S)
            asked = session.messenger.request(
                session.home, DESCRIBE, None, timeout_s=left_s, reply_type=JobDescription
            )
            now = asked.result().head
    except (
        ClusterError,
        CommError,
    ) as error:  # of another version, say; the other jobs are told of all the same
        problem = str(error)
    return DetachedJobReport(name, job, now, problem)


def _with_ray(address: str | None, timeout_s: float, work: Callable[[], T]) -> T:
    engine = join_lasting(address, timeout_s)
    try:
        return work()
    finally:
        engine.stop()


def _decoded(record: bytes) -> RunningJob:
    try:
        return msgspec.msgpack.decode(record, type=RunningJob)
    except msgspec.MsgspecError as error:
        problem = (
            f"what its job server says cannot be read ({error}): it has another version of rlinf-scheduler"
        )
        raise ClusterError(f"{problem}; use the same one in both") from error


def _who() -> str:
    return f"{own_program()} (process {os.getpid()} on {platform.node()})"


def _check_ended(name: str, *, ended: bool) -> None:
    if not ended:
        problem = f"the job server of job '{name}' has not ended after {STOP_WITHIN_S:.0f} s"
        raise ClusterError(f"{problem}; {by_force(name)}")
