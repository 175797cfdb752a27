"""`breakpoint()` in a rank: a debugger on a socket, since a rank has no terminal; one line says how to get there."""

from __future__ import annotations

import itertools
import os
import platform
import socket
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rlinf_scheduler.comm.rundir import DEBUGGER_NAME
from rlinf_scheduler.proc import ProcessId, variable_of

if TYPE_CHECKING:
    from rlinf_scheduler.host.socket_pdb import SocketPdb

# How long a breakpoint waits for somebody.
WAIT_S = 600.0
# By which a user says what `breakpoint()` calls.
VARIABLE = "PYTHONBREAKPOINT"
# Where what Ray sets it to lies: in every process that joins it, over whatever was there.
_OF_RAY = "ray.util.rpdb."


def serve_breakpoints(name: str, directory: Path) -> None:
    """Have `breakpoint()` in this process wait for `rlinf pdb`, unless the user has chosen something else for it.

    Args:
        directory: its own, which only its user can enter.
    """
    if sys.breakpointhook is not sys.__breakpointhook__:
        return
    if chosen := _chosen():
        os.environ[VARIABLE] = chosen
    else:
        sys.breakpointhook = Breakpoints(name, directory)


def _chosen() -> str:
    """What the user wants `breakpoint()` to call in this process; "" for nothing in particular."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen.startswith(_OF_RAY):
        # What it was started with: the launcher's own, or of `env_vars`.
        chosen = variable_of(ProcessId(os.getpid(), 0, ""), VARIABLE) or ""
    return "" if chosen.startswith(_OF_RAY) else chosen


class Breakpoints:
    """What `breakpoint()` calls in a rank."""

    def __init__(self, name: str, directory: Path) -> None:
        self._name = name
        self._directory = directory
        self._numbers = itertools.count(1)

    def __call__(self, *_args: Any, **_options: Any) -> None:
        """Wait for somebody who debugs, and let them; without one go on after a while."""
        frame = sys._getframe(1)
        if (debugger := _attached()) is not None:
            debugger.stop_again(frame)
            return
        where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        # Its own: another thread of this process, or one that it has forked, may be at a breakpoint too.
        path = self._directory / f"{DEBUGGER_NAME}{os.getpid()}-{next(self._numbers)}"
        try:
            connection = self._wait_at(path, where)
        except TimeoutError:
            self._tell(f"goes on from {where}: nobody came within {WAIT_S:.0f} s")
        except OSError as error:
            self._tell(f"goes on from {where}, no debugger can wait at {path}: {error.strerror or error}")
        else:
            _debug(connection, frame)

    def _wait_at(self, path: Path, where: str) -> socket.socket:
        with suppress(OSError):
            path.unlink()  # of a process that was killed and had this one's id
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            try:
                listening.listen(1)
                listening.settimeout(WAIT_S)
                self._tell(f"is at a breakpoint in {where}: on {platform.node()}, run `rlinf pdb {path}`")
                return listening.accept()[0]
            finally:
                with suppress(OSError):
                    path.unlink()

    def _tell(self, what: str) -> None:
        # As a debugger of its own would: to where the rank's output goes.
        with suppress(OSError):
            os.write(2, f"{self._name} {what}\n".encode())


def _attached() -> SocketPdb | None:
    """The debugger of this thread that somebody has not ended yet."""
    if sys.gettrace() is None:
        return None
    from rlinf_scheduler.host.socket_pdb import SocketPdb  # noqa: PLC0415

    tracing = getattr(sys.gettrace(), "__self__", None)
    return tracing if isinstance(tracing, SocketPdb) and not tracing.is_over else None


def _debug(connection: socket.socket, frame: FrameType) -> None:
    # Few ranks ever need it.
    from rlinf_scheduler.host.socket_pdb import SocketPdb  # noqa: PLC0415

    SocketPdb(connection, __name__).set_trace(frame)
