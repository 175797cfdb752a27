"""Places that are found: from what a component's place must be, and what others have, to the numbers that it means.

The same wishes on the same nodes give the same numbers. What is written comes first; then, of the wishes whose
neighbours are placed, the one that the fewest resources fit; of those alike the first in the file, and last those that
take all that are free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlinf_scheduler.errors import ConfigError, PlacementError
from rlinf_scheduler.planning.grammar import MAX_RANK, format_segments, segments_of
from rlinf_scheduler.planning.plan import ComponentPlan
from rlinf_scheduler.planning.planner import PlacementRule, try_plan_components
from rlinf_scheduler.planning.resources import BARE_NODE, ResourceRow, ResourceTables
from rlinf_scheduler.planning.topology import Topology
from rlinf_scheduler.planning.wishes import PlacementWish
from rlinf_scheduler.wording import counted, did_you_mean, list_names, node_list

# Devices of one node and kind, as bits of their indices there.
_DeviceMasks = dict[tuple[int, str], int]


@dataclass(frozen=True, slots=True)
class FoundPlace:
    """Numbers that were found for a wish.

    Attributes:
        wish: what was asked for.
        rule: what it means in numbers.
        reasons: why these, a sentence each.
    """

    wish: PlacementWish
    rule: PlacementRule
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoundPlaces:
    """What became of the entries of a config.

    Attributes:
        rules: all that can be planned, in the order of the entries.
        places: those that were found.
        errors: what could not be found, and why.
    """

    rules: tuple[PlacementRule, ...]
    places: tuple[FoundPlace, ...]
    errors: tuple[ConfigError, ...]


def find_places(
    topology: Topology,
    entries: Iterable[PlacementRule | PlacementWish],
    unplaced: Collection[str] = (),
    tables: ResourceTables | None = None,
) -> FoundPlaces:
    """Find numbers for all entries that have none.

    Args:
        topology: the nodes, with their node groups.
        entries: what the file says.
        unplaced: components that have an entry with a mistake: wishes that name them are left out.
        tables: as of `try_plan_components`.

    >>> entries = [PlacementRule(("actor",), "0-3"), PlacementWish(("rollout",), count=4, same="node")]
    >>> [rule.text for rule in find_places(Topology.parse("2x4"), entries).rules]
    ['0-3', '4-7']
    """
    listed = list(entries)
    wishes = [entry for entry in listed if isinstance(entry, PlacementWish)]
    written = [entry for entry in listed if isinstance(entry, PlacementRule)]
    if not wishes:
        return FoundPlaces(tuple(written), (), ())
    tables = ResourceTables(topology) if tables is None else tables
    finder = _Finder(topology, listed, unplaced, tables)
    for plan in try_plan_components(topology, written, tables)[0].components.values():
        finder.occupy(plan)
    found: dict[int, FoundPlace] = {}
    errors: list[ConfigError] = []
    for wish in finder.in_turn(wishes, errors):
        try:
            found[id(wish)] = finder.find(wish)
        except PlacementError as error:
            errors.append(error.at(path=error.path or wish.path, component=wish.name))
    rules = [
        entry if isinstance(entry, PlacementRule) else found[id(entry)].rule
        for entry in listed
        if isinstance(entry, PlacementRule) or id(entry) in found
    ]
    places = tuple(found[id(wish)] for wish in wishes if id(wish) in found)
    return FoundPlaces(tuple(rules), places, tuple(errors))


class _Piece(NamedTuple):
    """Free neighbours of one row of resources; `first` is an index on the node."""

    row: ResourceRow
    first: int
    size: int


@dataclass(slots=True)
class _Room:
    """What is free on one node, or on one island of a node.

    Attributes:
        node_rank: the node.
        pieces: the neighbours that processes may be cut from.
        capacity: how many resources whole processes can be given.
        load: how many components a bare node has already.
    """

    node_rank: int
    pieces: list[_Piece]
    capacity: int
    load: int

    def take(self, count: int, width: int) -> Iterator[_Piece]:
        """Cut resources for processes of some width: from the smallest piece that has all of them, else in order."""
        enough = [piece for piece in self.pieces if piece.size // width * width >= count]
        for piece in [min(enough, key=lambda p: p.size)] if enough else self.pieces:
            taken = min(count, piece.size // width * width)
            if taken:
                yield piece._replace(size=taken)
                count -= taken


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a wish's resources are shared: `width` for each process, or `sharing` processes for each."""

    width: int = 1
    sharing: int = 1


