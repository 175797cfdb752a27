"""What a process of this machine died of, as the kernel says it: its exit status, and whether memory was short."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import select
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from rlinf_scheduler.comm import control_groups
from rlinf_scheduler.proc import STATE, birth_of, stat_of

# Its parent takes note of its end within it.
_REAPED_MS = 250
# See linux/pidfd.h; since Linux 6.15 it has the status of a process that has ended.
_GET_INFO, _WANT_EXIT = 0xC040FF0B, 1 << 3
_INFO = struct.Struct("=QQ11Ii")
_STATUS = 49  # in /proc/PID/stat of a zombie, after the name; see proc(5)
# The namespace in which the kernel's log numbers processes.
_FIRST_NAMESPACE = "pid:[4026531836]"
_MAX_RECORD_BYTES = 8192
# What counts the kills of a control group: of version 2, of version 1.
_KILLS = ("memory.events", "memory.oom_control")


class Witnesses:
    """Who sees processes of this machine end."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        log: Path = Path("/dev/kmsg"),
    ) -> None:
        self._proc = proc
        self._log = log
        # How many kills of each control group have been put down to somebody.
        self._known_kills: dict[Path, int] = {}

    def watch(self, pid: int, born: int) -> Witness:
        """Begin to watch a process that lives; `born` as of `birth_of`."""
        return Witness(self, pid, born)

    def memory_events(self, pid: int) -> Path | None:
        """The file that counts the kills, for want of memory, in the control group of a process that lives."""
        with contextlib.suppress(OSError):
            for folder in control_groups.folders("memory", str(pid), self._proc):
                for name in _KILLS:
                    if (folder / name).is_file():
                        return folder / name
        return None

    def num_kills(self, events: Path | None) -> int:
        """How many processes of the control group the kernel has killed that nobody died of yet."""
        if events is None:
            return 0
        with contextlib.suppress(OSError):
            found = re.search(r"^oom_kill (\d+)$", events.read_text(encoding="utf-8"), re.MULTILINE)
            return int(found[1]) - self._known_kills.get(events, 0) if found else 0
        return 0

    def note_kill(self, events: Path | None) -> None:
        """One of them is explained."""
        if events is not None:
            self._known_kills[events] = self._known_kills.get(events, 0) + 1

    def log_names(self, pid: int, born: int) -> bool | None:
        """Whether the kernel's log has that it killed this process; None if that cannot be read here."""
        try:
            if os.readlink(self._proc / "self/ns/pid") != _FIRST_NAMESPACE:
                return None
            descriptor = os.open(self._log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        told = re.compile(rb"Killed process %d |oom-kill:.*,pid=%d," % (pid, pid))
        since_us = born * 1_000_000 // os.sysconf("SC_CLK_TCK")
        try:
            return any(told.search(text) for at_us, text in _records(descriptor) if at_us >= since_us)
        finally:
            os.close(descriptor)


class Witness:
    """Sees one process end."""

    def __init__(self, witnesses: Witnesses, pid: int, born: int) -> None:
        self._all = witnesses
        self._pid, self._born = pid, born
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            self._descriptor = os.pidfd_open(pid)
            if birth_of(pid) != born:  # it has ended, and another one has its number
                self.close()
        self._events = witnesses.memory_events(pid)
        self._kills_before = witnesses.num_kills(self._events)

    def close(self) -> None:
        """See nothing any more."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def cause(self) -> str:
        """What it died of, in words; "" if it lives, or nobody knows. It may take a moment; asked once."""
        status = None if self._descriptor is None else _status_of(self._descriptor, self._pid)
        self.close()
        if status is None and birth_of(self._pid) == self._born:
            return ""
        if status in (None, signal.SIGKILL) and self._was_memory():
            return "killed by the kernel: out of memory"
        return "" if status is None else words_of(status)

    def _was_memory(self) -> bool:
        if self._all.num_kills(self._events) <= self._kills_before:
            return self._all.log_names(self._pid, self._born) or False
        if self._all.log_names(self._pid, self._born) is False:
            return False  # it was another one's
        self._all.note_kill(self._events)
        return True


def words_of(status: int) -> str:
    """A process's end in words, from its status as `waitpid` has it.

    >>> words_of(3 << 8), words_of(9), words_of(11 | 128)
    ('it ended with exit code 3', 'killed by SIGKILL', 'killed by SIGSEGV (Segmentation fault), core dumped')
    """
    if os.WIFEXITED(status):
        return f"it ended with exit code {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        name = f"signal {number}"
    said = signal.strsignal(number) or ""
    about = "" if number in (signal.SIGKILL, signal.SIGTERM) or not said else f" ({said})"
    return f"killed by {name}{about}{', core dumped' if os.WCOREDUMP(status) else ''}"


def _status_of(descriptor: int, pid: int) -> int | None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + _REAPED_MS / 1000
    if not poll.poll(_REAPED_MS):  # it lives
        return None
    while True:
        status = _status_of_reaped(descriptor)
        if status is None:
            status = _status_of_zombie(pid)
        if status is not None or time.monotonic() >= deadline:
            return status
        poll.modify(descriptor, 0)  # until its parent has taken note
        poll.poll(10)


def _status_of_reaped(descriptor: int) -> int | None:
    asked = bytearray(_INFO.pack(_WANT_EXIT, *(0,) * 13))
    try:
        fcntl.ioctl(descriptor, _GET_INFO, asked)
    except OSError:  # an older kernel
        return None
    told, *_, status = _INFO.unpack(asked)
    return int(status) if told & _WANT_EXIT else None


def _status_of_zombie(pid: int) -> int | None:
    with contextlib.suppress(OSError, IndexError):
        fields = stat_of(pid)[1]
        return int(fields[_STATUS]) if fields[STATE] == "Z" else None
    return None


def _records(descriptor: int) -> Iterator[tuple[int, bytes]]:
    """The log's records: when, in microseconds since the machine began, and the text."""
    while True:
        try:
            head, _, text = os.read(descriptor, _MAX_RECORD_BYTES).partition(b";")
        except OSError as error:
            if error.errno == errno.EPIPE:  # it was written over meanwhile: the next one is there
                continue
            return
        fields = head.split(b",")
        if len(fields) < 3:
            return
        yield int(fields[2]), text
