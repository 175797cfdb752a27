"""`rlinf replay`: one rank of a job, run again alone in this process, from what was recorded of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlinf_scheduler.cli.common import ANSWER_IS_NO, WRONG_QUESTION


def replay(
    path: Annotated[
        Path, typer.Argument(help="The recording, or the folder of `launch(..., record=folder)`.")
    ],
    program: Annotated[
        str, typer.Argument(help="Where the worker's class is, file.py:Class, if it is another than then.")
    ] = "",
    rank: Annotated[str, typer.Option(help="Which rank, group:rank, where there are several.")] = "",
    method: Annotated[str, typer.Option(help="Run only calls of this method, after __init__.")] = "",
    check: Annotated[
        bool, typer.Option("--check", help="Compare what it gives away with what it gave then.")
    ] = False,
) -> None:
    """Run one rank again: its calls in their order, with what it got, received and fetched then.

    Nothing that it puts or sends leaves this process, and it runs on the main thread, so that a debugger can stop it.
    Read only recordings that you trust: they are unpickled. What the rank raises now and did not raise then comes
    through as it is. Exits with 1 if it does something else than it did then.
    """
    # What runs a worker takes a while to load, and other commands do without it.
    from rlinf_scheduler.errors import RecordingError, ReplayError  # noqa: PLC0415
    from rlinf_scheduler.worker.replay import Replay  # noqa: PLC0415

    try:
        with Replay(path, rank, program=program, method=method, check=check) as replayed:
            for note in replayed.notes:
                typer.echo(f"rlinf: {note}", err=True)
            num_notes = len(replayed.notes)
            for call in replayed.run():
                typer.echo(call)
            for note in replayed.notes[num_notes:]:
                typer.echo(f"rlinf: {note}", err=True)
    except RecordingError as error:
        typer.echo(f"rlinf: {error}", err=True)
        raise typer.Exit(WRONG_QUESTION) from error
    except ReplayError as error:
        typer.echo(f"rlinf: {error}", err=True)
        raise typer.Exit(ANSWER_IS_NO) from error
