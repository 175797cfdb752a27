"""Processes of this machine as a rank sees them: ended by force, watched for their end; and what ps shows of it."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rlinf_scheduler.proc import (
    PPID,
    end_all,
    has_ended,
    held,
    living,
    marked,
    send,
    stat_of,
    with_descendants,
)

if TYPE_CHECKING:  # Ray runs `kill_process` on other machines, in processes that have loaded nothing of this
    from rlinf_scheduler.session import Session

# What a rank starts has it in its environment, with the rank's process id in the job.
STARTED_BY_VARIABLE = "RLINF_STARTED_BY"
# A worker that nobody is left for ends within it, whatever it is at.
LEAVE_GRACE_S = 1.0
# Its exit status then.
LEFT_BEHIND = 75


def kill_process(pid: int, born: int, process_id: str) -> bool:
    """End a rank's process at once, and what it has started; False if it is gone, also if another has its number now.

    Args:
        born: when it began, see `birth_of`.
        process_id: as the job knows it; what it has started is found by that when it is gone itself.
    """
    everybody = living()
    own = [process for process in everybody if (process.pid, process.start) == (pid, born)]
    with held(with_descendants(own, everybody)) as descriptors:
        send(descriptors.values(), signal.SIGKILL)
        was_there = any(process in descriptors for process in own)
    end_all(lambda: with_descendants(marked(STARTED_BY_VARIABLE, process_id), living()), 0.0)
    return was_there


def end_descendants() -> None:
    """End at once what this process has started, and what that has; not what left that line by a fork of its own.

    Python's own janitor of shared memory stays: it ends by itself, when it has tidied up.
    """
    everybody = living()
    own = [process for process in everybody if process.pid == os.getpid()]
    found = [process for process in with_descendants(own, everybody) if process not in own]
    with held(process for process in found if not _is_janitor(process.pid)) as descriptors:
        send(descriptors.values(), signal.SIGKILL)


def end_after(grace_s: float) -> None:
    """End this process after a while, and what it has started at once: nobody else would."""
    end_descendants()
    time.sleep(grace_s)
    end_descendants()
    end_with_status()


def end_with_status() -> NoReturn:
    """End this process at once, as one that nobody is left for."""
    os._exit(LEFT_BEHIND)


def _is_janitor(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return False


# -- what this process stands or falls with ----------------------------------------------------------


_RAYLET = "raylet"
# A process that the kernel does not tell of is looked at so often.
LOOK_S = 1.0


def watch_parent(
    session: Session, on_raylet_gone: Callable[[], None], on_gone: Callable[[str], None]
) -> None:
    """Say on the I/O thread that the raylet among this process's ancestors has ended; at once if it has already.

    Where no ancestor is one, the process that started this one is watched: it may be a script, whose end says nothing
    about the node.

    Args:
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
    with suppress(OSError, ValueError, IndexError):  # one ended, or lies beyond what this process may see
        while (pid := int(stat_of(pid)[1][PPID])) > 0:
            found.append((pid, stat_of(pid)[0]))
    return found


def watch_process(session: Session, pid: int, is_it: Callable[[], bool], on_gone: Callable[[], None]) -> None:
    """Say on the I/O thread that a process has ended; at once if it has already.

    The kernel tells of it; where it refuses that (pidfd_open), the process is looked at every second.

    Args:
        is_it: says whether that is the number of the process that is meant.
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
    if not is_it() or has_ended(pid):
        on_gone()
    elif not session.messenger.why_closed:
        session.messenger.call_later(LOOK_S, partial(_look_again, session, pid, is_it, on_gone))


def _is_raylet(pid: int) -> bool:
    # The kernel's name of a raylet is its program's; what a process calls itself may be anything.
    with suppress(OSError):
        return stat_of(pid)[0] == _RAYLET
    return False


# -- what ps shows -----------------------------------------------------------------------------------


_PR_SET_NAME = 15
# In /proc/PID/stat after the name, see proc(5): where the command line begins and ends in the process's memory.
_ARG_START, _ARG_END = 45, 46
_MAX_NAME_BYTES = 15


def set_title(title: str) -> None:
    """Have `ps` and /proc show this as the process's command line, and its beginning as its name.

    A command line has no more room than it was started with; where it cannot be written it stays.
    """
    text = title.encode(errors="replace")
    with suppress(OSError, ValueError, IndexError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, text[:_MAX_NAME_BYTES], 0, 0, 0)
        fields = stat_of("self")[1]  # what is found there is written to
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        if 0 < start < end - 1:
            # The last byte is zero: so the kernel takes no more than that for it.
            ctypes.memmove(start, text[: end - start - 1].ljust(end - start, b"\0"), end - start)
