"""How much shared memory all processes of a job may take together on one machine, and how much each may pin."""

from __future__ import annotations

import os

from rlinf_scheduler.comm.control_groups import memory_limit_bytes
from rlinf_scheduler.errors import ConfigError

VARIABLE = "RLINF_ARENA_MIB"
PINNED_VARIABLE = "RLINF_PINNED_MIB"
_SHARE = 2


def default_limit_bytes() -> int:
    """What `RLINF_ARENA_MIB` says; else half of the memory that this machine, or this process's control group, has.

    Only what is in use takes memory; 0 switches shared memory off.

    Raises:
        ConfigError: the variable holds no number of at least 0.
    """
    told = _bytes_in(VARIABLE, "no shared memory")
    return memory_bytes() // _SHARE if told is None else told


def pinned_limit_bytes() -> int:
    """How much shared memory a process pins for its devices: what `RLINF_PINNED_MIB` says; else 0, for none.

    Raises:
        ConfigError: the variable holds no number of at least 0.
    """
    return _bytes_in(PINNED_VARIABLE, "no pinned memory") or 0


def _bytes_in(variable: str, zero: str) -> int | None:
    text = os.environ.get(variable)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise ConfigError(f"{variable} is {text!r}; it takes a whole number of MiB, 0 for {zero}")
    return int(text) << 20


def memory_bytes() -> int:
    """Return how much memory this machine has, or the smallest control group that this process is in."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit_bytes()
    return total if limit is None else min(total, limit)
