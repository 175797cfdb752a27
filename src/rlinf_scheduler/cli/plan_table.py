"""A plan as text: its table, with a row a rank or one for ranks that are placed alike; its findings; what is left."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from rlinf_scheduler.planning import ComponentPlan, FoundPlace, Plan, PlanWarning, Remainder, Run, Sharing
from rlinf_scheduler.planning.explain import devices_of, run_devices
from rlinf_scheduler.planning.neighbours import neighbours
from rlinf_scheduler.wording import counted, node_list, printable, ranges_text, rank_range, text_table

# Up to this many processes a row each is easier to read than a summary.
_MOST_RANKS_LISTED = 32
# Drawing takes about a millisecond a row.
_MOST_ROWS_DRAWN = 500

_HEADINGS = ("component", "rank", "node", "devices", "visible", "shared with")
_NUMBERS = ("rank", "node")


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `count` ranks from `first_rank` on run on each node from `first_node` to `last_node`."""

    component: str
    first_rank: int
    count: int
    first_node: int
    last_node: int
    devices: str
    visible: str
    shared_with: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The row under the table's headings."""
        cells = self.component, self.ranks, self.nodes, self.devices, self.visible, self.shared_with
        return tuple(map(printable, cells))

    @property
    def num_nodes(self) -> int:
        """How many nodes it stands for."""
        return self.last_node - self.first_node + 1

    @property
    def ranks(self) -> str:
        """The ranks as text."""
        return rank_range(self.first_rank, self.first_rank + self.count * self.num_nodes - 1)

    @property
    def nodes(self) -> str:
        """The nodes as text."""
        return rank_range(self.first_node, self.last_node)


def plan_rows(plan: Plan, *, every_rank: bool, sharing: Sharing | None = None) -> Iterator[Row]:
    """The rows of a plan's table: one a rank, or one a group of ranks that are placed alike."""
    sharing = sharing or Sharing(plan)
    for component in plan.components.values():
        yield from _ranks(component, sharing) if every_rank else _summary(component, sharing)


def render_plan(plan: Plan, *, every_rank: bool = False, sharing: Sharing | None = None) -> str:
    """A plan's table and a line of totals: with colour and lines for a terminal, plain for a pipe.

    Args:
        every_rank: a row for every rank; else a large plan gets a row for all the ranks that are placed alike.
        sharing: that of the plan, where somebody has it already.
    """
    num_processes = sum(component.world_size for component in plan.components.values())
    each = every_rank or num_processes <= _MOST_RANKS_LISTED
    rows = list(plan_rows(plan, every_rank=each, sharing=sharing))
    drawn = sys.stdout.isatty() and len(rows) <= _MOST_ROWS_DRAWN
    return (_drawn_table(rows) if drawn else _plain_table(rows)) + summary_line(plan) + "\n"


def _plain_table(rows: list[Row]) -> str:
    """A line a row, whatever its width."""
    lines = [_HEADINGS, *(row.cells for row in rows)]
    right = {_HEADINGS.index(heading) for heading in _NUMBERS}
    return "".join(f"{line}\n" for line in text_table(lines, right))


def _drawn_table(rows: list[Row]) -> str:
    # Loaded for terminals only: it takes as long as everything else here.
    from rich.box import ROUNDED  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=ROUNDED)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading in _NUMBERS else "left")
    for row, following in zip_longest(rows, rows[1:]):
        # As text, not as markup: a name may hold brackets.
        last = following is not None and following.component != row.component
        table.add_row(*map(Text, row.cells), end_section=last)
    console = Console(file=sys.stdout, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def summary_line(plan: Plan) -> str:
    """How much there is of everything."""
    topology = plan.topology
    num_processes = sum(component.world_size for component in plan.components.values())
    return (
        f"{counted(num_processes, 'process', 'es')} of {counted(len(plan.components), 'component')} on "
        f"{counted(topology.num_nodes, 'node')} with {counted(topology.num_accelerators, 'accelerator')}"
    )


def _ranks(component: ComponentPlan, sharing: Sharing) -> Iterator[Row]:
    placements = component.placements()
    for run in component.runs:
        for rank, own in zip(run.ranks, run.cut.local_hardware_ranks, strict=True):
            yield Row(
                component.name,
                rank,
                1,
                run.node_rank,
                run.node_rank,
                _device_text(run, own),
                ",".join(placements[rank].visible_accelerators) or "-",
                _names(sharing.others(component.name, devices_of(run, [own]))),
            )


def _summary(component: ComponentPlan, sharing: Sharing) -> Iterator[Row]:
    rows = (_run_row(component.name, run, sharing) for run in component.runs)
    for together in neighbours(rows, _continues):
        yield replace(together[0], last_node=together[-1].last_node)


def _continues(above: Row, row: Row) -> bool:
    alike = (above.count, above.devices, above.shared_with) == (row.count, row.devices, row.shared_with)
    return alike and row.first_node == above.last_node + 1


def _run_row(name: str, run: Run, sharing: Sharing) -> Row:
    lists = run.cut.local_hardware_ranks
    devices = sorted({index for own in lists for index in own})
    text = _device_text(run, tuple(devices))
    if devices and len(lists) > 1:
        text += _each(lists)
    visible = "its own" if run.cut.kind.accelerators else "-"
    others = _names(sharing.others(name, run_devices(run)))
    return Row(name, run.first_rank, len(lists), run.node_rank, run.node_rank, text, visible, others)


def _each(lists: tuple[tuple[int, ...], ...]) -> str:
    widths = {len(own) for own in lists}
    distinct = len(set(lists))
    if len(widths) > 1:
        return ""
    width = widths.pop()
    if distinct == len(lists):
        return f", {width} each"
    if len(lists) % distinct == 0:
        return f", {len(lists) // distinct} ranks on each" + ("" if width == 1 else f" {width}")
    return ", shared"


def _device_text(run: Run, devices: tuple[int, ...]) -> str:
    if not run.cut.kind.hardware_type:
        return "node"
    return f"{run.cut.kind.hardware_type} {ranges_text(devices)}"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "-"


# -- without some nodes ------------------------------------------------------------------------------


_LEFT_HEADINGS = ("component", "ranks", "lost", "left", "placement on what is left")


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
    return "\n".join([head, *text_table([_LEFT_HEADINGS, *rows], right=(1, 3)), "", ""])


# -- places that were found -----------------------------------------------------------------------------


def render_found(places: Iterable[FoundPlace]) -> str:
    """What each place that was found means in numbers, and why it is there."""
    lines = []
    for place in dict.fromkeys(places):
        groups = ",".join(place.rule.node_groups)
        lines.append(f"{printable(place.wish.name)}: placement '{place.rule.text}' of node group '{groups}'")
        lines += (f"  {printable(reason)}" for reason in place.reasons)
    return "".join(f"{line}\n" for line in lines) or "no component is placed by properties\n"


# -- findings ----------------------------------------------------------------------------------------


_MOST_LINES = 12


def render_warnings(warnings: Sequence[PlanWarning]) -> str:
    """A line a finding; of very many the first, and how many more there are."""
    ordered = sorted(warnings, key=lambda warning: warning.is_note)
    lines = [f"{'note' if w.is_note else 'warning'}: {printable(w.text)}\n" for w in ordered[:_MOST_LINES]]
    if len(ordered) > _MOST_LINES:
        lines.append(f"{len(ordered) - _MOST_LINES} more: --json lists all\n")
    return "".join(lines)
