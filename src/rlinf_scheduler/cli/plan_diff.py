"""What moves between two plans, as text: a row for all neighbouring ranks that move alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlinf_scheduler.planning import ComponentDiff, PlanDiff, RankMove, RankPlace
from rlinf_scheduler.planning.neighbours import neighbours
from rlinf_scheduler.wording import counted, node_list, printable, ranges_text, rank_range, text_table

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
    before: RankPlace | None
    after: RankPlace | None
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
        rows: Iterator[DiffRow] = (
            DiffRow(component.name, m.rank, 1, m.before, m.after) for m in component.moves
        )
        if not every_rank:
            rows = _merged(_merged(rows, _on_same_nodes, _as_one), _on_next_nodes, _over_nodes)
        yield from rows


def _merged(
    rows: Iterable[DiffRow],
    belong: Callable[[DiffRow, DiffRow], bool],
    join: Callable[[list[DiffRow]], DiffRow],
) -> Iterator[DiffRow]:
    together = neighbours(rows, lambda above, row: row.first_rank == above.next_rank and belong(above, row))
    return map(join, together)


def render_diff(diff: PlanDiff, *, every_rank: bool = False) -> str:
    """A line a move, then what becomes of each component that changes."""
    changes = [component for component in diff.components if component.moves]
    total = sum(component.after or 0 for component in diff.components)
    if not changes:
        return (
            f"nothing moves: {counted(total, 'rank')} of {counted(len(diff.components), 'component')} stay\n"
        )
    lines = [_HEADINGS, *(row.cells for row in diff_rows(diff, every_rank=every_rank))]
    return "".join(f"{line}\n" for line in (*text_table(lines), *map(_change_text, changes)))


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
    def place(of_plan: RankPlace | None, nodes: tuple[Any, ...]) -> dict[str, Any] | None:
        if of_plan is None:
            return None
        node_id = nodes[of_plan.node_rank].node_id
        return asdict(of_plan) | {"devices": list(of_plan.devices), "node_id": node_id}

    return {
        "rank": move.rank,
        "before": place(move.before, diff.old.nodes),
        "after": place(move.after, diff.new.nodes),
    }


def _on_same_nodes(above: DiffRow, row: DiffRow) -> bool:
    return _is_on(above.before, row.before, 0) and _is_on(above.after, row.after, 0)


def _as_one(rows: list[DiffRow]) -> DiffRow:
    before = _all_devices([row.before for row in rows])
    return replace(rows[0], count=len(rows), before=before, after=_all_devices([row.after for row in rows]))


def _on_next_nodes(above: DiffRow, row: DiffRow) -> bool:
    return above.count == row.count and all(
        _is_on(place, other, 1) and (place is None or other is None or place.devices == other.devices)
        for place, other in ((above.before, row.before), (above.after, row.after))
    )


def _over_nodes(rows: list[DiffRow]) -> DiffRow:
    return replace(rows[0], num_nodes=len(rows))


def _is_on(place: RankPlace | None, other: RankPlace | None, distance: int) -> bool:
    """Whether the other place is that many nodes on, on devices of the same kind; nowhere is beside nowhere."""
    if place is None or other is None:
        return place is other
    return (place.node_rank + distance, place.hardware_type) == (other.node_rank, other.hardware_type)


def _all_devices(places: list[RankPlace | None]) -> RankPlace | None:
    there = [place for place in places if place is not None]
    if not there:
        return None
    return replace(there[0], devices=tuple(sorted({device for place in there for device in place.devices})))


def _place_text(place: RankPlace | None, num_nodes: int) -> str:
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
