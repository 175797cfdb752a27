"""The processes that an engine has started: which of them ended first, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
import os
import re
import select
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import NamedTuple

_KILLED_WITHIN_S = 10.0
_LATELY_S = 30.0
_PREFIX = "rlinf-engine-"
_OWNER = "owner"  # locked by the process whose folder it is; in it, the names of shared memory


class _Process(NamedTuple):
    """One of them, by a descriptor that is of no later process with its number; how it ended, where that is known."""

    name: str
    pid: int
    descriptor: int
    exit_code: int | None = None


class EngineProcesses:
    """Children of this process that an engine starts, by the beginning of their names, and all below them.

    Made before the engine starts; `note` finds what has started. From then on it is known which ended first: what
    follows from that death may look like one, too. What processes have left that were killed before they could end
    their engines, on this machine, is removed then.

    Attributes:
        folder: for sockets of theirs; it is gone with them.
        first_ended: which ended first; None as long as all of them run.
    """

    def __init__(self, names: str) -> None:
        _remove_left()
        self.folder, self._owner = _made_folder()
        self.first_ended: _Process | None = None
        self._names = names
        self._before = set(multiprocessing.active_children())
        self._children: dict[int, multiprocessing.process.BaseProcess] = {}
        self._processes: list[_Process] = []
        self._memory: set[str] = set()
        self._one_ended = asyncio.Event()

    def note(self) -> None:
        """Find what has started, and watch it on the loop that runs."""
        started = set(multiprocessing.active_children()) - self._before
        self._children = {
            each.pid: each for each in started if each.pid and each.name.startswith(self._names)
        }
        for pid in _with_descendants(self._children):
            with suppress(OSError):  # it has ended
                name = self._children[pid].name if pid in self._children else _command(pid)
                self._memory |= _shared_memory(pid)
                self._processes.append(_Process(name, pid, os.pidfd_open(pid)))
        os.pwrite(self._owner, "\n".join(sorted(self._memory)).encode(), 0)
        loop = asyncio.get_running_loop()
        for each in self._processes:
            loop.add_reader(each.descriptor, self._ended, loop, each)

    def _ended(self, loop: asyncio.AbstractEventLoop, process: _Process) -> None:
        loop.remove_reader(process.descriptor)
        self.first_ended = self.first_ended or process._replace(exit_code=_exit_code(process.pid))
        self._one_ended.set()

    async def first(self, timeout_s: float) -> _Process | None:
        """Return which ended first, once one has, and how; None if none does in time."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._one_ended.wait(), timeout_s)
        first = self.first_ended
        if first and first.pid in self._children:
            return first._replace(exit_code=self._children[first.pid].exitcode)
        return first

    async def said(self, timeout_s: float) -> str:
        """Return what errors they have logged lately, and wait so long for one."""
        since, until = time.time() - _LATELY_S, time.monotonic() + timeout_s
        path, said = Path(self.folder, "errors"), list[str]()
        while not said and time.monotonic() < until:
            await asyncio.sleep(0.02)
            lines = [line.split(" ", 1) for line in path.read_text().splitlines()] if path.exists() else []
            said = [text for at, text in lines if float(at) > since]
        return "; ".join(said[:3])

    async def end(self, timeout_s: float) -> None:
        """Wait for the ends of all of them, kill what is left then, and remove what they leave."""
        loop = asyncio.get_running_loop()
        for each in self._processes:
            loop.remove_reader(each.descriptor)
        await asyncio.to_thread(self._end, timeout_s)

    def _end(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        processes, self._processes = self._processes, []
        for each in processes:
            if not _has_ended(each.descriptor, until - time.monotonic()):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(each.descriptor, signal.SIGKILL)
                _has_ended(each.descriptor, _KILLED_WITHIN_S)
            os.close(each.descriptor)
        _remove(self.folder, self._memory)
        os.close(self._owner)


def _made_folder() -> tuple[str, int]:
    """Make a folder, and open the file in it that this process has locked."""
    made = tempfile.mkdtemp(prefix=f".{_PREFIX}{os.getpid()}-")
    descriptor = os.open(f"{made}/{_OWNER}", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    folder = f"{os.path.dirname(made)}/{os.path.basename(made)[1:]}"
    os.rename(made, folder)  # only now: one that nobody has locked is taken for a dead process's
    return folder, descriptor


def _remove_left() -> None:
    """Remove folders whose processes are gone, with the shared memory that is named there."""
    for owner in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_OWNER}"):
        with suppress(OSError), owner.open() as file:  # somebody else's; it runs; it was just removed
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_uid == os.getuid():
                _remove(str(owner.parent), set(re.findall(r"^psm_\w+$", file.read(), re.M)))


def _remove(folder: str, memory: set[str]) -> None:
    for name in memory:
        with suppress(FileNotFoundError):
            SharedMemory(name).unlink()  # which also tells Python that it is not to be removed at its end
    shutil.rmtree(folder, ignore_errors=True)


def _has_ended(descriptor: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(timeout_s, 0.0) * 1000))


def _with_descendants(ancestors: dict[int, multiprocessing.process.BaseProcess]) -> list[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(path.name)] = int(_stat(path.name)[1])
    found, below = list[int](), set(ancestors)
    while below:
        found += sorted(below)
        below = {pid for pid, parent in parents.items() if parent in below}
    return found


def _stat(pid: int | str) -> list[str]:
    """Return what the kernel says of a process: its state, its parent, and last how it has ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _exit_code(pid: int) -> int | None:
    """Return how a process has ended; None if its parent has asked for that already."""
    with suppress(OSError):
        state, *_, status = _stat(pid)
        return os.waitstatus_to_exitcode(int(status)) if state == "Z" else None
    return None


def _command(pid: int) -> str:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    # What has given itself no title yet, or cannot, has multiprocessing's command.
    return "Worker" if "from multiprocessing.spawn import" in command else command


def _shared_memory(pid: int) -> set[str]:
    """Return the names of Python's shared memory that a process has."""
    return set(re.findall(r"/dev/shm/(psm_\w+)$", Path(f"/proc/{pid}/maps").read_text(), re.M))  # noqa: S108
