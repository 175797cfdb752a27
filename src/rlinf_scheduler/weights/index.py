"""Which versions of weights there are, and who has which shards of them, as the job's home knows. Pure.

A version is complete when nothing of its tensors is missing; readers get the newest that is. What a publisher keeps
is decided here: the newest complete version, and the last two beyond it, so that a rank may be one version ahead. Of
the newest complete version each rank's shards are held by the next rank of its machine, too: they outlive its process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.errors import NameTaken, PeerDied, WeightsError, WeightsReplaced
from rlinf_scheduler.weights.layout import Box, WeightsLayout, item_size, uncovered
from rlinf_scheduler.weights.records import (
    NO_VERSION,
    Announce,
    Find,
    FoundVersion,
    HeldShards,
    KeptVersions,
    PackedLayout,
    Shards,
    Source,
    check_growth,
    digest_of,
    entry_of,
    together,
    unpacked,
)
from rlinf_scheduler.weights.sources import MemoryPlace, Missing, Problem, Sources

# So many versions that are not complete yet are kept by a rank.
AHEAD = 2
# So many processes are named in a message.
MOST_NAMED = 3

Layouts: TypeAlias = Mapping[bytes, PackedLayout]
# Who is to keep which versions.
Notice: TypeAlias = tuple[Endpoint, KeptVersions]
Judge: TypeAlias = Callable[[Layouts, Sequence[str]], Sequence[Problem]]
FindGap: TypeAlias = Callable[[Layouts, Sequence[str]], tuple[str, list[Box]] | None]


class PublishedState(NamedTuple):
    """What is known of weights, as `PublishedWeights` shows it."""

    name: str
    version: int | None
    sources: dict[str, int]
    lacks: dict[int, str]


@dataclass(slots=True)
class _Weights:
    """What is published under one name.

    Attributes:
        group: whose they are.
        launch: of the group.
        shards: who has what, by version and rank.
        newest: the last version that each rank has announced, and its shards, also those of ranks that are lost.
        lost: why the process of a rank is gone, as long as it has no other one.
        layouts: by their digests.
        complete: the newest complete version.
        shared: the last version that was complete, though some of it may be lost,
        holders: and the rank that is to hold each rank's shards of that.
        held: which process holds the shards of another one, by the id of that.
    """

    group: str
    launch: int
    shards: dict[int, dict[int, Shards]] = field(default_factory=dict)
    newest: dict[int, tuple[int, Shards]] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    layouts: dict[bytes, PackedLayout] = field(default_factory=dict)
    complete: int = NO_VERSION
    shared: int = NO_VERSION
    holders: dict[int, int] = field(default_factory=dict)
    held: dict[str, Endpoint] = field(default_factory=dict)

    def living(self) -> dict[int, Shards]:
        """Return the last shards of each rank whose process lives."""
        return {rank: shards for rank, (_, shards) in self.newest.items() if rank not in self.lost}

    def rank_of(self, process_id: str) -> int | None:
        """Return the rank that a process has; None if it has none."""
        living = self.living().items()
        return next((rank for rank, shards in living if _process_id(shards) == process_id), None)

    def givers(self, version: int, lost: Collection[str]) -> dict[int, Endpoint]:
        """Return who gives each rank's shards: its process, or what holds them if that is one of the lost."""
        alive = {_process_id(shards) for shards in self.living().values()}.difference(lost)
        found = {}
        for rank, shards in self.shards[version].items():
            own = shards.publisher.endpoint
            holder = self.held.get(own.process_id, own)
            if own.process_id in alive:
                found[rank] = own
            elif version == self.shared and holder.process_id in alive:
                found[rank] = holder
        return found

    def without(self, process_id: str) -> dict[int, dict[int, Shards]]:
        """Return whose shards are there without one process."""
        return {
            version: {rank: there[rank] for rank in self.givers(version, (process_id,))}
            for version, there in self.shards.items()
        }

    def share_holding(self) -> set[int]:
        """Let each rank's shards of the newest complete version be held by the next rank of its machine.

        Those of the dead stay where they are. Returns the ranks that hold others, or have held them until now.
        """
        if self.complete == NO_VERSION:
            return set()
        before, there = self.holders, self.shards[self.complete]
        alive = {_process_id(shards) for shards in self.living().values()}
        machines: dict[str, list[int]] = {}
        for rank, shards in sorted(there.items()):
            if not shards.device and _process_id(shards) in alive:
                machines.setdefault(shards.publisher.endpoint.machine_id, []).append(rank)
        beside = [(ranks, [*ranks[1:], ranks[0]]) for ranks in machines.values() if len(ranks) > 1]
        self.holders = {rank: holder for two in beside for rank, holder in zip(*two, strict=True)}
        if self.shared == self.complete:
            left = before.keys() & there.keys()
            self.holders |= {each: before[each] for each in left if _process_id(there[each]) not in alive}
            self.held = {of: holder for of, holder in self.held.items() if self.is_holder(of, holder)}
        else:
            self.shared, self.held = self.complete, {}
        return {*before.values(), *self.holders.values()}

    def is_holder(self, of: str, holder: Endpoint) -> bool:
        """Whether a process is to hold the shards of another one."""
        there = self.shards.get(self.shared, {}).items()
        rank = next((rank for rank, shards in there if _process_id(shards) == of), NO_VERSION)
        at = self.holders.get(rank, NO_VERSION)
        return at in self.newest and _process_id(self.newest[at][1]) == holder.process_id


