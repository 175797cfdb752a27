"""How glibc copies large memory on a node: what is to be set before a process's first instruction."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "GLIBC_TUNABLES"
# glibc copies around the cache, twice as fast, only above 3/4 of the cache that it believes to have for itself.
# On a virtual machine that is all of the host's, hundreds of MiB. What is set already comes last, and wins.
_THRESHOLD = f"glibc.cpu.x86_non_temporal_threshold={4 << 20}"
# Ray's label of the nodes whose processes all start with it.
LABELS = {"rlinf-copies": "around-the-cache"}
# For processes of other nodes. Ray starts an interpreter first that sets it, and that starts another one.
OF_A_PROCESS = {VARIABLE: f"{_THRESHOLD}:${{{VARIABLE}}}"}


def of_a_node(environment: Mapping[str, str]) -> dict[str, str]:
    """What a node that is started with these variables is given more, for all its processes."""
    there = environment.get(VARIABLE, "")
    return {VARIABLE: f"{_THRESHOLD}:{there}" if there else _THRESHOLD}
