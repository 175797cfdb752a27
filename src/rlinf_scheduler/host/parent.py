"""What this process stands or falls with: the node's raylet; where that is no ancestor of it, its parent."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlinf_scheduler.session import Session

_PROC = Path("/proc")
_RAYLET = "raylet"
_STATE, _PPID = 0, 1  # in /proc/PID/stat, after the name; see proc(5)
_ENDED = ("Z", "X")
# A process that the kernel does not tell of is looked at so often.
LOOK_S = 1.0


def watch_parent(
    session: Session, on_raylet_gone: Callable[[], None], on_gone: Callable[[str], None]
) -> None:
    """Say on the I/O thread that the raylet among this process's ancestors has ended; at once if it has already.

    Where no ancestor is one, the process that started this one is watched: it may be a script, whose end says nothing
    about the node.

    Args:
        session: whose I/O thread waits.
        on_raylet_gone: called when it was the raylet.
        on_gone: called with the program's name and number when it was another.
    """
    lineage = ancestors(os.getpid())
    raylet = next((pid for pid, name in lineage if name == _RAYLET), None)
    if raylet is not None:
        watch_process(session, raylet, lambda: _is_raylet(raylet), on_raylet_gone)
        return
    parent = os.getppid()
    name = next((name for pid, name in lineage if pid == parent), "a process")
    watch_process(
        session, parent, lambda: os.getppid() == parent, lambda: on_gone(f"{name}, process {parent}")
    )


def ancestors(pid: int) -> list[tuple[int, str]]:
    """The numbers and the programs of the process that started `pid`, of the one that started that, and so on."""
    found: list[tuple[int, str]] = []
    with contextlib.suppress(
        OSError, ValueError, IndexError
    ):  # one ended, or lies beyond what this process may see
        while (pid := _parent_of(pid)) > 0:
            found.append((pid, _program_of(pid)))
    return found


def watch_process(session: Session, pid: int, is_it: Callable[[], bool], on_gone: Callable[[], None]) -> None:
    """Say on the I/O thread that a process has ended; at once if it has already.

    The kernel tells of it; where it refuses that (pidfd_open), the process is looked at every second.

    Args:
        session: whose I/O thread waits.
        pid: its number.
        is_it: says whether that is the number of the process that is meant.
        on_gone: called once it has ended.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        session.messenger.submit(on_gone)
        return
    except OSError:  # beyond this process's namespace of process ids, or a kernel or container without it
        session.messenger.submit(partial(_look_again, session, pid, is_it, on_gone))
        return

    def gone() -> None:
        session.messenger.unwatch(descriptor)
        on_gone()

    def close() -> None:
        session.messenger.unwatch(descriptor)
        os.close(descriptor)

    session.on_close_last(close)
    session.messenger.submit(lambda: session.messenger.watch(descriptor, gone))
    if not is_it():  # the descriptor may be that of another process with the same number
        session.messenger.submit(on_gone)


def _look_again(session: Session, pid: int, is_it: Callable[[], bool], on_gone: Callable[[], None]) -> None:
    if not is_it() or _has_ended(pid):
        on_gone()
    elif not session.messenger.why_closed:
        session.messenger.call_later(LOOK_S, partial(_look_again, session, pid, is_it, on_gone))


def _has_ended(pid: int) -> bool:
    """Whether a process has ended, also if nobody has waited for it yet; one beyond what this one sees has not."""
    with contextlib.suppress(OSError, IndexError):
        return _stat_of(pid)[_STATE] in _ENDED
    return False


def _parent_of(pid: int) -> int:
    return int(_stat_of(pid)[_PPID])


def _stat_of(pid: int) -> list[str]:
    text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()


def _program_of(pid: int) -> str:
    # The kernel's name of a raylet is its program's; what a process calls itself may be anything.
    return (_PROC / str(pid) / "comm").read_text(errors="replace").strip()


def _is_raylet(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return _program_of(pid) == _RAYLET
    return False
