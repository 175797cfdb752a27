"""A process as its machine's kernel sees it, for one that does not answer itself."""

from __future__ import annotations

import os
from pathlib import Path

from rlinf_scheduler.observe.process_stats import Enlist, Silent
from rlinf_scheduler.observe.stack_file import stacks_by_signal

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
        process: its name.
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


def birth_of(pid: int) -> int:
    """When a process began, in the kernel's ticks since it booted; 0 if there is none of that number."""
    return _stat(pid)[1]


def _stat(pid: int) -> tuple[str, int, str]:
    """A process's state, when it began, and in which call of the kernel's its main thread sleeps."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        sleeps_in = _read(Path(f"/proc/{pid}/wchan"))
    except OSError:
        return "X", 0, ""
    # The program's name, in parentheses, may hold anything.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19]), "" if sleeps_in == "0" else sleeps_in


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
