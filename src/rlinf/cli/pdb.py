"""`rlinf pdb`: this terminal for the debugger of a rank that is at a breakpoint."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from rlinf.cli.exits import WRONG_QUESTION


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
        threading.Thread(target=_send, args=(connection,), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            while data := connection.recv(4096):
                typer.echo(data.decode(errors="replace"), nl=False)


def _send(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        for line in sys.stdin:
            connection.sendall(line.encode())
        connection.shutdown(socket.SHUT_WR)
