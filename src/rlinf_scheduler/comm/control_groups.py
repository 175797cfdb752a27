"""The control groups that bound a process, as files: from its own up to the highest that can be seen here."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# How much memory the processes of a group may have: in version 2, where those who have more are slowed down or killed;
# in version 1.
_MEMORY_LIMITS = ("memory.high", "memory.max", "memory.limit_in_bytes")
_OCTAL = re.compile(r"\\([0-7]{3})")


class _Mount(NamedTuple):
    """Where a hierarchy of groups is mounted.

    Attributes:
        root: the group that lies at `point`, as /proc/PID/cgroup writes it.
        controllers: those of version 1; "" for the hierarchy of version 2.
    """

    root: str
    point: Path
    controllers: frozenset[str]


def folders(controller: str, pid: str = "self", proc: Path = Path("/proc")) -> Iterator[Path]:
    """Give the folders of the groups that a process is in, its own first, then each parent.

    A process's group is written from the root of its namespace, or of the machine, a mount begins where it likes: a
    container may see only its own group, but read the whole path to it.

    Args:
        controller: whose groups, `memory` say; in version 2 all controllers have the same.
        pid: which process.
        proc: where /proc is.

    Raises:
        OSError: the process is gone, or /proc cannot be read.
    """
    mounts = list(_mounts(proc))
    for line in (proc / pid / "cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        wanted = controller if controllers else ""
        for mount in mounts:
            if wanted in mount.controllers or (not wanted and not mount.controllers):
                yield from _up_to(mount, group)


def memory_limit_bytes(proc: Path = Path("/proc")) -> int | None:
    """Return how much memory this process may have together with others of its groups; None if nothing bounds it."""
    limits: list[int] = []
    with contextlib.suppress(OSError):
        for folder in folders("memory", proc=proc):
            limits.extend(_numbers_in(folder))
    return min(limits, default=None)


def _numbers_in(folder: Path) -> Iterator[int]:
    for name in _MEMORY_LIMITS:
        with contextlib.suppress(OSError):
            text = (folder / name).read_text(encoding="ascii").strip()
            if text.isdigit():  # else `max`
                yield int(text)


def _up_to(mount: _Mount, group: str) -> Iterator[Path]:
    below = os.path.relpath(group, mount.root)
    if below.startswith(".."):
        # A namespace that the process was moved out of, or that is not that of the mount.
        below = "."
    folder = mount.point / below
    yield folder
    while folder != mount.point:
        folder = folder.parent
        yield folder


def _mounts(proc: Path) -> Iterator[_Mount]:
    """Give the mounts of hierarchies that this process sees; see proc(5)."""
    for line in (proc / "self" / "mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, point = (_OCTAL.sub(_letter, text) for text in before.split(" ")[3:5])
            controllers = options.split(",") if kind == "cgroup" else ()
            yield _Mount(root, Path(point), frozenset(controllers))


def _letter(octal: re.Match[str]) -> str:
    return chr(int(octal[1], 8))
