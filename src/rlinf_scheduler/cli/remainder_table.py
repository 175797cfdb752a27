"""What remains of a plan without some nodes: a row a component, and what to write into its config."""

from __future__ import annotations

from rlinf_scheduler.planning import Remainder
from rlinf_scheduler.wording import counted, node_list, printable, ranges_text, text_table

_HEADINGS = ("component", "ranks", "lost", "left", "placement on what is left")
_NUMBERS = (1, 3)


def render_remainder(remainder: Remainder) -> str:
    """The table, and a line that says whether all of it still fits."""
    rows = [
        (
            printable(each.name),
            str(each.world_size_before),
            ranges_text(each.lost_ranks) or "-",
            str(each.world_size),
            each.placement or "none: all of its resources are gone",
        )
        for each in remainder.components
    ]
    topology = remainder.plan.topology
    gone = node_list(remainder.lost_nodes)
    left = f"{counted(topology.num_nodes, 'node')} with {counted(topology.num_accelerators, 'accelerator')}"
    answer = "every rank keeps its place" if remainder.is_whole else "not all of the job fits"
    head = f"without {gone}: {left} left, numbered anew from 0; {answer}"
    return "\n".join([head, *text_table([_HEADINGS, *rows], _NUMBERS), "", ""])
