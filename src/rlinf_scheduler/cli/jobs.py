"""`rlinf jobs`: the jobs that run, those that outlive their drivers among them; ends one of these."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlinf_scheduler.cli.common import (
    ANSWER_IS_NO,
    ANSWER_S,
    HOW_TO,
    Address,
    AsJson,
    readable_errors,
    running_cluster,
)
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.wording import clock_text, counted, printable

if TYPE_CHECKING:
    from rlinf_scheduler.detached import DetachedJobReport
    from rlinf_scheduler.session.job_file import RunningJob

jobs = typer.Typer(help="Show the jobs that run, and end those that outlive their drivers.")
TimeoutS = Annotated[float, typer.Option(min=0, help="How long to wait for the cluster, in seconds.")]


@jobs.callback(invoke_without_command=True)
def show(
    context: typer.Context,
    address: Address = None,
    timeout_s: TimeoutS = 120.0,
    as_json: AsJson = False,
) -> None:
    """Show the jobs of a cluster that outlive their drivers, and those whose drivers run on this machine."""
    if context.invoked_subcommand is not None:
        return
    deadline = time.monotonic() + timeout_s
    with readable_errors():
        # Sockets and Ray take a while to load, and other commands do without them.
        from rlinf_scheduler.session.job_file import job_names, running_jobs  # noqa: PLC0415

        found = running_cluster(address, min(timeout_s, ANSWER_S))
        detached = _detached(found, deadline - time.monotonic()) if found != "" else []
        homes = {report.job.home for report in detached if report.job is not None}
        # Of a job server that does not answer the file that it left here tells.
        silent = {report.name for report in detached if report.job is None}
        running = running_jobs()
        others = {
            name: job
            for name, job in zip(job_names(running), running, strict=True)
            if job.home not in homes and job.detached not in silent
        }
    if as_json:
        typer.echo(
            json.dumps({"kept": list(map(_as_data, detached)), "others": _others_as_data(others)}, indent=2)
        )
    elif not detached and not others:
        typer.echo("no job runs here")
        raise typer.Exit(ANSWER_IS_NO)
    else:
        typer.echo("\n".join([*_lines(detached), *(_other(name, job) for name, job in others.items())]))


@jobs.command()
def stop(
    name: Annotated[str, typer.Argument(help="The job's name.")],
    address: Address = None,
    timeout_s: TimeoutS = 120.0,
    force: Annotated[
        bool,
        typer.Option("--force", help="Kill its job server, also one that is stopped or does not answer."),
    ] = False,
) -> None:
    """End a job that outlives its drivers: its groups, its channels, and the parts of all drivers in it.

    In order: its ranks may answer what they are at, for some seconds. By force its job server is killed, and what
    belongs to the job ends as it notices: ranks within seconds.
    """
    with readable_errors():
        from rlinf_scheduler.detached import stop_detached_job  # noqa: PLC0415 - as above

        found = running_cluster(address, min(timeout_s, ANSWER_S))
        if found == "":
            raise ClusterError(f"no cluster runs here; {HOW_TO}")
        stop_detached_job(name, found, timeout_s, force=force)
    typer.echo(f"job '{name}' has ended")


def _detached(address: str | None, timeout_s: float) -> list[DetachedJobReport]:
    from rlinf_scheduler.detached import detached_jobs  # noqa: PLC0415 - as above

    return detached_jobs(address, timeout_s)


def _lines(detached: list[DetachedJobReport]) -> Iterator[str]:
    for report in detached:
        if report.job is None:
            force = f"`rlinf jobs stop {shlex.quote(report.name)} --force` ends it"
            yield f"{report.name}: {printable(report.problem)}; {force}"
            continue
        yield f"{report.name}: served by process {report.job.pid} since {clock_text(report.job.started)}"
        if report.now is None:
            yield f"  who takes part is not known: {printable(report.problem)}"
            continue
        for driver in report.now.drivers:
            program = printable(driver.program)
            yield f"  driver {driver.pid} on {driver.host} since {clock_text(driver.since)}: {program}"
        for group in report.now.groups:
            ends = f"ends with {group.ends_with}" if group.ends_with else "detached"
            yield f"  group '{group.name}': {counted(group.world_size, 'rank')}, {ends}"


def _other(name: str, job: RunningJob) -> str:
    process, since = f"process {name}", clock_text(job.started)
    if job.detached:
        served = f"{process} has served job '{job.detached}' on another cluster since {since}"
        return f"{served}; `rlinf jobs --address` shows that"
    return f"{process} has run a job of its own since {since}, until it ends: {printable(job.program)}"


def _as_data(report: DetachedJobReport) -> dict[str, Any]:
    import msgspec  # noqa: PLC0415 - as above

    now: dict[str, Any] = {} if report.now is None else msgspec.to_builtins(report.now)
    job = report.job
    about = {"name": report.name, "pid": job and job.pid, "started": job and job.started}
    return {**about, **now, **({"problem": report.problem} if report.problem else {})}


def _others_as_data(others: dict[str, RunningJob]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "pid": job.pid,
            "started": job.started,
            "program": job.program,
            **({"kept": job.detached} if job.detached else {}),
        }
        for name, job in others.items()
    ]