class _Finder:
    """Who has which devices, while places are found one after another."""

    def __init__(
        self,
        topology: Topology,
        entries: Sequence[PlacementRule | PlacementWish],
        unplaced: Collection[str],
        tables: ResourceTables,
    ) -> None:
        self._topology = topology
        self._names = [*(name for entry in entries for name in entry.components), *unplaced]
        self._holders: dict[str, _DeviceMasks] = {}
        self._used: _DeviceMasks = {}
        self._load: dict[int, int] = defaultdict(int)
        self._tables = tables
        self._fitting: dict[int, list[ResourceRow]] = {}

    def occupy(self, plan: ComponentPlan) -> None:
        """Note what a component has."""
        own = self._holders.setdefault(plan.name, {})
        for run in plan.runs:
            key = run.node_rank, run.cut.kind.hardware_type
            if key not in own:
                own[key] = 0
                self._load[run.node_rank] += run.cut.kind is BARE_NODE
            for lists in run.cut.local_hardware_ranks:
                for index in lists:
                    own[key] |= 1 << index
        for key, mask in own.items():
            self._used[key] = self._used.get(key, 0) | mask

    def in_turn(self, wishes: Sequence[PlacementWish], errors: list[ConfigError]) -> Iterator[PlacementWish]:
        """Yield wishes as they are to be placed; those that name what is not placed go into `errors`."""
        waiting = []
        for wish in wishes:
            try:
                self._check_names(wish)
                self._fitting[id(wish)] = self._rows_that_fit(wish)
                waiting.append(wish)
            except PlacementError as error:
                errors.append(error.at(path=error.path or wish.path, component=wish.name))
        waiting.sort(key=lambda wish: (sum(row.size for row in self._fitting[id(wish)]), _takes_all(wish)))
        unplaced = {name for wish in waiting for name in wish.components}
        while waiting:
            ready = next((each for each in waiting if unplaced.isdisjoint(each.others)), None)
            if ready is None:
                problem = f"{list_names(wish.name for wish in waiting)} are placed by each other"
                errors.append(PlacementError(problem, path=waiting[0].path))
                return
            waiting.remove(ready)
            unplaced.difference_update(ready.components)
            # What it is to be beside may have no place itself, which is told there.
            if all(name in self._holders for name in ready.others):
                yield ready

    def find(self, wish: PlacementWish) -> FoundPlace:
        """Find a place and occupy it.

        Raises:
            PlacementError: there is none; its text says what is missing.
        """
        shape = _shape(wish)
        rows = self._near(wish, self._fitting[id(wish)])
        free = list(self._free(wish, rows))
        rooms = list(self._rooms(wish, free, shape.width))
        chosen = self._choose(wish, rooms, shape)
        pieces = sorted(
            (piece for room, count in chosen for piece in room.take(count, shape.width)),
            key=lambda piece: piece.row.first + piece.first - piece.row.first_on_node,
        )
        rule = PlacementRule(
            wish.components,
            format_segments(segments_of(list(_given(pieces, shape)))),
            wish.node_groups,
            *(wish.path,) * 3,
        )
        num_free = sum(each.bit_count() for _, each in free)
        plan = try_plan_components(self._topology, [rule], self._tables)[0]
        for component in plan.components.values():
            self.occupy(component)
        return FoundPlace(wish, rule, tuple(self._reasons(wish, num_free, chosen)))

    # -- what fits -------------------------------------------------------------------------------------

    def _check_names(self, wish: PlacementWish) -> None:
        for name in wish.others:
            if name in wish.components:
                raise PlacementError(f"'{name}' is placed by itself")
            if name not in self._names:
                problem = f"there is no component '{name}'; there are {list_names(self._names)}"
                raise PlacementError(problem, hint=did_you_mean(name, self._names))

    def _rows_that_fit(self, wish: PlacementWish) -> list[ResourceRow]:
        """Return the resources of nodes with the properties of a wish, whoever has them."""
        table = self._tables[wish.node_groups]
        if not wish.properties:
            return table.rows
        nodes = dict.fromkeys(row.node_rank for row in table.rows)
        misfits = self._misfits(wish, nodes)
        rows = [row for row in table.rows if not misfits[row.node_rank]]
        if not rows:
            nearest = min(nodes, key=lambda rank: (len(misfits[rank]), rank)) if nodes else None
            near = "" if nearest is None else f"nearest is node {nearest}: {', '.join(misfits[nearest])}"
            raise PlacementError(f"no node has {wish.properties}", hint=near)
        return rows

    def _misfits(self, wish: PlacementWish, nodes: Iterable[int]) -> Mapping[int, list[str]]:
        """Return what each node lacks of a wish's properties; nodes that are alike are looked at once."""
        known: dict[tuple[object, ...], list[str]] = {}
        found = {}
        for rank in nodes:
            node = self._topology.nodes[rank]
            alike = (
                node.accelerator_model,
                node.accelerator_type,
                node.memory_bytes,
                node.num_accelerators,
                node.labels,
            )
            if alike not in known:
                known[alike] = wish.properties.misfits(node)
            found[rank] = known[alike]
        return found

    def _near(self, wish: PlacementWish, rows: list[ResourceRow]) -> list[ResourceRow]:
        """Return the rows on nodes beside and without the components that a wish names."""
        for name in wish.beside:
            there = self._nodes_of(name)
            kept = [row for row in rows if row.node_rank in there]
            if not kept:
                raise PlacementError(
                    f"'{name}', which it is to be beside, is on {node_list(there)}; {_fits(rows)}"
                )
            rows = kept
        for name in wish.not_with:
            there = self._nodes_of(name)
            kept = [row for row in rows if row.node_rank not in there]
            if not kept:
                raise PlacementError(
                    f"'{name}', which it is not to be with, is on all of them: {_fits(rows)}"
                )
            rows = kept
        for name in wish.sharing:
            on_bare_nodes = not any(hardware_type for _, hardware_type in self._holders[name])
            if on_bare_nodes or all(row.kind is BARE_NODE for row in rows):
                who = f"'{name}' has none" if on_bare_nodes else "nodes are none"
                raise PlacementError(
                    f"`with: {name}` is for the same devices, and {who}",
                    hint=f"`beside: {name}` is for the same nodes",
                )
        return rows

    def _nodes_of(self, name: str) -> set[int]:
        return {node_rank for node_rank, _ in self._holders[name]}

    # -- what is free ------------------------------------------------------------------------------------

    def _rooms(
        self, wish: PlacementWish, available: Sequence[tuple[ResourceRow, int]], width: int
    ) -> Iterator[_Room]:
        """Yield what is free, by node; by island where one is asked for."""
        rooms: dict[tuple[int, int], _Room] = {}
        for row, free in available:
            islands = self._topology.nodes[row.node_rank].islands if row.kind.accelerators else ()
            if wish.same == "island" and not islands:
                continue
            for piece in _pieces(row, free, islands):
                island = islands[piece.first] if wish.same == "island" else 0
                room = rooms.get((row.node_rank, island))
                if room is None:
                    room = _Room(row.node_rank, [], 0, self._load[row.node_rank])
                    rooms[row.node_rank, island] = room
                room.pieces.append(piece)
                room.capacity += piece.size // width * width
        yield from (room for room in rooms.values() if room.capacity)

    def _free(self, wish: PlacementWish, rows: Iterable[ResourceRow]) -> Iterator[tuple[ResourceRow, int]]:
        """Yield rows with what a wish may have of them; what is in two of its node groups is had once."""
        had: _DeviceMasks = {}
        for row in rows:
            key = row.node_rank, row.kind.hardware_type
            free = self._free_in(wish, row) & ~had.get(key, 0)
            had[key] = had.get(key, 0) | free
            yield row, free

    def _free_in(self, wish: PlacementWish, row: ResourceRow) -> int:
        mask = ((1 << row.size) - 1) << row.first_on_node
        if row.kind is BARE_NODE:
            return 0 if wish.sharing else mask  # it is no device
        key = row.node_rank, row.kind.hardware_type
        if not wish.sharing:
            return mask & ~self._used.get(key, 0)
        for name in wish.sharing:
            mask &= self._holders[name].get(key, 0)
        return mask

    # -- what is taken -----------------------------------------------------------------------------------

    def _choose(self, wish: PlacementWish, rooms: list[_Room], shape: _Shape) -> list[tuple[_Room, int]]:
        if wish.per_node is not None:
            return self._some_of_each(wish, rooms, wish.per_node)
        each = [room.capacity for room in rooms]
        total = sum(each)
        count = wish.count or (max(each, default=0) if wish.same else total)
        if count == 0 or (total < count and not wish.same):
            raise self._lacking(wish, rooms, shape, max(count, 1))
        if whole := _best([room for room in rooms if room.capacity >= count], count):
            return [(whole, count)]
        if wish.same:
            raise self._lacking(wish, rooms, shape, count)
        chosen = []
        for room in sorted(rooms, key=lambda room: (-room.capacity, room.load, room.node_rank)):
            if room.capacity > count:
                break
            chosen.append((room, room.capacity))
            count -= room.capacity
        taken = {id(room) for room, _ in chosen}
        rest = [room for room in rooms if id(room) not in taken]
        last = _best([room for room in rest if room.capacity >= count], count) if count else None
        return [*chosen, (last, count)] if last is not None else chosen

    def _some_of_each(self, wish: PlacementWish, rooms: list[_Room], each: int) -> list[tuple[_Room, int]]:
        fit = sorted(
            (room for room in rooms if room.capacity >= each),
            key=lambda room: (room.capacity - each, room.load, room.node_rank),
        )
        num_nodes = len(fit) if wish.count is None else wish.count // each
        if len(fit) < num_nodes or not fit:
            whose = f" of {list_names(wish.sharing)}" if wish.sharing else " free"
            problem = f"{counted(max(num_nodes, 1), 'node')} with {each}{whose} each are needed"
            raise self._shortage(wish, problem, rooms)
        return [(room, each) for room in fit[:num_nodes]]

    def _lacking(self, wish: PlacementWish, rooms: list[_Room], shape: _Shape, count: int) -> PlacementError:
        noun = self._noun(wish)
        wide = f", {shape.width} neighbours for each process" if shape.width > 1 else ""
        where = f" on one {wish.same}" if wish.same else ""
        if wish.same == "island" and not any(node.islands for node in self._topology.nodes):
            problem = "which devices are joined directly is not known of any node"
            return PlacementError(
                problem, hint="`island` of accelerators in a fleet's file says it; or `same: node`"
            )
        verb = "is" if count == 1 else "are"
        return self._shortage(wish, f"{counted(count, noun)}{where} {verb} needed{wide}", rooms)

    def _shortage(self, wish: PlacementWish, problem: str, rooms: list[_Room]) -> PlacementError:
        rows = self._near(wish, self._fitting[id(wish)])
        fit, free = sum(row.size for row in rows), self._num_free(wish, rows)
        whose = f"of {list_names(wish.sharing)}" if wish.sharing else "free"
        said = [f"{problem}; of {counted(fit, self._noun(wish))} that may be chosen, {free} are {whose}"]
        if rooms:
            most = max(rooms, key=lambda room: (room.capacity, -room.node_rank))
            said.append(f"at most {most.capacity} on one {wish.same or 'node'}, node {most.node_rank}")
        holders = {} if wish.sharing else self._holders_in(rows)
        said += [f"{count} are of '{name}'" for name, count in holders.items()]
        first = next(iter(holders), "")
        hint = f"`with: {first}` shares the devices of '{first}'" if first else ""
        return PlacementError(", ".join(said), hint=hint)

    def _num_free(self, wish: PlacementWish, rows: Iterable[ResourceRow]) -> int:
        return sum(free.bit_count() for _, free in self._free(wish, rows))

    def _holders_in(self, rows: Sequence[ResourceRow]) -> dict[str, int]:
        """Return how many of some resources each component has."""
        counts: dict[str, int] = defaultdict(int)
        for row in rows:
            key, mask = (row.node_rank, row.kind.hardware_type), ((1 << row.size) - 1) << row.first_on_node
            for name, own in self._holders.items():
                counts[name] += (own.get(key, 0) & mask).bit_count()
        return {name: count for name, count in counts.items() if count}

    def _noun(self, wish: PlacementWish) -> str:
        return self._tables[wish.node_groups].noun

    # -- why -----------------------------------------------------------------------------------------------

    def _reasons(
        self, wish: PlacementWish, num_free: int, chosen: Sequence[tuple[_Room, int]]
    ) -> Iterator[str]:
        rows, noun = self._fitting[id(wish)], self._noun(wish)
        fit = sum(row.size for row in rows)
        asked = str(wish.properties) or f"in {list_names(wish.node_groups)}"
        yield f"{counted(fit, noun)} fit ({asked}), on {node_list(dict.fromkeys(row.node_rank for row in rows))}"
        if wish.properties:
            yield from self._others_lack(wish, rows)
        yield from (f"beside '{name}': {node_list(self._nodes_of(name))}" for name in wish.beside)
        yield from (f"not with '{name}': not {node_list(self._nodes_of(name))}" for name in wish.not_with)
        yield from (f"on devices of '{name}'" for name in wish.sharing)
        if not wish.sharing and noun != BARE_NODE.noun:
            yield f"{num_free} of them are free of other components"
        nodes = sorted({room.node_rank for room, _ in chosen})
        taken = sum(count for _, count in chosen)
        what = "" if noun == BARE_NODE.noun else f"{counted(taken, noun)} on "
        yield f"{what}{node_list(nodes)}: {self._rule_of_choice(wish, nodes)}"

    def _others_lack(self, wish: PlacementWish, rows: Sequence[ResourceRow]) -> Iterator[str]:
        fitting = {row.node_rank for row in rows}
        others = [
            row.node_rank for row in self._tables[wish.node_groups].rows if row.node_rank not in fitting
        ]
        why: dict[str, list[int]] = defaultdict(list)
        for rank, misfits in self._misfits(wish, dict.fromkeys(others)).items():
            why[misfits[0]].append(rank)
        yield from (f"{node_list(ranks)}: {reason}" for reason, ranks in why.items())

    def _rule_of_choice(self, wish: PlacementWish, nodes: Sequence[int]) -> str:
        if wish.per_node is not None:
            return f"{wish.per_node} on each, where the fewest are left over"
        if wish.same:
            return f"one {wish.same}, where the fewest are left over"
        if wish.count is None:
            return "all that there are"
        return "the node where the fewest are left over" if len(nodes) == 1 else "as few nodes as it takes"


