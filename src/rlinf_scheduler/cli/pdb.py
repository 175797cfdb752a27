"""`rlinf pdb`: this terminal for the debugger of a rank that is at a breakpoint."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import socket
from pathlib import Path
from typing import Annotated

import typer

from rlinf_scheduler.cli.common import WRONG_QUESTION

_STDIN = 0


def pdb(
    path: Annotated[Path, typer.Argument(help="The socket that the rank has named.")],
) -> None:
    """Debug a rank of this machine that is at a `breakpoint()`; it goes on at `continue`, or when this ends."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError as error:
            typer.echo(f"{path}: no rank is at a breakpoint there: {error.strerror or error}", err=True)
            raise typer.Exit(WRONG_QUESTION) from error
        # The rank is gone, or Ctrl-C.
        with contextlib.suppress(OSError, KeyboardInterrupt):
            _talk(connection)


def _talk(connection: socket.socket) -> None:
    """Carry what is typed and what is answered until the rank ends it.

    By one thread: one that reads the terminal could not be ended.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    awaited: list[int] = [connection.fileno(), _STDIN]
    while True:
        ready, _, _ = select.select(awaited, [], [])
        if connection.fileno() in ready:
            data = connection.recv(4096)
            typer.echo(decoder.decode(data, final=not data), nl=False)
            if not data:
                return
        elif typed := _typed():
            connection.sendall(typed)
        else:
            awaited.remove(_STDIN)
            connection.shutdown(socket.SHUT_WR)


def _typed() -> bytes:
    try:
        return os.read(_STDIN, 4096)
    except OSError:  # the terminal is gone
        return b""