class Index:
    """Decides which version readers get, and which ones publishers keep.

    Args:
        judge: finds what is wrong with several layouts together, as `judge` does; it may raise, and the same is then
            asked again later: what it is asked for has changed nothing yet.
        gap: finds what nobody has of several layouts, as `gap_of` does; it may raise, too.
        members_of: the numbers of a group's ranks, where it was resized; else none.
    """

    def __init__(
        self, judge: Judge, gap: FindGap, members_of: Callable[[str], Sequence[int]] = lambda _group: ()
    ) -> None:
        self._judge = judge
        self._gap = gap
        self._members_of = members_of
        self._names: dict[str, _Weights] = {}

    @property
    def names(self) -> list[str]:
        """What is published."""
        return list(self._names)

    def names_of(self, process_id: str) -> list[str]:
        """Return what a process publishes."""
        return [name for name, each in self._names.items() if each.rank_of(process_id) is not None]

    def announce(self, new: Announce) -> list[Notice]:
        """Note that a process has shards of a version; return who is to keep what from now on, that one first.

        Raises:
            WeightsError: the version does not grow, its shards do not go together with those of others, or its group
                was launched anew.
            NameTaken: a living process of another group publishes under that name.
        """
        publisher, present = new.shards.publisher, self._names.get(new.name)
        if present is not None:
            _check_owner(new, present)
        is_new = present is None or present.launch != publisher.launch
        weights = _Weights(publisher.group, publisher.launch) if present is None or is_new else present
        rank = publisher.rank
        before = weights.newest.get(rank)
        if before is not None and _process_id(before[1]) == publisher.endpoint.process_id:
            check_growth(new.name, before[0], new.version)
            left, complete = weights.shards, weights.complete
        else:
            left = weights.without("" if before is None else _process_id(before[1]))
            complete = self._newest_complete(new.name, weights, left)
        there = {**left.get(new.version, {}), rank: new.shards}
        _check_ranks(new, there.values())
        layouts = (
            weights.layouts if new.layout is None else {**weights.layouts, new.shards.digest: new.layout}
        )
        if self._is_complete(new.name, there, layouts):
            complete = max(complete, new.version)
        # Nothing is refused from here on.
        complete_before = weights.complete
        replaced = present.living().values() if present is not None and is_new else ()
        weights.shards, weights.complete = left, complete
        weights.shards[new.version] = there
        weights.newest[rank] = new.version, new.shards
        weights.lost.pop(rank, None)
        weights.layouts = layouts
        self._names[new.name] = weights
        is_over = is_new or complete != complete_before
        hold_others = weights.share_holding() if is_over else set()
        keeps = _trim(new.name, weights, weights.living() if is_over else (rank,))
        if complete in (new.version, NO_VERSION) and rank in weights.holders:
            hold_others.add(weights.holders[rank])
        keeps |= {each: _keep(new.name, weights, each) for each in hold_others.difference(weights.lost)}
        own = keeps.pop(rank, None) or _keep(new.name, weights, rank)
        over = [(each.publisher.endpoint, KeptVersions(new.name, (), _NEWEST)) for each in replaced]
        return [(publisher.endpoint, own), *_notices(weights, keeps), *over]

    def lose(self, name: str, process_id: str, why: str) -> tuple[PeerDied | None, list[Notice]]:
        """Note that a process is gone; return the error of those that wait for what it has, and what others keep."""
        weights = self._names[name]
        rank = weights.rank_of(process_id)
        if rank is None:
            return None, []
        left = weights.without(process_id)
        complete = self._newest_complete(name, weights, left)
        rest = {each: shards for each, shards in weights.living().items() if each != rank}
        goes_on = self._go_on(name, weights, rank, rest)
        weights.shards, weights.complete = left, complete
        weights.lost[rank] = why
        keeps = _trim(name, weights, rest)
        # What it was to hold, the one that holds its own shards holds.
        heir = weights.holders.get(rank, rank)
        if heir != rank:
            inherited = {each: heir if to == rank else to for each, to in weights.holders.items()}
            weights.holders = {each: to for each, to in inherited.items() if each != to}
            keeps[heir] = _keep(name, weights, heir)
        notices = _notices(weights, keeps)
        if not rest:
            del self._names[name]
        return None if goes_on else _died(name, weights.newest[rank][1], why), notices

    def hold(self, held: HeldShards) -> None:
        """Note that a process holds another one's shards of the last version that was complete."""
        weights = self._names.get(held.name)
        if weights is not None and held.version == weights.shared and weights.is_holder(held.of, held.holder):
            weights.held[held.of] = held.holder

    def find(self, question: Find) -> FoundVersion | None:
        """Return the newest complete version; None if there is none that will do.

        Raises:
            WeightsError: there is a newer one than exactly the one that is asked for.
            PeerDied: the reader cannot reach a process that alone has some of it.
            WeightsReplaced: it has a version of another launch, and asks for one by its number.
        """
        weights = self._names.get(question.name)
        if weights is None:
            return None
        if question.min_version != NO_VERSION and question.launch not in (0, weights.launch):
            raise WeightsReplaced(question.name, weights.group, question.min_version)
        if weights.complete == NO_VERSION or weights.complete < question.min_version:
            for rank, why in weights.lost.items():
                if _process_id(weights.newest[rank][1]) in question.lost:
                    raise _died(question.name, weights.newest[rank][1], why)
            return None
        version = weights.complete
        shards = weights.shards[version]
        if question.exact and version > question.min_version:
            who = next(iter(shards.values())).publisher.process if len(shards) == 1 else weights.group
            raise WeightsError(
                question.name,
                f"version {question.min_version} is over: '{who}' publishes version {version} now, and keeps no older "
                "one",
            )
        givers = weights.givers(version, question.lost)
        reached = {rank: shards[rank] for rank in givers}
        if len(reached) < len(shards) and not self._is_complete(question.name, reached, weights.layouts):
            lost = next(each for rank, each in shards.items() if rank not in reached)
            raise _died(question.name, lost, "the reader cannot reach it")
        found = _found(version, reached, givers, weights.layouts, question.known)
        return replace(found, launch=weights.launch)

    def missing(self, name: str) -> FoundVersion:
        """Return the newest complete version, which will not do, and why a newer one is not complete."""
        weights = self._names[name]
        ahead = [version for version in weights.shards if version > weights.complete]
        return FoundVersion(weights.complete, lacks=self._lacks(weights, max(ahead)) if ahead else "")

    def contents(self) -> list[PublishedState]:
        """Return what is known of all weights."""
        return [
            PublishedState(
                name,
                None if each.complete == NO_VERSION else each.complete,
                {
                    one.publisher.process: one.held_bytes
                    for one in each.shards.get(each.complete, {}).values()
                },
                {version: self._lacks(each, version) for version in each.shards if version > each.complete},
            )
            for name, each in sorted(self._names.items())
        ]

    def _newest_complete(self, name: str, weights: _Weights, left: Mapping[int, Mapping[int, Shards]]) -> int:
        """Return the newest version that is still complete."""
        for version in sorted((each for each in left if each <= weights.complete), reverse=True):
            whole = left[version] == weights.shards[version]
            if whole or self._is_complete(name, left[version], weights.layouts):
                return version
        return NO_VERSION

    def _go_on(self, name: str, weights: _Weights, lost: int, rest: Mapping[int, Shards]) -> bool:
        """Whether the ranks that are left have all that a lost one has had, so that a version needs no successor."""
        shards = weights.newest[lost][1]
        if lost in shards.ranks:
            return False
        digest = shards.digest
        if any(shards.digest == digest for shards in rest.values()):
            return True
        try:
            return self._is_complete(name, rest, weights.layouts)
        except WeightsError:  # some have published a version that is cut otherwise
            return False

    def _is_complete(self, name: str, shards: Mapping[int, Shards], layouts: Layouts) -> bool:
        """Whether nothing of a version is missing.

        Raises:
            WeightsError: its shards do not go together.
        """
        different = {each.digest: each for each in shards.values()}
        one = next(iter(different.values()), None)
        if one is None or not all(rank in shards for rank in one.ranks):
            return False
        if len(different) == 1:
            return one.held_bytes == one.total_bytes
        is_one_model = len({each.manifest for each in different.values()}) == 1
        if is_one_model and sum(each.held_bytes for each in different.values()) < one.total_bytes:
            return False
        processes = [each.publisher.process for each in different.values()]
        problems = self._judge({digest: layouts[digest] for digest in different}, processes)
        conflicts = [problem for problem in problems if not isinstance(problem, Missing)]
        if conflicts:
            more = f"; so it is with {len(conflicts) - 1} more" if len(conflicts) > 1 else ""
            raise WeightsError(name, f"'{conflicts[0].key}': {conflicts[0].text}{more}")
        return not problems

    def _lacks(self, weights: _Weights, version: int) -> str:
        """Say why a version is not complete: what is missing, and which ranks have not published it."""
        there = weights.shards[version]
        one = next(iter(there.values()))
        all_ranks = one.ranks or self._members_of(weights.group) or range(one.publisher.world_size)
        absent = [rank for rank in all_ranks if rank not in there]
        gap = self._gap({each.digest: weights.layouts[each.digest] for each in there.values()}, ())
        missing = ""
        if gap is not None:
            key, boxes = gap
            missing = f": nobody has {', '.join(map(str, boxes))} of '{key}'"
            absent = [rank for rank in absent if _had(weights, rank, key, boxes[0])] or absent
        waits = "; it waits for " + _named(weights, absent) if absent else ""
        return f"version {version} is not complete{missing}{waits}"


