"""Cutting resources into processes, none of which spans nodes or kinds of hardware."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, pairwise, repeat

from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.planning.plan import Cut, DeviceLists
from rlinf_scheduler.planning.resources import BARE_NODE, ResourceRow, ResourceTable

# Makes an error of a sentence; the caller knows the text and the spot.
Fail = Callable[[str], PlacementError]


def cut_evenly(
    table: ResourceTable, resources: range, num_processes: int, first_rank: int, fail: Fail
) -> Iterator[Cut]:
    """Give consecutive resources to processes, evenly.

    Args:
        table: what the resources are.
        resources: consecutive numbers.
        num_processes: how many share them; it divides the number of resources or is divided by it.
        first_rank: the rank of the first process, for errors.
        fail: makes an error.

    Yields:
        The processes in rank order, one cut a row of resources at least.

    Raises:
        PlacementError: a process would span nodes or kinds of hardware.
    """
    if num_processes >= len(resources):
        return _shared(table, resources, num_processes // len(resources))
    return _wide(table, resources, len(resources) // num_processes, first_rank, fail)


def cut_one(table: ResourceTable, resources: Sequence[int], rank: int, fail: Fail) -> Cut:
    """Give one process its resources.

    Args:
        table: what the resources are.
        resources: ascending numbers.
        rank: the process's rank, for errors.
        fail: makes an error.

    Raises:
        PlacementError: the process would span nodes or kinds of hardware.
    """
    row = table.rows[table.index_at(resources[0])]
    if resources[-1] < row.end:
        return _of_row(row, resources)
    return _of_rows([table.rows[table.index_at(resource)] for resource in resources], resources, rank, fail)


def _shared(table: ResourceTable, resources: range, processes_each: int) -> Iterator[Cut]:
    start, stop = resources.start, resources.stop
    for row in table.rows[table.index_at(start) : table.index_at(stop - 1) + 1]:
        first, end = row.first, row.first + row.size
        if first < start or end > stop:
            first, end = max(first, start), min(end, stop)
        yield _of_pattern(row, first, end - first, 1, processes_each)


def _wide(table: ResourceTable, resources: range, width: int, rank: int, fail: Fail) -> Iterator[Cut]:
    position = resources.start
    while position < resources.stop:
        row = table.rows[table.index_at(position)]
        whole = (min(row.end, resources.stop) - position) // width
        if whole:
            yield _of_pattern(row, position, whole, width, 1)
        else:
            # The row ends within this process: the rest must be on the same node and of the same kind.
            whole = 1
            yield cut_one(table, range(position, position + width), rank, fail)
        position += whole * width
        rank += whole


def _of_pattern(row: ResourceRow, first: int, count: int, width: int, processes_each: int) -> Cut:
    if row.kind is BARE_NODE:
        return Cut(row.node_rank, row.kind, row.group, 0, ((),) * (count * processes_each))
    on_node = first - row.first + row.first_on_node
    lists = _pattern(on_node, count, width, processes_each)
    return Cut(row.node_rank, row.kind, row.group, row.first_in_group - row.first_on_node, lists)


# Nodes are mostly alike: their processes share the lists of indices.
@lru_cache(maxsize=1024)
def _pattern(first: int, count: int, width: int, processes_each: int) -> DeviceLists:
    """`count` neighbouring lists of `width` devices from `first` on, each for `processes_each` processes."""
    devices = iter(range(first, first + count * width))
    lists = zip(*repeat(devices, width), strict=True)
    if processes_each == 1:
        return tuple(lists)
    return tuple(chain.from_iterable(repeat(own, processes_each) for own in lists))


def _of_row(row: ResourceRow, resources: Sequence[int]) -> Cut:
    if row.kind is BARE_NODE:
        return Cut(row.node_rank, row.kind, row.group, 0, ((),))
    on_node = row.first_on_node - row.first
    shift = row.first_in_group - row.first_on_node
    own = tuple(number + on_node for number in resources)
    return Cut(row.node_rank, row.kind, row.group, shift, (own,))


def _of_rows(rows: list[ResourceRow], resources: Sequence[int], rank: int, fail: Fail) -> Cut:
    """One process from several rows; `rows` has the row of every resource."""
    if len({(row.node_rank, row.kind) for row in rows}) > 1:
        raise fail(_spanning(rows, resources, rank))
    offsets = [(row, number - row.first) for row, number in zip(rows, resources, strict=True)]
    ordered = sorted((row.first_on_node + o, row.first_in_group + o) for row, o in offsets)
    on_node, in_group = zip(*ordered, strict=True)
    twice = next((a for a, b in pairwise(on_node) if a == b), None)
    if twice is not None:
        device = f"{rows[0].kind.noun} {twice} of node {rows[0].node_rank}"
        raise fail(f"process {rank} would take {device} twice: its node groups overlap")
    groups = ",".join(dict.fromkeys(row.group for row in rows))
    return Cut(rows[0].node_rank, rows[0].kind, groups, 0, (on_node,), (in_group,))


def _spanning(rows: list[ResourceRow], resources: Sequence[int], rank: int) -> str:
    if all(row.kind is BARE_NODE for row in rows):
        nodes = _listed([row.node_rank for row in rows])
        return f"process {rank} would take nodes {nodes}; a process stays on one node"
    taken: dict[tuple[int, str], list[int]] = {}
    for row, number in zip(rows, resources, strict=True):
        index = number - row.first + row.first_on_node
        taken.setdefault((row.node_rank, row.kind.noun), []).append(index)
    parts: list[str] = []
    noun_before = ""
    for (node_rank, noun), indexes in taken.items():
        if noun == BARE_NODE.noun:
            parts.append(f"node {node_rank} itself")
        else:
            many = sum(row.kind.noun == noun for row in rows) > 1
            subject = "" if noun == noun_before else f"{noun}{'s' if many else ''} "
            parts.append(f"{subject}{_listed(indexes)} of node {node_rank}")
        noun_before = noun
    several_nodes = len({row.node_rank for row in rows}) > 1
    rule = "a process stays on one node" if several_nodes else "a process keeps to one kind of hardware"
    shown = parts if len(parts) <= 6 else [*parts[:6], f"of {len(parts) - 6} nodes more"]
    return f"process {rank} would take {', '.join(shown[:-1])} and {shown[-1]}; {rule}"


def _listed(numbers: Sequence[int]) -> str:
    few = ", ".join(map(str, numbers[:8]))
    return few if len(numbers) <= 8 else f"{few}, ... {numbers[-1]}"
