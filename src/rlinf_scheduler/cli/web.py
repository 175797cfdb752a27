"""`rlinf web`: the page of a running job, for a browser."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from rlinf_scheduler.cli.common import Job, looking_at, readable_errors

if TYPE_CHECKING:
    from rlinf_scheduler.session import Session

# What this process is called in the job, before its number.
LOOKER = "rlinf-web-"


def web(
    job: Job = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of this machine; 0: any that is free.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as data.")] = False,
) -> None:
    """Serve a page that shows a job whose driver runs on this machine, live, until the job ends or Ctrl-C.

    It listens on the loopback address alone, and lets in who has the address that is printed.
    """
    # Sockets and keys take a while to load, and other commands do without them.
    from rlinf_scheduler.session.job_file import find_job  # noqa: PLC0415
    from rlinf_scheduler.web.server import serve_job  # noqa: PLC0415

    with readable_errors():
        found = find_job(job)
        with looking_at([found], LOOKER) as (session,):
            over = _end_of(session)
            url = serve_job(session, port).url
            about = f"job {found.pid} ({found.program}): {url}"
            typer.echo(json.dumps({"job": found.pid, "url": url}) if as_json else about)
            with contextlib.suppress(KeyboardInterrupt):
                over.wait()
                typer.echo("the job has ended", err=True)


def _end_of(session: Session) -> threading.Event:
    """What is set when the job ends, or this process has left it."""
    over = threading.Event()

    def on_lost(process_id: str) -> None:
        if process_id == session.home.process_id:
            over.set()

    session.messenger.on_peer_lost(on_lost)
    session.on_close(over.set)
    return over