# As large as any version.
_NEWEST = (1 << 63) - 1


def judge(layouts: Layouts, processes: Sequence[str]) -> tuple[Problem, ...]:
    """Return what is wrong with several layouts together; not all of it, if something is missing anyway."""
    known = [unpacked(each) for each in layouts.values()]
    manifests = {id(each.manifest): each.manifest for each in known}.values()
    model = {key: (dtype, shape) for each in manifests for key, dtype, shape in each.rows()}
    is_agreed = len(manifests) == 1 or all(
        model[row[0]] == row[1:] for each in manifests for row in each.rows()
    )
    total = sum(math.prod(shape) * item_size(dtype) for dtype, shape in model.values())
    if is_agreed and sum(each.num_bytes for each in known) < total:
        return (Missing("", "not all is there"),)
    return tuple(Sources(known, [MemoryPlace("")] * len(known), processes).problems)


def _check_owner(new: Announce, present: _Weights) -> None:
    publisher = new.shards.publisher
    if publisher.group != present.group:
        holder = next(iter(present.living().values())).publisher.process
        raise NameTaken(entry_of(new.name), holder)
    if publisher.launch < present.launch:
        raise WeightsError(
            new.name,
            f"'{publisher.group}' was launched anew, and publishes them; '{publisher.process}' is of a launch before",
        )


