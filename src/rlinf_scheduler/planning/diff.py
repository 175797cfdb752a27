"""Two plans compared: which ranks run elsewhere in the new one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlinf_scheduler.planning.plan import ComponentPlan, Plan, Run
from rlinf_scheduler.planning.topology import Node, Topology


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank runs.

    Attributes:
        node_rank: the node's rank in its plan.
        hardware_type: what the rank is given; "" for a bare node.
        devices: indices on the node, ascending.
    """

    node_rank: int
    hardware_type: str
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankMove:
    """A rank that runs elsewhere; None stands for nowhere."""

    rank: int
    before: RankPlace | None
    after: RankPlace | None


@dataclass(frozen=True, slots=True)
class ComponentDiff:
    """What becomes of a component.

    Attributes:
        name: the component.
        before: its world size in the old plan; None: it is not there.
        after: its world size in the new plan; None: it is gone.
        moves: the ranks that do not stay, in rank order: moved, new and gone ones.
    """

    name: str
    before: int | None
    after: int | None
    moves: tuple[RankMove, ...]

    @property
    def change(self) -> str:
        """The change in a word: "added", "removed", "resized", "moved" or "same"."""
        if self.before is None:
            return "added"
        if self.after is None:
            return "removed"
        if self.before != self.after:
            return "resized"
        return "moved" if self.moves else "same"

    @property
    def num_moved(self) -> int:
        """The ranks that both plans have, in different places."""
        return sum(move.before is not None and move.after is not None for move in self.moves)


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Two plans compared, component by component: those of the new plan, then those that are gone.

    Attributes:
        old: the topology of the old plan.
        new: that of the new one.
        components: all components of both.
        nodes_by_ip: whether a node is the same one where its address is; else where its rank is.
    """

    old: Topology
    new: Topology
    components: tuple[ComponentDiff, ...]
    nodes_by_ip: bool

    @property
    def moves(self) -> bool:
        """Whether anything is different: a rank runs elsewhere, is new, or is gone."""
        return any(component.moves for component in self.components)


def diff_plans(old: Plan, new: Plan) -> PlanDiff:
    """Which ranks run elsewhere in the new plan.

    A rank stays where its node and its devices stay. A node is the same one by its address where all nodes of both
    plans have one, else by its rank; an accelerator by what the visibility variable calls it, another device by its
    index.

    >>> from rlinf_scheduler.planning.planner import PlacementRule, plan_components
    >>> nodes = Topology.parse("2x4")
    >>> old = plan_components(nodes, [PlacementRule(("actor",), "0-3")])
    >>> new = plan_components(nodes, [PlacementRule(("actor",), "0-1,4-5")])
    >>> [(move.rank, move.after.node_rank) for move in diff_plans(old, new).components[0].moves]
    [(2, 1), (3, 1)]
    """
    by_ip = _has_addresses(old.topology) and _has_addresses(new.topology)
    gone = [name for name in old.components if name not in new.components]
    pairs = [(name, old.components.get(name), new.components.get(name)) for name in [*new.components, *gone]]
    components = tuple(_component_diff(name, before, after, by_ip) for name, before, after in pairs)
    return PlanDiff(old.topology, new.topology, components, by_ip)


def _has_addresses(topology: Topology) -> bool:
    addresses = {node.ip for node in topology.nodes}
    return "" not in addresses and len(addresses) == len(topology.nodes)


def _component_diff(
    name: str, before: ComponentPlan | None, after: ComponentPlan | None, by_ip: bool
) -> ComponentDiff:
    return ComponentDiff(
        name,
        before.world_size if before else None,
        after.world_size if after else None,
        tuple(_moves(before, after, by_ip)),
    )


def _moves(before: ComponentPlan | None, after: ComponentPlan | None, by_ip: bool) -> Iterator[RankMove]:
    for old, new in _overlaps(before.runs if before else (), after.runs if after else ()):
        ranks = range(max(old.start, new.start), min(old.stop, new.stop))
        if old.run and new.run and before and after:
            old_node, new_node = (
                before.topology.nodes[old.run.node_rank],
                after.topology.nodes[new.run.node_rank],
            )
            same_node = old_node.ip == new_node.ip if by_ip else old.run.node_rank == new.run.node_rank
            if same_node and old.devices(ranks, old_node) == new.devices(ranks, new_node):
                continue
            for rank in ranks:
                one = range(rank, rank + 1)
                if not same_node or old.devices(one, old_node) != new.devices(one, new_node):
                    yield RankMove(rank, old.place(rank), new.place(rank))
        else:
            yield from (RankMove(rank, old.place(rank), new.place(rank)) for rank in ranks)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Consecutive ranks: those of a run, or those that a plan does not have."""

    start: int
    stop: int
    run: Run | None

    def devices(self, ranks: range, node: Node) -> object:
        """What identifies the devices of some of its ranks on their node, comparable."""
        if self.run is None:
            return None
        cut = self.run.cut
        lists = cut.local_hardware_ranks[ranks.start - self.start : ranks.stop - self.start]
        if cut.kind.accelerators:
            names = node.accelerator_names
            return cut.kind.hardware_type, [[names[index] for index in own] for own in lists]
        return cut.kind.hardware_type, [list(own) for own in lists]

    def place(self, rank: int) -> RankPlace | None:
        """Where one of its ranks runs."""
        if self.run is None:
            return None
        cut = self.run.cut
        return RankPlace(cut.node_rank, cut.kind.hardware_type, cut.local_hardware_ranks[rank - self.start])


def _overlaps(before: tuple[Run, ...], after: tuple[Run, ...]) -> Iterator[tuple[_Stretch, _Stretch]]:
    """Every pair of stretches, an old and a new one, that have ranks in common, in rank order."""
    end = max(before[-1].ranks.stop if before else 0, after[-1].ranks.stop if after else 0)
    olds, news = _stretches(before, end), _stretches(after, end)
    old, new = next(olds, None), next(news, None)
    while old is not None and new is not None:
        yield old, new
        stop = min(old.stop, new.stop)
        if old.stop == stop:
            old = next(olds, None)
        if new.stop == stop:
            new = next(news, None)


def _stretches(runs: tuple[Run, ...], end: int) -> Iterator[_Stretch]:
    for run in runs:
        yield _Stretch(run.ranks.start, run.ranks.stop, run)
    reached = runs[-1].ranks.stop if runs else 0
    if reached < end:
        yield _Stretch(reached, end, None)
