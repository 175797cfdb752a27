"""A plan as a table: a row a rank, or of a large plan a row for all the ranks that are placed alike."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest

from rlinf.scheduler.placement import ComponentPlan, Plan, Run, Sharing
from rlinf.scheduler.placement.explain import devices_of, run_devices

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
        return self.component, self.ranks, self.nodes, self.devices, self.visible, self.shared_with

    @property
    def num_nodes(self) -> int:
        """How many nodes it stands for."""
        return self.last_node - self.first_node + 1

    @property
    def ranks(self) -> str:
        """The ranks as text."""
        return _range(self.first_rank, self.first_rank + self.count * self.num_nodes - 1)

    @property
    def nodes(self) -> str:
        """The nodes as text."""
        return _range(self.first_node, self.last_node)


def plan_rows(plan: Plan, *, every_rank: bool) -> Iterator[Row]:
    """The rows of a plan's table: one a rank, or one a group of ranks that are placed alike."""
    sharing = Sharing(plan)
    for component in plan.components.values():
        yield from _ranks(component, sharing) if every_rank else _summary(component, sharing)


def render_plan(plan: Plan, *, every_rank: bool = False) -> str:
    """A plan's table and a line of totals: with colour and lines for a terminal, plain for a pipe.

    Args:
        plan: the plan.
        every_rank: a row for every rank; else a large plan gets a row for all the ranks that are placed alike.
    """
    num_processes = sum(component.world_size for component in plan.components.values())
    rows = list(plan_rows(plan, every_rank=every_rank or num_processes <= _MOST_RANKS_LISTED))
    drawn = sys.stdout.isatty() and len(rows) <= _MOST_ROWS_DRAWN
    return (_drawn_table(rows) if drawn else _plain_table(rows)) + _summary_line(plan, num_processes) + "\n"


def _plain_table(rows: list[Row]) -> str:
    """A line a row, whatever its width."""
    lines = [_HEADINGS, *(row.cells for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join("  ".join(map(_justified, line, widths, _HEADINGS)).rstrip() + "\n" for line in lines)


def _justified(cell: str, width: int, heading: str) -> str:
    return cell.rjust(width) if heading in _NUMBERS else cell.ljust(width)


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


def _summary_line(plan: Plan, num_processes: int) -> str:
    topology = plan.topology
    return (
        f"{_count(num_processes, 'process', 'es')} of {_count(len(plan.components), 'component')} on "
        f"{_count(topology.num_nodes, 'node')} with {_count(topology.num_accelerators, 'accelerator')}"
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
    pending: Row | None = None
    for run in component.runs:
        row = _run_row(component.name, run, sharing)
        if pending is not None and _continues(pending, row):
            pending = replace(pending, last_node=row.first_node)
        else:
            if pending is not None:
                yield pending
            pending = row
    if pending is not None:
        yield pending


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
    return f"{run.cut.kind.hardware_type} {_ranges(devices)}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """Ascending numbers, neighbours joined: (0, 1, 2, 5) is "0-2,5"."""
    if not numbers:
        return ""
    breaks = [index for index, (a, b) in enumerate(pairwise(numbers), start=1) if b != a + 1]
    starts, ends = [0, *breaks], [*breaks, len(numbers)]
    return ",".join(_range(numbers[a], numbers[b - 1]) for a, b in zip(starts, ends, strict=True))


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "-"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"