def _shape(wish: PlacementWish) -> _Shape:
    """Return how resources and processes are paired.

    Raises:
        PlacementError: the numbers do not go together.
    """
    count, each, processes = wish.count, wish.per_node, wish.processes
    if count is not None and each is not None and count % each:
        near = count - count % each
        raise PlacementError(
            f"`count` is {count}, which is not a multiple of {each}, its `per_node`",
            hint=f"{near} or {near + each}" if near else f"{each}",
        )
    if wish.same and each is not None and count != each:
        raise PlacementError(f"`same: {wish.same}` and `per_node` exclude each other")
    if processes is None:
        return _Shape()
    if count is None:
        raise PlacementError("`processes` needs `count`: how many resources they share")
    if processes > MAX_RANK + 1:
        raise PlacementError(f"`processes` is {processes}; there can be at most {MAX_RANK + 1}")
    if processes % count and count % processes:
        raise PlacementError(
            f"{processes} processes cannot share {count} resources evenly; one count divides the other"
        )
    shape = _Shape(max(1, count // processes), max(1, processes // count))
    if each is not None and each % shape.width:
        raise PlacementError(
            f"`per_node` is {each}, which is not a multiple of {shape.width}, what a process has"
        )
    return shape


def _takes_all(wish: PlacementWish) -> bool:
    return wish.count is None and not wish.sharing


def _fits(rows: Iterable[ResourceRow]) -> str:
    return f"what fits is on {node_list(dict.fromkeys(row.node_rank for row in rows))}"


def _best(rooms: Sequence[_Room], count: int) -> _Room | None:
    """Return the room that has the fewest left over."""
    return min(rooms, key=lambda room: (room.capacity - count, room.load, room.node_rank), default=None)


def _pieces(row: ResourceRow, free: int, islands: tuple[int, ...]) -> Iterator[_Piece]:
    """Yield the runs of free neighbours of a row; none goes from one island to another."""
    index, end = row.first_on_node, row.first_on_node + row.size
    if not islands and free == ((1 << row.size) - 1) << index:
        yield _Piece(row, index, row.size)
        return
    while index < end:
        first = index
        while index < end and free >> index & 1 and (not islands or islands[index] == islands[first]):
            index += 1
        if index > first:
            yield _Piece(row, first, index - first)
        else:
            index += 1


def _given(pieces: Iterable[_Piece], shape: _Shape) -> Iterator[range]:
    """Yield the numbers of each process, in rank order."""
    for row, first, size in pieces:
        start = row.first + first - row.first_on_node
        for number in range(start, start + size, shape.width):
            yield from [range(number, number + shape.width)] * shape.sharing