def _check_ranks(new: Announce, there: Iterable[Shards]) -> None:
    other = next((each for each in there if each is not new.shards), None)  # all others give the same
    if other is not None and other.ranks != new.shards.ranks:
        said = [f"'{each.publisher.process}' ranks={[*each.ranks] or None}" for each in (new.shards, other)]
        raise WeightsError(
            new.name, f"all ranks give the same ranks=; of version {new.version}, {' and '.join(said)}"
        )


def _trim(name: str, weights: _Weights, ranks: Iterable[int]) -> dict[int, KeptVersions]:
    """Forget what these ranks are not to keep; return what those of them keep that have had more."""
    keeps: dict[int, KeptVersions] = {}
    for rank in ranks:
        there = sorted(version for version, shards in weights.shards.items() if rank in shards)
        kept = [each for each in there if each == weights.complete]
        kept += [each for each in there if each > weights.complete][-AHEAD:]
        for version in there:
            if version not in kept:
                del weights.shards[version][rank]
        if kept != there:
            keeps[rank] = _keep(name, weights, rank)
    complete = weights.complete
    weights.shards = {
        version: there for version, there in weights.shards.items() if there and version >= complete
    }
    used = {each.digest for there in weights.shards.values() for each in there.values()}
    used |= {each.digest for _, each in weights.newest.values()}
    if len(used) < len(weights.layouts):
        weights.layouts = {digest: each for digest, each in weights.layouts.items() if digest in used}
    return keeps


