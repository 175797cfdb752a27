"""What commands share: options, exit codes, taking part in a job that runs, finding a cluster that does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from rlinf_scheduler.errors import SchedulerError

if TYPE_CHECKING:
    from rlinf_scheduler.session import Session
    from rlinf_scheduler.session.job_file import RunningJob

ANSWER_IS_NO = 1
WRONG_QUESTION = 2


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn the library's errors into one message on the error output, and exit code 2."""
    try:
        yield
    except SchedulerError as error:
        typer.echo(f"rlinf: {error}", err=True)
        raise typer.Exit(WRONG_QUESTION) from error


Job = Annotated[
    str | None,
    typer.Option(
        metavar="PID|NAME", help="Which job: its driver's process id, or its name if it outlives its drivers."
    ),
]
Address = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The cluster's head; else the one that runs here.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as data.")]
NodesTimeoutS = Annotated[float, typer.Option(min=0, help="How long to wait for nodes, in seconds.")]


# -- a job that runs ---------------------------------------------------------------------------------


@contextmanager
def attached(which: str | None, looker: str) -> Iterator[None]:
    """Take part in the job that `find_job` finds, under the name `looker` and this process's number."""
    # Sockets and keys take a while to load, and other commands do without them.
    from rlinf_scheduler.session.job_file import find_job  # noqa: PLC0415

    with find_job(which).attach(f"{looker}{os.getpid()}"):
        yield


@contextmanager
def looking_at(jobs: list[RunningJob], looker: str) -> Iterator[list[Session]]:
    """Take part in several jobs at once; give their sessions, in the same order.

    Of several, one that has just ended is left out, and one of another version, of which a line is said.

    Raises:
        ClusterError: none is of this program's version.
        CommError: none can be reached.
    """
    from rlinf_scheduler.errors import ClusterError, CommError  # noqa: PLC0415

    with ExitStack() as stack:
        sessions: list[Session] = []
        for place, job in enumerate(jobs):
            try:
                sessions.append(session := job.attach(f"{looker}{os.getpid()}"))
            except (ClusterError, CommError) as error:
                if place + 1 == len(jobs) and not sessions:
                    raise
                if isinstance(error, ClusterError):
                    left_out(error)
            else:
                stack.callback(session.close)
        yield sessions


def left_out(why: object) -> None:
    """Say why one of several jobs is not shown."""
    typer.echo(f"left out: {why}", err=True)


# -- a cluster that runs -----------------------------------------------------------------------------


NONE_FOUND = (
    "RAY_ADDRESS names no cluster, and none that was begun for all programs of this machine answers; one that a "
    "program simulates, or has begun for itself, is found by its address only"
)
HOW_TO = "`rlinf node start --head` begins one, `--address HOST:PORT` says where one is"
# A cluster that runs answers in milliseconds, and another one has no holds and no jobs.
ANSWER_S = 5.0


def running_cluster(address: str | None, timeout_s: float) -> str | None:
    """Where a cluster runs that can be joined; "" where none does, None where this process is in one.

    Raises:
        ClusterTimeout: nothing answers at the address that was given.
    """
    # Ray takes a second to load, and the other commands do without it.
    import ray  # noqa: PLC0415

    from rlinf_scheduler.ray_backend.addresses import LOCAL, find_address  # noqa: PLC0415

    if ray.is_initialized():
        return None
    found = find_address(address, None, timeout_s)
    return "" if found == LOCAL else found
