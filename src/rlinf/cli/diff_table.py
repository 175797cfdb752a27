"""What moves between two plans, as text: a row for all neighbouring ranks that move alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlinf.scheduler.placement import ComponentDiff, Place, PlanDiff, RankMove
from rlinf.scheduler.placement.wording import counted, node_list, printable, ranges_text, rank_range

DIFF_DATA_VERSION = 1
_HEADINGS = ("component", "rank", "before", "after")
_NOWHERE = "-"


@dataclass(frozen=True, slots=True)
class DiffRow:
    """Neighbouring ranks of a component that move from one node to another, `count` of them.

    With `num_nodes` above 1 it stands for as many neighbouring nodes, `count` ranks on each; the places are those of
    the first.
    """

    component: str
    first_rank: int
    count: int
    before: Place | None
    after: Place | None
    num_nodes: int = 1

    @property
    def cells(self) -> tuple[str, ...]:
        """The row under the headings."""
        ranks = rank_range(self.first_rank, self.next_rank - 1)
        before, after = (_place_text(place, self.num_nodes) for place in (self.before, self.after))
        return printable(self.component), ranks, printable(before), printable(after)

    @property
    def next_rank(self) -> int:
        """The rank after its last one."""
        return self.first_rank + self.count * self.num_nodes


def diff_rows(diff: PlanDiff, *, every_rank: bool) -> Iterator[DiffRow]:
    """The rows: one a rank that moves, or one for all that move together."""
    for component in diff.components:
        rows = (DiffRow(component.name, m.rank, 1, m.before, m.after) for m in component.moves)
        yield from rows if every_rank else _merged(_merged(rows, _same_nodes), _next_nodes)


# A row and the one below it as one row, or None where they stay two.
_Merge = Callable[[DiffRow, DiffRow], DiffRow | None]


def _merged(rows: Iterable[DiffRow], merge: _Merge) -> Iterator[DiffRow]:
    pending: DiffRow | None = None
    for row in rows:
        both = None if pending is None or row.first_rank != pending.next_rank else merge(pending, row)
        if both is None and pending is not None:
            yield pending
        pending = both or row
    if pending is not None:
        yield pending


def render_diff(diff: PlanDiff, *, every_rank: bool = False) -> str:
    """A line a move, then what becomes of each component that changes."""
    changes = [component for component in diff.components if component.moves]
    total = sum(component.after or 0 for component in diff.components)
    if not changes:
        return (
            f"nothing moves: {counted(total, 'rank')} of {counted(len(diff.components), 'component')} stay\n"
        )
    lines = [_HEADINGS, *(row.cells for row in diff_rows(diff, every_rank=every_rank))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = "".join("  ".join(map(str.ljust, line, widths)).rstrip() + "\n" for line in lines)
    return table + "".join(f"{_change_text(component)}\n" for component in changes)


def diff_as_data(diff: PlanDiff) -> dict[str, Any]:
    """The difference as dicts, lists, texts and numbers, for JSON. The schema is in the documents, as plan-json."""
    return {
        "version": DIFF_DATA_VERSION,
        "moves": diff.moves,
        "nodes_by_ip": diff.nodes_by_ip,
        "components": {component.name: _component_as_data(diff, component) for component in diff.components},
    }


def _component_as_data(diff: PlanDiff, component: ComponentDiff) -> dict[str, Any]:
    return {
        "change": component.change,
        "world_size_before": component.before,
        "world_size_after": component.after,
        "num_moved": component.num_moved,
        "moves": [_move_as_data(diff, move) for move in component.moves],
    }


def _move_as_data(diff: PlanDiff, move: RankMove) -> dict[str, Any]:
    def place(of_plan: Place | None, nodes: tuple[Any, ...]) -> dict[str, Any] | None:
        if of_plan is None:
            return None
        node_id = nodes[of_plan.node_rank].node_id
        return asdict(of_plan) | {"devices": list(of_plan.devices), "node_id": node_id}

    return {
        "rank": move.rank,
        "before": place(move.before, diff.old.nodes),
        "after": place(move.after, diff.new.nodes),
    }


def _same_nodes(above: DiffRow, row: DiffRow) -> DiffRow | None:
    if not (_on(above.before, row.before, 0) and _on(above.after, row.after, 0)):
        return None
    before, after = _all_devices(above.before, row.before), _all_devices(above.after, row.after)
    return replace(above, count=above.count + 1, before=before, after=after)


def _next_nodes(above: DiffRow, row: DiffRow) -> DiffRow | None:
    alike = all(
        _on(place, other, above.num_nodes)
        and (place is None or other is None or place.devices == other.devices)
        for place, other in ((above.before, row.before), (above.after, row.after))
    )
    return replace(above, num_nodes=above.num_nodes + 1) if alike and row.count == above.count else None


def _on(place: Place | None, other: Place | None, distance: int) -> bool:
    """Whether the other place is that many nodes on, on devices of the same kind; nowhere is beside nowhere."""
    if place is None or other is None:
        return place is other
    return (place.node_rank + distance, place.hardware_type) == (other.node_rank, other.hardware_type)


def _all_devices(place: Place | None, other: Place | None) -> Place | None:
    if place is None or other is None:
        return None
    return replace(place, devices=tuple(sorted({*place.devices, *other.devices})))


def _place_text(place: Place | None, num_nodes: int) -> str:
    if place is None:
        return _NOWHERE
    devices = f" {place.hardware_type} {ranges_text(place.devices)}" if place.hardware_type else ""
    return node_list(range(place.node_rank, place.node_rank + num_nodes)) + devices


def _change_text(component: ComponentDiff) -> str:
    name = printable(component.name)
    after = counted(component.after or 0, "rank")
    if component.change == "added":
        return f"{name}: new, {after}"
    if component.change == "removed":
        return f"{name}: gone, had {counted(component.before or 0, 'rank')}"
    verb = "moves" if component.num_moved == 1 else "move"
    moved = f"{component.num_moved} of {counted(component.before or 0, 'rank')} {verb}"
    if component.change == "resized":
        return f"{name}: from {component.before} to {after}; {moved}"
    return f"{name}: {moved}"