def _notices(weights: _Weights, keeps: Mapping[int, KeptVersions]) -> list[Notice]:
    return [(weights.newest[rank][1].publisher.endpoint, keep) for rank, keep in keeps.items()]


def _keep(name: str, weights: _Weights, rank: int) -> KeptVersions:
    versions = tuple(sorted(version for version, shards in weights.shards.items() if rank in shards))
    shared = weights.shards.get(weights.shared, {})
    of = [each for each, holder in weights.holders.items() if holder == rank and each in shared]
    holds = tuple(shared[each].publisher.endpoint for each in of)
    return KeptVersions(name, versions, weights.newest[rank][0], weights.shared, holds)


def _found(
    version: int,
    shards: Mapping[int, Shards],
    givers: Mapping[int, Endpoint],
    layouts: Layouts,
    known: bytes,
) -> FoundVersion:
    numbers: dict[bytes, int] = {}
    sources = tuple(
        Source(
            givers[rank],
            shards[rank].publisher.process,
            shards[rank].device,
            numbers.setdefault(shards[rank].digest, len(numbers)),
            "" if givers[rank] == shards[rank].publisher.endpoint else _process_id(shards[rank]),
        )
        for rank in sorted(shards)
    )
    digest = digest_of(list(numbers))
    unknown = None if digest == known else together([layouts[each] for each in numbers])
    return FoundVersion(version, sources, digest, unknown)


def _named(weights: _Weights, ranks: Sequence[int]) -> str:
    named = [_rank_text(weights, rank) for rank in ranks[:MOST_NAMED]]
    more = f" and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else ""
    return " and ".join(named) + more


def _rank_text(weights: _Weights, rank: int) -> str:
    if rank not in weights.newest:
        return f"rank {rank} of '{weights.group}', which has published nothing"
    version, shards = weights.newest[rank]
    process = shards.publisher.process
    if rank in weights.lost:
        return f"'{process}', which is gone: {weights.lost[rank]}"
    return f"'{process}', which has published version {version} last"


def _had(weights: _Weights, rank: int, key: str, box: Box) -> bool:
    """Whether a rank has had some of a box before."""
    if rank not in weights.newest or weights.newest[rank][1].digest not in weights.layouts:
        return False
    layout = unpacked(weights.layouts[weights.newest[rank][1].digest])
    if key not in layout.manifest.keys:
        return False
    part = layout.part(layout.manifest.keys.index(key))
    return any(len(piece.start) == len(box.start) and piece.box.overlaps(box) for piece in part.pieces)


def gap_of(layouts: Layouts, _processes: Sequence[str] = ()) -> tuple[str, list[Box]] | None:
    """Return a tensor of which something is missing, and what; None if nothing is."""
    groups: dict[int, list[WeightsLayout]] = {}
    for layout in map(unpacked, layouts.values()):
        groups.setdefault(id(layout.manifest), []).append(layout)
    places: dict[str, list[tuple[list[WeightsLayout], int]]] = {}
    for group in groups.values():
        for index, key in enumerate(group[0].manifest.keys):
            places.setdefault(key, []).append((group, index))
    whole: set[frozenset[tuple[int, int]]] = set()
    for key, there in places.items():
        those = [(layout, index) for group, index in there for layout in group]
        alike = frozenset((id(layout), layout.part_of[index]) for layout, index in those)
        if alike in whole:
            continue
        layout, index = those[0]
        missing = uncovered(layout.manifest.shapes[index], _boxes(those))
        if missing:
            return key, missing
        whole.add(alike)
    return None


def _boxes(those: Iterable[tuple[WeightsLayout, int]]) -> Iterator[Box]:
    return (piece.box for layout, index in those for piece in layout.part(index).pieces)


def _died(name: str, shards: Shards, why: str) -> PeerDied:
    return PeerDied(entry_of(name), f"published by '{shards.publisher.process}': {why}")


def _process_id(shards: Shards) -> str:
    return shards.publisher.endpoint.process_id
