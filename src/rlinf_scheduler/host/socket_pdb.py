"""The debugger of Python's library on a connection."""

from __future__ import annotations

import pdb
import socket
import sys
from contextlib import suppress
from types import FrameType
from typing import Any


class SocketPdb(pdb.Pdb):
    """A debugger on a connection; when that ends, the program goes on.

    Args:
        connection: of the debugger.
        hook: the module of what `breakpoint()` calls: who steps into that wants to see their own code.

    Attributes:
        is_over: nobody debugs here any more.
    """

    def __init__(self, connection: socket.socket, hook: str) -> None:
        connection.setblocking(True)
        self._connection = connection
        self._reader = connection.makefile("r", encoding="utf-8", errors="replace")
        self._writer = connection.makefile("w", encoding="utf-8", errors="replace")
        own = (hook, __name__)
        super().__init__(stdin=self._reader, stdout=self._writer, nosigint=True, readrc=False, skip=own)
        self.prompt = "(rlinf) "
        self.is_over = False
        # Python keeps the breaks of all debuggers of a process in one table, and a new one takes what is there.
        self.breaks: dict[str, list[int]] = {}

    def stop_again(self, frame: FrameType) -> None:
        """Stop where this thread, which is debugged, has come to a `breakpoint()`."""
        sys.settrace(None)  # or who steps would step into the library's own code from here
        self.set_trace(frame)

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """As the library's; whatever it raises is the debugger's own error, never one of the code that is debugged."""
        try:
            return super().trace_dispatch(frame, event, arg)
        except Exception:  # noqa: BLE001 - its connection has ended, say
            self._end()
            self.set_continue()
            return None

    def do_continue(self, arg: str) -> bool | None:
        """Go on until the next break; without any, without a debugger."""
        if not self.breaks:
            return self.do_quit(arg)
        self.message("It goes on to the next break; `rlinf pdb` stays until then, Ctrl-C ends it.")
        self.stdout.flush()
        return super().do_continue(arg)

    def do_quit(self, arg: str) -> bool | None:
        """Go on, without a debugger and without breaks."""
        self._end()
        return super().do_continue(arg)

    def do_run(self, arg: str) -> bool | None:
        """Refuse: a method of a rank cannot be run anew from here."""
        self.error("a rank's method cannot be restarted; `continue` lets it go on")
        return None

    do_c = do_cont = do_continue
    do_q = do_exit = do_EOF = do_quit  # noqa: N815
    do_restart = do_run

    def _end(self) -> None:
        for name, lines in [*self.breaks.items()]:
            for line in [*lines]:
                with suppress(KeyError):  # another debugger of this process has deleted it
                    self.clear_break(name, line)
        self.breaks = {}
        self.is_over = True
        with suppress(OSError, ValueError):
            self._writer.close()
        with suppress(OSError, ValueError):
            self._reader.close()
        self._connection.close()
