"""The end of a process by force, by another one of its machine: also of one that is stopped."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import NoReturn

from rlinf_scheduler.ray_backend.node.processes import end_all, held, living, marked, send, with_descendants

# What a rank starts has it in its environment, with the rank's process id in the job.
STARTED_BY_VARIABLE = "RLINF_STARTED_BY"
# A worker that nobody is left for ends within it, whatever it is at.
LEAVE_GRACE_S = 1.0
# Its exit status then.
LEFT_BEHIND = 75


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


def kill_process(pid: int, born: int, process_id: str) -> bool:
    """End a rank's process at once, and what it has started; False if it is gone, also if another has its number now.

    Args:
        pid: its number.
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
