"""What moves between two plans, as text: a row for all neighbouring ranks that move alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlinf.scheduler.placement import ComponentDiff, Place, PlanDiff, RankMove
from rlinf.scheduler.placement.wording import counted, ranges_text, rank_range

DIFF_DATA_VERSION = 1
_HEADINGS = ("component", "rank", "before", "after")
_NOWHERE = "-"


@dataclass(frozen=True, slots=True)
class DiffRow:
    """Neighbouring ranks of a component that move from one node to another."""

    component: str
    first_rank: int
    last_rank: int
    before: Place | None
    after: Place | None

    @property
    def cells(self) -> tuple[str, ...]:
        """The row under the headings."""
        ranks = rank_range(self.first_rank, self.last_rank)
        return self.component, ranks, _place_text(self.before), _place_text(self.after)


def diff_rows(diff: PlanDiff, *, every_rank: bool) -> Iterator[DiffRow]:
    """The rows: one a rank that moves, or one for all that move together."""
    for component in diff.components:
        pending: DiffRow | None = None
        for move in component.moves:
            row = DiffRow(component.name, move.rank, move.rank, move.before, move.after)
            if pending is not None and not every_rank and _together(pending, row):
                pending = _joined(pending, row)
                continue
            if pending is not None:
                yield pending
            pending = row
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


def _together(above: DiffRow, row: DiffRow) -> bool:
    return (
        row.first_rank == above.last_rank + 1
        and _same_node(above.before, row.before)
        and _same_node(above.after, row.after)
    )


def _same_node(place: Place | None, other: Place | None) -> bool:
    if place is None or other is None:
        return place is other
    return (place.node_rank, place.hardware_type) == (other.node_rank, other.hardware_type)


def _joined(above: DiffRow, row: DiffRow) -> DiffRow:
    return replace(
        above,
        last_rank=row.last_rank,
        before=_all_devices(above.before, row.before),
        after=_all_devices(above.after, row.after),
    )


def _all_devices(place: Place | None, other: Place | None) -> Place | None:
    if place is None or other is None:
        return None
    return replace(place, devices=tuple(sorted({*place.devices, *other.devices})))


def _place_text(place: Place | None) -> str:
    if place is None:
        return _NOWHERE
    devices = f" {place.hardware_type} {ranges_text(place.devices)}" if place.hardware_type else ""
    return f"node {place.node_rank}{devices}"


def _change_text(component: ComponentDiff) -> str:
    after = counted(component.after or 0, "rank")
    if component.change == "added":
        return f"{component.name}: new, {after}"
    if component.change == "removed":
        return f"{component.name}: gone, had {counted(component.before or 0, 'rank')}"
    moved = f"{component.num_moved} of {counted(component.before or 0, 'rank')} move"
    if component.change == "resized":
        return f"{component.name}: from {component.before} to {after}; {moved}"
    return f"{component.name}: {moved}"
