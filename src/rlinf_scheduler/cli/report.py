"""`rlinf why` and `rlinf report`: why a running job waits, and where its time went."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from rlinf_scheduler.cli.common import AsJson, Job, readable_errors


def why(as_json: AsJson = False, job: Job = None) -> None:
    """Say who waits for whom in a job whose driver runs on this machine, the most probable culprit first."""
    # Sockets and keys take a while to load, and other commands do without them.
    from rlinf_scheduler.observe.why import why_of_job  # noqa: PLC0415
    from rlinf_scheduler.session.job_file import find_job  # noqa: PLC0415

    with readable_errors():
        found = why_of_job(find_job(job), f"rlinf-why:{os.getpid()}")
        typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))


def report(
    step: Annotated[
        str | None, typer.Option(help="The method with which each step of the job ends, as group.method.")
    ] = None,
    as_json: AsJson = False,
    job: Job = None,
) -> None:
    """Say where the time goes in a job whose driver runs on this machine: phases, waits, what its steps wait for."""
    # Sockets and keys take a while to load, and other commands do without them.
    from rlinf_scheduler.observe.report import report_of_job  # noqa: PLC0415
    from rlinf_scheduler.session.job_file import find_job  # noqa: PLC0415

    with readable_errors():
        found = report_of_job(find_job(job), f"rlinf-report:{os.getpid()}", step)
        typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
