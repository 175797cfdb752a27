"""`rlinf weights`: which weights a running job has, and who reads how much of them from whom."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from rlinf_scheduler.cli.common import ANSWER_IS_NO, WRONG_QUESTION, AsJson, Job, attached, readable_errors
from rlinf_scheduler.wording import size_text, text_table

if TYPE_CHECKING:
    from rlinf_scheduler.weights import PublishedWeights

weights = typer.Typer(help="Show the weights of a running job, and who reads them from whom.")
# What is shown of weights: as data, and as lines.
_Look: TypeAlias = tuple[dict[str, Any], list[str]]
_FLOW = ("source", "bytes", "way", "by", "why")
Names = Annotated[list[str] | None, typer.Argument(help="Only these.")]


@weights.callback(invoke_without_command=True)
def show(context: typer.Context, as_json: AsJson = False, job: Job = None) -> None:
    """Show the weights of a job whose driver runs on this machine: sources, readers, what newer versions lack."""
    if context.invoked_subcommand is None:
        _show(None, as_json, job, _state)


@weights.command()
def plan(names: Names = None, as_json: AsJson = False, job: Job = None) -> None:
    """Show how much each process has read last from which others, and by which way."""
    _show(names, as_json, job, _plan)


def _show(
    names: list[str] | None, as_json: bool, job: str | None, look: Callable[[PublishedWeights], _Look]
) -> None:
    with readable_errors(), attached(job, "rlinf-weights:"):
        # These take a while to load, and other commands do without them.
        from rlinf_scheduler.session import current_session  # noqa: PLC0415
        from rlinf_scheduler.weights import published_weights  # noqa: PLC0415

        found = published_weights(current_session())
        if found and (unknown := [name for name in names or () if name not in found]):
            typer.echo(f"rlinf: {found.unknown(unknown[0])}", err=True)
            raise typer.Exit(WRONG_QUESTION)
        shown = {name: look(found[name]) for name in names or found if found}
    if as_json:
        typer.echo(json.dumps({name: data for name, (data, _) in shown.items()}, indent=2))
    else:
        lines = [line for name, (_, about) in shown.items() for line in (str(found[name]), *about)]
        typer.echo("\n".join(lines) or "the job has no weights")
    if not shown:
        raise typer.Exit(ANSWER_IS_NO)


def _state(each: PublishedWeights) -> _Look:
    readers, copies = each.readers, each.copies
    rows = [("source", process, size_text(size)) for process, size in each.sources.items()]
    rows += [("reader", process, f"version {version}") for process, version in sorted(readers.items())]
    for process, counts in sorted(copies.items()):
        rows += [("copies", process, f"{number} {how}") for how, number in sorted(counts.items())]
    data = {field: getattr(each, field) for field in each.__struct_fields__}
    return {**data, "readers": readers, "copies": copies}, list(text_table(rows)) if rows else []


def _plan(each: PublishedWeights) -> _Look:
    plan = each.plan()
    readers = {
        process: {
            "version": read.version,
            "flows": [
                dict(zip(_FLOW, (*flow, *carrier), strict=True))
                for flow, carrier in zip(read.flows, read.carriers, strict=True)
            ],
        }
        for process, read in plan.readers.items()
    }
    return {"name": plan.name, "readers": readers}, str(plan).splitlines()
