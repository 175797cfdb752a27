"""The variables that every node we start begins with, and all its processes."""

from __future__ import annotations

from collections.abc import Mapping

from rlinf.scheduler.engine.node import copying

# Else Ray starts an interpreter for each core with the first program that connects to a node, and lets that program
# wait for them all: half a second of a core each. Ranks are placed by devices: they do not use most of them.
_PRESTART = "RAY_prestart_worker_first_driver"


def of_a_node(environment: Mapping[str, str]) -> dict[str, str]:
    """What a node that is started with these variables is given more; what its user has set stays."""
    return {**copying.of_a_node(environment), _PRESTART: environment.get(_PRESTART, "0")}
