"""Exit codes: 0 done, 1 the answer is no, 2 the question was wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from rlinf_scheduler.errors import SchedulerError

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
