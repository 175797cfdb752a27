"""`rlinf lineage`: which items went into a training step, and what these were made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rlinf_scheduler.cli.common import ANSWER_IS_NO, AsJson, readable_errors


def lineage(
    paths: Annotated[list[Path], typer.Argument(help="Recordings of channels, and folders of such (*.rec).")],
    step: Annotated[int | None, typer.Option(help="Which step; without, which steps there are.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say which items a training step took, with the versions that made them, and what they were made of.

    Read only recordings that you trust: items that were recorded with their bytes are unpickled.
    """
    # numpy takes a while to load, and other commands do without it.
    from rlinf_scheduler.tape.lineage import Recordings, versions_text  # noqa: PLC0415

    with readable_errors(), Recordings(paths) as recordings:
        for note in recordings.notes:
            typer.echo(f"rlinf: {note}", err=True)
        steps = recordings.steps
        if step is None:
            lines = [f"step {each}: {versions_text(recordings.versions(each))}" for each in steps]
            typer.echo(json.dumps(steps) if as_json else "\n".join(lines) or _what_there_is(steps))
            return
        found = recordings.step(step)
    if found is None:
        typer.echo(f"nothing is recorded of step {step}; {_what_there_is(steps)}", err=True)
        raise typer.Exit(ANSWER_IS_NO)
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))


def _what_there_is(steps: list[int]) -> str:
    if not steps:
        return "no step was said: see Worker.at_step"
    return f"the steps that are: {steps[0]} to {steps[-1]}, {len(steps)} in all"
