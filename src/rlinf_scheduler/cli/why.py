"""`rlinf why`: who waits for whom in a running job, and why."""

from __future__ import annotations

import json
import os

import typer

from rlinf_scheduler.cli.exits import readable_errors
from rlinf_scheduler.cli.options import AsJson, Job


def why(as_json: AsJson = False, job: Job = None) -> None:
    """Say who waits for whom in a job whose driver runs on this machine, the most probable culprit first."""
    # Sockets and keys take a while to load, and other commands do without them.
    from rlinf_scheduler.observe.why import why_of_job  # noqa: PLC0415
    from rlinf_scheduler.session.job_file import find_job  # noqa: PLC0415

    with readable_errors():
        found = why_of_job(find_job(job), f"rlinf-why:{os.getpid()}")
        typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
