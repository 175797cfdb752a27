"""A process as its machine's kernel sees it, and its stacks, for one that does not answer itself.

A signal has it write its stacks to a file, whatever keeps its interpreter. The handler is `faulthandler`'s, in C: it
takes no lock and runs no Python. It walks the frames of all threads without the GIL: were one of them to run Python
meanwhile, the process might crash. So the signal goes only to a process that has been silent for a while. A system call
that it finds goes on after it, but for those that are never restarted (`nanosleep`, `poll`, `epoll_wait`): they fail
with EINTR. The file lies in the process's private run directory.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from pathlib import Path

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.rundir import STACKS_NAME
from rlinf_scheduler.observe.process_stats import Enlist, Frame, Silent, Stack
from rlinf_scheduler.observe.stacks import is_library, is_own
from rlinf_scheduler.proc import START, STATE, stat_of

STACK_SIGNAL = signal.SIGRTMAX - 5
_SETTLED_S = 0.02
MAX_BYTES = 1 << 20


# What this process writes to, of the last session that it joined; the handler is the process's, and stays: the default
# action of the signal is to end the process, and one may be on its way.
_descriptor = -1


def offer_stacks(directory: Path) -> int:
    """Have this process write its stacks to a file in `directory` whenever it gets a signal.

    Returns:
        Which signal; 0 where that is not to be had: somebody else uses it, say.
    """
    global _descriptor
    if _descriptor < 0 and signal.getsignal(STACK_SIGNAL) is not signal.SIG_DFL:
        return 0
    try:
        descriptor = os.open(
            directory / STACKS_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
    except OSError:
        return 0
    try:
        os.write(descriptor, f"{threading.main_thread().ident:x}\n".encode())
        faulthandler.register(STACK_SIGNAL, descriptor, all_threads=True)
    except (OSError, RuntimeError, ValueError):
        os.close(descriptor)
        return 0
    before, _descriptor = _descriptor, descriptor
    if before >= 0:
        os.close(before)
    return int(STACK_SIGNAL)


def stacks_by_signal(endpoint: Endpoint, pid: int, number: int, within_s: float) -> list[Stack]:
    """The stacks of another process of this machine, its main thread's first; none if it writes none in time."""
    path = Path(endpoint.unix_path).parent / STACKS_NAME
    try:
        begin = _begin_of_next(path)
        os.kill(pid, number)
        text = _grown(path, begin, within_s)
        with path.open("rb") as file:
            main = int(file.readline().decode().strip(), 16)
    except (OSError, ValueError):
        return []
    return parsed(text, main)


def _begin_of_next(path: Path) -> int:
    """Where what is written next will begin; who asks often, for as long as a process hangs, does not fill the disk."""
    size = path.stat().st_size
    if size <= MAX_BYTES:
        return size
    with path.open("rb") as file:
        begin = len(file.readline())  # which thread is the main one
    os.truncate(path, begin)
    return begin


def _grown(path: Path, begin: int, within_s: float) -> str:
    """What is written to a file after `begin`, once it does not grow any more."""
    until, before = time.monotonic() + within_s, begin
    while time.monotonic() < until:
        time.sleep(_SETTLED_S)
        size = path.stat().st_size
        if size == before > begin:
            break
        before = size
    with path.open("rb") as file:
        file.seek(begin)
        return file.read(MAX_BYTES).decode(errors="replace")


def parsed(text: str, main: int) -> list[Stack]:
    r"""The stacks in what `faulthandler` wrote; `main` is the number of the main thread.

    >>> text = 'Thread 0x0a (most recent call first):\n  File "a.py", line 3 in f\n  File "a.py", line 9 in g\n'
    >>> [(stack.name, stack.frames[0].line) for stack in parsed(text, 10)]
    [('MainThread', 3)]
    """
    found: list[tuple[int, list[Frame]]] = []
    for line in text.splitlines():
        if "hread 0x" in line:
            found.append((int(line.partition("0x")[2].split()[0], 16), []))
        elif line.startswith("  File ") and found:
            found[-1][1].append(_frame(line))
    stacks = [
        Stack("MainThread" if ident == main else f"thread {ident:#x}", tuple(frames))
        for ident, frames in sorted(found, key=lambda each: each[0] != main)
    ]
    return [stack for stack in stacks if stack.frames and not _is_io(stack)]


def _frame(line: str) -> Frame:
    file, _, rest = line.removeprefix('  File "').rpartition('", line ')
    number, _, function = rest.partition(" in ")
    return Frame(file, int(number) if number.isdecimal() else 0, function, "", is_own(file), is_library(file))


def _is_io(stack: Stack) -> bool:
    """Whether it is this library's I/O thread, or one of Python's own."""
    return all(frame.is_library for frame in stack.frames) and stack.name != "MainThread"


STOPPED, GONE, STUCK, UNKNOWN = "stopped", "gone", "stuck", "unknown"
_STATES = {
    "T": (STOPPED, "its process is stopped (SIGSTOP, Ctrl-Z or a debugger)"),
    "t": (STOPPED, "a debugger holds its process"),
    "D": (STUCK, "it waits in the kernel for a device or a file system"),
    "Z": (GONE, "its process has ended"),
    "X": (GONE, "its process has ended"),
    "R": (STUCK, "it computes, and something keeps its interpreter (the GIL)"),
    "S": (STUCK, "it sleeps, and something keeps its interpreter (the GIL)"),
}
# How long a process may take to write its stacks.
STACKS_S = 0.4


def look_at(process: str, known: Enlist, within_s: float = STACKS_S) -> Silent:
    """Look at a process of this machine from outside.

    Args:
        known: what it said of itself when it came.
        within_s: how long to wait for its stacks, in seconds; 0: it is not asked for them.
    """
    state, born, sleeps_in = _stat(known.pid)
    if born != known.born:
        return Silent(process, known.pid, GONE, "its process has ended")
    word, detail = _STATES.get(state, (STUCK, f"the kernel calls its state {state}"))
    if sleeps_in and state in "DS":
        detail = f"{detail}, in {sleeps_in}"
    if word == STUCK:
        detail += _how_busy()
    # A signal that it does not catch would end it.
    if word != STUCK or state == "D" or within_s <= 0 or not _catches(known.pid, known.stack_signal):
        return Silent(process, known.pid, word, detail)
    stacks = stacks_by_signal(known.endpoint, known.pid, known.stack_signal, within_s)
    return Silent(process, known.pid, word, detail, stacks=tuple(stacks))


def _how_busy() -> str:
    """That this machine is so busy that a healthy process may not have come to its answer; "" if it is not."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return f", or has not had its turn: the load is {load:.0f} on {cores} cores" if load > 2 * cores else ""


def is_stopped(pid: int) -> bool:
    """Whether a process of this machine is stopped."""
    return _STATES.get(_stat(pid)[0], ("",))[0] == STOPPED


def _catches(pid: int, number: int) -> bool:
    lines = _read(Path(f"/proc/{pid}/status")).splitlines()
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return number > 0 and bool(int(caught, 16) >> (number - 1) & 1)


def _stat(pid: int) -> tuple[str, int, str]:
    """A process's state, when it began, and in which call of the kernel's its main thread sleeps."""
    try:
        _, fields = stat_of(pid)
        sleeps_in = _read(Path(f"/proc/{pid}/wchan"))
    except OSError:
        return "X", 0, ""
    return fields[STATE], int(fields[START]), "" if sleeps_in == "0" else sleeps_in


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
