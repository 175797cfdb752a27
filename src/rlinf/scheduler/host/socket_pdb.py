"""The debugger of Python's library on a connection."""

from __future__ import annotations

import pdb
import socket
from contextlib import suppress


class SocketPdb(pdb.Pdb):
    """A debugger on a connection; when that ends, the program goes on."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._connection = connection
        reader, writer = connection.makefile("r"), connection.makefile("w")
        super().__init__(stdin=reader, stdout=writer, nosigint=True, readrc=False)
        self.prompt = "(rlinf) "

    def do_continue(self, arg: str) -> bool | None:
        """Go on, without a debugger."""
        done = super().do_continue(arg)
        with suppress(OSError, ValueError):
            self.stdout.flush()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        return done

    do_c = do_cont = do_quit = do_q = do_exit = do_EOF = do_continue  # noqa: N815
