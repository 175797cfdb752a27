"""The hardware that a config declares: of which node it is, and what is wrong with it, as seen from that node."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from rlinf_scheduler.doctor.facts import HardwareFacts
from rlinf_scheduler.errors import SchedulerError
from rlinf_scheduler.extension import EXTENSION_VARIABLE
from rlinf_scheduler.hardware.filling_in import fill_in_groups
from rlinf_scheduler.hardware.reachability import find_problems
from rlinf_scheduler.planning import HardwareUnit, Node, NodeGroup
from rlinf_scheduler.wording import counted

CHECK_S = 5.0


def declared_units(
    groups: Sequence[NodeGroup], nodes: Mapping[int, Node]
) -> tuple[dict[int, list[HardwareUnit]], list[HardwareFacts]]:
    """The pieces of each node that is there, by its rank, and what is to be said of those of other nodes.

    Raises:
        ConfigError: the variables of a node do not fit what the config says.
    """
    everybody = [nodes.get(rank, Node()) for rank in range(max(nodes, default=-1) + 1)]
    pieces: dict[int, list[HardwareUnit]] = {}
    for group in fill_in_groups(groups, everybody):
        for unit in group.hardware:
            of_node = pieces.setdefault(unit.node_rank, [])
            if unit not in of_node:  # several groups may list it
                of_node.append(unit)
    absent = [_absent(rank, units) for rank, units in sorted(pieces.items()) if rank not in nodes]
    return {rank: units for rank, units in pieces.items() if rank in nodes}, absent


def _absent(rank: int, units: Sequence[HardwareUnit]) -> HardwareFacts:
    what = ", ".join(dict.fromkeys(unit.type for unit in units))
    problem = f"that node is not there, so what the config declares for it ({what}) was not looked at"
    return HardwareFacts(f"node {rank}", 0, notes=(problem,))


def look_at(name: str, units: Sequence[HardwareUnit], extension: str = "") -> HardwareFacts:
    """Look at the pieces of the node that this process runs on, as before a launch.

    Args:
        name: the node's, for people.
        units: they.
        extension: the module that brings their types, as the asking process names it.
    """
    if extension:
        os.environ.setdefault(EXTENSION_VARIABLE, extension)
    try:
        problems = find_problems(units, CHECK_S)
    except SchedulerError as error:
        return HardwareFacts(name, len(units), faults=(str(error),))
    faults = tuple(problem.text for problem in problems if problem.stops_a_launch)
    return HardwareFacts(name, len(units), faults, tuple(p.text for p in problems if not p.stops_a_launch))


def not_looked_at(name: str, units: Sequence[HardwareUnit], why: str) -> HardwareFacts:
    """What is said of the pieces of a node that did not answer."""
    return HardwareFacts(
        name, 0, faults=(f"{counted(len(units), 'piece')} of hardware not looked at: {why}",)
    )
