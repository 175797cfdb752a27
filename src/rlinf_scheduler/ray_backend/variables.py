"""The variables that every node we start begins with, and all its processes; how they are set while it starts.

Among them is how glibc copies large memory, which is to be set before a process's first instruction.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

# Else Ray starts an interpreter for each core with the first program that connects to a node, and lets that program
# wait for them all: half a second of a core each. Ranks are placed by devices: they do not use most of them.
_PRESTART = "RAY_prestart_worker_first_driver"
COPYING_VARIABLE = "GLIBC_TUNABLES"
# glibc copies around the cache, twice as fast, only above 3/4 of the cache that it believes to have for itself.
# On a virtual machine that is all of the host's, hundreds of MiB. What is set already comes last, and wins.
_THRESHOLD = f"glibc.cpu.x86_non_temporal_threshold={4 << 20}"
# Ray's label of the nodes whose processes all start with it.
LABELS = {"rlinf-copies": "around-the-cache"}
# "1": Ray may send what it counts of its use.
USAGE_VARIABLE = "RAY_USAGE_STATS_ENABLED"
# For processes of other nodes. Ray starts an interpreter first that sets it, and that starts another one.
OF_A_PROCESS = {COPYING_VARIABLE: f"{_THRESHOLD}:${{{COPYING_VARIABLE}}}"}


def of_a_node(environment: Mapping[str, str]) -> dict[str, str]:
    """What a node that is started with these variables is given more; what its user has set stays."""
    there = environment.get(COPYING_VARIABLE, "")
    copying = f"{_THRESHOLD}:{there}" if there else _THRESHOLD
    return {COPYING_VARIABLE: copying, _PRESTART: environment.get(_PRESTART, "0")}


def set_all(values: Mapping[str, str | None]) -> dict[str, str | None]:
    """Give variables of this process these values, and take away those that are None; return what they were."""
    before = {name: os.environ.get(name) for name in values}
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before


@contextmanager
def set_meanwhile(values: Mapping[str, str | None]) -> Iterator[None]:
    """Have a Ray that is started inside start with these variables, and without those that are None."""
    before = set_all(values)
    try:
        yield
    finally:
        set_all(before)
