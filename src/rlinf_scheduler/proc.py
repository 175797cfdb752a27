"""Processes of this machine as /proc shows them: told apart by number and beginning, ended by their descriptors."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Literal

import msgspec

_PROC = "/proc"
# In /proc/PID/stat, after the name; see proc(5).
STATE, PPID, START = 0, 1, 19
# More than there ever is; the kernel gives it at once.
_STAT_BYTES = 4096
_ENDED = ("Z", "X")
# After SIGKILL only the kernel is waited for.
KILLED_S = 10.0


class ProcessId(msgspec.Struct, frozen=True):
    """A process, and no other one that gets its number later.

    Attributes:
        start: when it began, in the kernel's ticks since the machine did.
        name: the program's.
    """

    pid: int
    start: int
    name: str


def stat_of(pid: int | Literal["self"]) -> tuple[str, list[str]]:
    """The name of a process's program, and what the kernel says of it after that.

    "self" is this process, also where /proc counts processes otherwise than it does.

    Raises:
        OSError: there is none of that number, or it is hidden.
    """
    # The name, in parentheses, may hold anything.
    before, _, rest = _told(pid, "stat", _STAT_BYTES).decode(errors="replace").rpartition(")")
    return before.partition("(")[2], rest.split()


def birth_of(pid: int) -> int:
    """When a process began, in the kernel's ticks since it booted; 0 if there is none of that number.

    >>> birth_of(os.getpid()) > 0
    True
    """
    try:
        return int(stat_of(pid)[1][START])
    except OSError:
        return 0


def has_ended(pid: int) -> bool:
    """Whether a process has ended, also if nobody has waited for it yet; one beyond what this one sees has not."""
    with contextlib.suppress(OSError, IndexError):
        return stat_of(pid)[1][STATE] in _ENDED
    return False


def living() -> dict[ProcessId, int]:
    """Every process that has not ended, with its parent's number."""
    found = {}
    for name in os.listdir(_PROC):
        if name.isdecimal():
            try:
                process, parent = _read(int(name))
            except (OSError, ValueError):
                continue
            found[process] = parent
    return found


def marked(variable: str, value: str) -> list[ProcessId]:
    """The processes of this user that were started with a variable of that value."""
    wanted = f"{variable}={value}".encode()
    found = []
    for process in living():
        with contextlib.suppress(OSError):
            variables = _told(process.pid, "environ")
            if wanted in variables and wanted in variables.split(b"\0"):
                found.append(process)
    return found


def variable_of(process: ProcessId, variable: str) -> str | None:
    """What a process of this user was started with as `variable`; None without it, or if it has ended."""
    with contextlib.suppress(OSError):
        for entry in _told(process.pid, "environ").split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == variable.encode():
                return value.decode(errors="replace")
    return None


def with_descendants(roots: Collection[ProcessId], everybody: Mapping[ProcessId, int]) -> list[ProcessId]:
    """Those of `roots` that live, and all that they and theirs have started."""
    children: dict[int, list[ProcessId]] = {}
    for process, parent in everybody.items():
        children.setdefault(parent, []).append(process)
    found: dict[ProcessId, None] = {}
    waiting = [root for root in roots if root in everybody]
    while waiting:
        process = waiting.pop()
        if process not in found:
            found[process] = None
            waiting.extend(children.get(process.pid, ()))
    return list(found)


@contextlib.contextmanager
def held(processes: Iterable[ProcessId]) -> Iterator[dict[ProcessId, int]]:
    """Descriptors of the processes that live: a signal through one reaches that process or none."""
    descriptors: dict[ProcessId, int] = {}
    try:
        for process in processes:
            with contextlib.suppress(OSError, ValueError):
                descriptor = os.pidfd_open(process.pid)
                descriptors[process] = descriptor
                # The number may be another's since it was read.
                if _read(process.pid)[0] != process:
                    os.close(descriptors.pop(process))
        yield descriptors
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def send(descriptors: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to those that live."""
    for descriptor in descriptors:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)


def wait_for_ends(descriptors: Collection[int], timeout_s: float | None) -> set[int]:
    """Wait until all have ended; which have not at the deadline (None: there is none)."""
    left = set(descriptors)
    poll = select.poll()
    for descriptor in left:
        poll.register(descriptor, select.POLLIN)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while left:
        ended = poll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000)
        if not ended:
            break
        for descriptor, _ in ended:
            poll.unregister(descriptor)
            left.discard(descriptor)
    return left


def end_all(find: Callable[[], Collection[ProcessId]], grace_s: float) -> None:
    """End what `find` finds, until it finds nothing; what has not ended by itself after `grace_s` seconds is killed."""
    while found := find():
        with held(found) as descriptors:
            wait_for_ends(descriptors.values(), grace_s)
            send(descriptors.values(), signal.SIGKILL)
            if wait_for_ends(descriptors.values(), KILLED_S):
                return  # the kernel does not let go of it
        grace_s = 0.0  # for what was started meanwhile


def _told(pid: int | str, file: str, size_bytes: int = -1) -> bytes:
    """Read what the kernel says of a process: raw, as an end takes hundreds of reads and a text layer costs thrice."""
    with io.FileIO(f"{_PROC}/{pid}/{file}") as told:
        return told.read(size_bytes)


def _read(pid: int) -> tuple[ProcessId, int]:
    name, fields = stat_of(pid)
    if fields[STATE] in _ENDED:
        raise ProcessLookupError(pid)
    return ProcessId(pid, int(fields[START]), name), int(fields[PPID])
