"""What `ps` shows of this process, without Ray, which has that for its own workers."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

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
        stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
        fields = stat.rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        if 0 < start < end - 1:
            # The last byte is zero: so the kernel takes no more than that for it.
            ctypes.memmove(start, text[: end - start - 1].ljust(end - start, b"\0"), end - start)
