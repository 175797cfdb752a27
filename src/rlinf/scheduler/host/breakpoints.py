"""`breakpoint()` in a rank: a debugger on a socket, since a rank has no terminal; one line says how to get there."""

from __future__ import annotations

import os
import platform
import socket
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from rlinf.scheduler.comm.rundir import DEBUGGER_NAME

# How long a breakpoint waits for somebody.
WAIT_S = 600.0


def serve_breakpoints(name: str, directory: Path) -> None:
    """Have `breakpoint()` in this process wait for `rlinf pdb`, unless the user has chosen something else for it.

    Args:
        name: of this process.
        directory: its own, which only its user can enter.
    """
    if "PYTHONBREAKPOINT" not in os.environ and sys.breakpointhook is sys.__breakpointhook__:
        sys.breakpointhook = Breakpoints(name, directory / DEBUGGER_NAME)


class Breakpoints:
    """What `breakpoint()` calls in a rank.

    Args:
        name: the rank's.
        path: of the socket.
    """

    def __init__(self, name: str, path: Path) -> None:
        self._name = name
        self._path = path

    def __call__(self, *_args: Any, **_options: Any) -> None:
        """Wait for somebody who debugs, and let them; without one go on after a while."""
        frame = sys._getframe(1)
        where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        with suppress(OSError):
            self._path.unlink()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(self._path))
            listening.listen(1)
            listening.settimeout(WAIT_S)
            self._tell(f"is at a breakpoint in {where}: on {platform.node()}, run `rlinf pdb {self._path}`")
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                self._tell(f"goes on from {where}: nobody came within {WAIT_S:.0f} s")
                return
        _debug(connection, frame)

    def _tell(self, what: str) -> None:
        # As a debugger of its own would: to where the rank's output goes.
        os.write(2, f"{self._name} {what}\n".encode())


def _debug(connection: socket.socket, frame: FrameType) -> None:
    # Few ranks ever need it.
    from rlinf.scheduler.host.socket_pdb import SocketPdb  # noqa: PLC0415

    SocketPdb(connection).set_trace(frame)
