"""How another terminal finds a running job: a file of the driver's that only its user can read.

It lies in the private run directory of the driver's process, which the system unlocks however that process ends.
A process that can read it may take part in the job; it is of mode 0600, in a directory of mode 0700.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec

from rlinf_scheduler.comm import ClusterSecret, Endpoint
from rlinf_scheduler.comm.port_range import PortRange
from rlinf_scheduler.comm.rundir import JOB_NAME, living_drivers
from rlinf_scheduler.comm.transport.peer_session import GRACE_S
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.session.session import Session
from rlinf_scheduler.version import __version__
from rlinf_scheduler.wording import nearest_name, printable

_MAX_PROGRAM = 120


class RunningJob(msgspec.Struct, frozen=True):
    """A job that runs on this machine, as its driver describes it.

    Attributes:
        started: when it began, in seconds since 1970.
        key: what lets a process take part.
        ports: the first and the last of the ports that its processes take; None: any.
        unreachable_after_s: how long a process may be unreachable before it is dead, in seconds.
        version: of this package, as the driver has it.
        detached: the job's name, where it outlives its drivers, and its job server is what is called driver here; ""
            where not.
    """

    pid: int
    program: str
    started: float
    key: bytes
    home: Endpoint
    encryption: bool
    ports: PortRange | None = None
    unreachable_after_s: float = GRACE_S
    version: str = ""
    detached: str = ""

    def __repr__(self) -> str:
        return f"<Job {self.pid}: {self.program}>"

    def attach(self, name: str, host: str = "127.0.0.1") -> Session:
        """Take part in it as a process called `name`.

        Args:
            host: this machine's address, for those who want something of this process.

        Raises:
            CommError: its driver cannot be reached.
            ClusterError: it has another version of this package: what processes say to each other differs.
        """
        if self.version != __version__:
            raise ClusterError(
                f"the job of process {self.pid} ({self.program}) runs on version {self.version or 'unknown'} of "
                f"rlinf-scheduler, and this program has {__version__}: use the same one in both"
            )
        secret = ClusterSecret(self.key)
        return Session(
            secret,
            name,
            home=self.home,
            host=host,
            tcp=bool(self.home.tcp_address),
            encryption=self.encryption,
            ports=self.ports,
            unreachable_after_s=self.unreachable_after_s,
        )


def own_program() -> str:
    """What runs in this process, as it was called."""
    return " ".join(sys.orig_argv)[:_MAX_PROGRAM]


def announce(session: Session, *, encryption: bool, program: str = "", detached: str = "") -> RunningJob:
    """Let other terminals of this user find the job whose home this is.

    Args:
        program: what runs here; "" for this program.
        detached: the job's name, if it outlives its drivers.
    """
    job = RunningJob(
        os.getpid(),
        program or own_program(),
        time.time(),
        session.secret.exported(),
        session.messenger.endpoint,
        encryption,
        session.messenger.ports,
        session.unreachable_after_s,
        __version__,
        detached,
    )
    path = session.messenger.run_directory / JOB_NAME
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.msgpack.encode(job))
    return job


def running_jobs() -> list[RunningJob]:
    """The jobs of this user whose drivers run on this machine, the newest first."""
    found = []
    for directory in living_drivers():
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found.append(msgspec.msgpack.decode(_read(directory / JOB_NAME), type=RunningJob))
    return sorted(found, key=lambda job: -job.started)


def find_job(which: int | str | None = None) -> RunningJob:
    """The job of a driver, by its process's id, or a job that outlives its drivers, by its name or its job server's id.

    Args:
        which: that; of a process with several jobs its number and the beginning of the job's own, as messages show them
            (its number alone means the newest); None: the one job that there is.

    Raises:
        ClusterError: there is none, or there are several; the text names them.
    """
    jobs = running_jobs()
    if which is not None:
        return _called(str(which), jobs)
    if len(jobs) == 1:
        return jobs[0]
    if not jobs:
        raise ClusterError("no job of yours has its driver on this machine")
    raise ClusterError(
        f"there are several jobs; say which, `--job {job_names(jobs)[0]}` for the newest:{_known(jobs)}"
    )


def _called(wanted: str, jobs: list[RunningJob]) -> RunningJob:
    of_process = [
        job for job, name in zip(jobs, job_names(jobs), strict=True) if wanted in (str(job.pid), name)
    ]
    if of_process:
        return of_process[0]  # the newest, where a process has had several
    named = [job for job in jobs if job.detached and job.detached == wanted]
    if len(named) > 1:  # each of another Ray
        problem = f"several jobs are called '{printable(wanted)}'; say which by its job server's process id"
        raise ClusterError(f"{problem}, `--job {named[0].pid}` for one:{_known(named)}")
    if named:
        return named[0]
    unknown = (
        f"no job's driver is process {wanted} of this machine"
        if wanted.isdecimal()
        else f"no job of this machine is called '{printable(wanted)}'"
    )
    near = nearest_name(wanted, [job.detached for job in jobs if job.detached])
    hint = f"; did you mean '{near}'?" if near else ""
    raise ClusterError(f"{unknown}{hint}; there are{_known(jobs) or ' none'}")


def _known(jobs: list[RunningJob]) -> str:
    shown = zip(job_names(jobs), jobs, strict=True)
    return "".join(f"\n  {name}: {job.program}" for name, job in shown)


def job_names(jobs: list[RunningJob]) -> list[str]:
    """Return what `--job` takes for each of all jobs: its process's id, with its own where that has several."""
    num_jobs = Counter(job.pid for job in jobs)
    return [
        str(job.pid) if num_jobs[job.pid] == 1 else f"{job.pid}.{job.home.process_id[:6]}" for job in jobs
    ]


def _read(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as file:
        return file.read()
