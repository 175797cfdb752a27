"""`rlinf weights`: which weights a running job has, and who reads how much of them from whom."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlinf_scheduler.cli.attached import attached
from rlinf_scheduler.cli.exits import ANSWER_IS_NO, readable_errors
from rlinf_scheduler.cli.options import AsJson, Job

if TYPE_CHECKING:
    from rlinf_scheduler.weights import PublishedWeights

weights = typer.Typer(help="Show the weights of a running job, and who reads them from whom.")
Names = Annotated[list[str] | None, typer.Argument(help="Only these.")]


@weights.callback(invoke_without_command=True)
def show(context: typer.Context, as_json: AsJson = False, job: Job = None) -> None:
    """Show the weights of a job whose driver runs on this machine: versions, and what newer ones lack."""
    if context.invoked_subcommand is None:
        _show(None, as_json, job, lambda each: each)


@weights.command()
def plan(names: Names = None, as_json: AsJson = False, job: Job = None) -> None:
    """Show how much each process has read last from which others, and by which way."""
    _show(names, as_json, job, lambda each: each.plan())


def _show(
    names: list[str] | None, as_json: bool, job: str | None, look: Callable[[PublishedWeights], Any]
) -> None:
    with readable_errors(), attached(job, "rlinf-weights:"):
        # These take a while to load, and other commands do without them.
        import msgspec  # noqa: PLC0415

        from rlinf_scheduler.session import current_session  # noqa: PLC0415
        from rlinf_scheduler.weights import published_weights  # noqa: PLC0415

        found = published_weights(current_session())
        shown = {name: look(each) for name, each in found.items() if name in (names or found)}
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(shown), indent=2))
    else:
        typer.echo("\n".join(_lines(found, shown)) or "the job has no weights of that name")
    if not shown:
        raise typer.Exit(ANSWER_IS_NO)


def _lines(found: Mapping[str, PublishedWeights], shown: Mapping[str, Any]) -> list[str]:
    return [line for name, each in shown.items() for line in dict.fromkeys([str(found[name]), str(each)])]
