"""Taking part in a running job of this user's, as a process that only looks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rlinf_scheduler.session import Session
    from rlinf_scheduler.session.job_file import RunningJob


@contextmanager
def attached(which: str | None, looker: str) -> Iterator[None]:
    """A block in which this process takes part in a job.

    Args:
        which: as of `find_job`.
        looker: what this process is called there, without its number.
    """
    # Sockets and keys take a while to load, and other commands do without them.
    from rlinf_scheduler.session.job_file import find_job  # noqa: PLC0415

    with find_job(which).attach(f"{looker}{os.getpid()}"):
        yield


@contextmanager
def looking_at(jobs: list[RunningJob], looker: str) -> Iterator[list[Session]]:
    """A block in which this process takes part in several jobs at once; of each its session, in the same order.

    Of several, one that has just ended is left out, and one of another version, of which a line is said.

    Args:
        jobs: which.
        looker: what this process is called there, without its number.

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
