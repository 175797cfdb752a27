"""The end of a process by force, by whoever is on its machine: a stopped one too."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from rlinf.scheduler.engine.node.processes import held, living, send, with_descendants


def birth_of(pid: int) -> int:
    """When a process began, in the kernel's ticks since it booted; 0 if there is none of that number.

    >>> birth_of(os.getpid()) > 0
    True
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    # The name of the program, in parentheses, may hold anything: proc(5) counts from 1, and the second is the name.
    return int(text.rpartition(")")[2].split()[19])


def kill_process(pid: int, born: int) -> bool:
    """End a process at once; False if it is gone, also when another one has its number by now."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if birth_of(pid) != born:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def end_descendants() -> None:
    """End at once what this process has started, and what that has; not what left that line by a fork of its own.

    Python's own janitor of shared memory stays: it ends by itself, when it has tidied up.
    """
    everybody = living()
    own = [process for process in everybody if process.pid == os.getpid()]
    found = [process for process in with_descendants(own, everybody) if process not in own]
    with held(process for process in found if not _is_janitor(process.pid)) as descriptors:
        send(descriptors.values(), signal.SIGKILL)


def _is_janitor(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return False
