"""Nothing outlives the program that started it: a process beside it ends what is left of its Ray, however it ended.

Ray's nodes end with their driver, but their agents look for them once in a while: they would stay for a minute. What is
started while a guard marks carries the mark in its environment, by which it is found. Some of Ray's processes write
their title over their environment; they are known by the log files of the driver's session that they have open.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlinf_scheduler.proc import ProcessId, end_all, living, marked, with_descendants
from rlinf_scheduler.ray_backend.variables import set_meanwhile

MARK_VARIABLE = "RLINF_DRIVER_MARK"
# Ranks whose driver is gone take a second to leave in order.
LEFT_GRACE_S = 2.0
# A driver that the kernel does not tell of is looked at so often.
LOOK_S = 1.0
_PROC = Path("/proc")


class Guard:
    """A process that waits for the end of this one, and then ends what is left."""

    def __init__(self, grace_s: float = LEFT_GRACE_S) -> None:
        self._grace_s = grace_s
        self._mark = secrets.token_hex(16)
        self._process = subprocess.Popen(  # noqa: S603 - this very program
            [sys.executable, "-m", __name__, str(os.getpid()), self._mark, str(grace_s)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Found where this program finds it; Ctrl-C at a terminal is not for it.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )

    @contextmanager
    def marking(self) -> Iterator[None]:
        """What is started inside is this guard's to end."""
        with set_meanwhile({MARK_VARIABLE: self._mark}):
            yield

    def stop(self) -> None:
        """End what is left now, and the guard; if that is interrupted the guard stays."""
        _end(os.getpid(), self._mark, self._grace_s)
        self._process.kill()
        self._process.wait()


def main(pid: int, mark: str, grace_s: float) -> None:
    """Wait for the end of process `pid`, which has started this one, then end what it has left."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it may be sent to all at once; this one ends last
    _wait_for_end_of_parent(pid)
    _end(pid, mark, grace_s)


def _wait_for_end_of_parent(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:  # a kernel or a container without it; whose parent has ended has another one
        while os.getppid() == pid:
            select.select([], [], [], LOOK_S)
        return
    # Else it has ended, and the number is another's, or nobody's.
    if os.getppid() == pid:
        select.select([descriptor], [], [])


def _end(pid: int, mark: str, grace_s: float) -> None:
    def left() -> list[ProcessId]:
        everybody = living()
        titled = [process for process in everybody if _is_titled(process.pid, pid)]
        return with_descendants([*marked(MARK_VARIABLE, mark), *titled], everybody)

    end_all(left, grace_s)


def _is_titled(pid: int, driver: int) -> bool:
    """Whether a process is one of Ray's, by its title, and has files open of the session that `driver` has begun."""
    # Ray names its sessions so.
    logs = re.compile(rf"/session_[0-9_-]+_{driver}/logs/")
    with suppress(OSError):
        if (_PROC / str(pid) / "cmdline").read_bytes().startswith(b"ray::"):
            return any(logs.search(os.readlink(file)) for file in (_PROC / str(pid) / "fd").iterdir())
    return False


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
