"""`cluster.net_emulation`: which links between ranks, groups and nodes are emulated, and how slow they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from rlinf_scheduler.checks import is_text_or_number
from rlinf_scheduler.config.findings import check, shown
from rlinf_scheduler.config.schema import Section
from rlinf_scheduler.config.source import SECTION
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.planning import Topology, parse_ranks
from rlinf_scheduler.wording import counted, did_you_mean, list_names

_PATH = f"{SECTION}.net_emulation"
_NODE = "node"
_SUFFIX = "group"
_BYTES_OF_MBIT = 1e6 / 8
_FORMS = "ends are written as actor:0-3 (ranks), actor (a group), node:0-1 (nodes), or a node group's label"


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """Processes at one end of an emulated link.

    Attributes:
        group: the group's name, as `group_key` gives it; "" for whatever runs on nodes.
        ranks: its ranks, or the ranks of the nodes; None: all of the group.
    """

    group: str
    ranks: frozenset[int] | None = None

    def holds(self, group: str, rank: int, node_rank: int | None) -> bool:
        """Whether a process is here; its group is given by its key."""
        if not self.group:
            return self.ranks is not None and node_rank in self.ranks
        return group == self.group and (self.ranks is None or rank in self.ranks)


@dataclass(frozen=True, slots=True)
class EmulatedDelay:
    """How long a message is under way from one of the sources to one of the targets."""

    sources: tuple[LinkEnd, ...]
    targets: tuple[LinkEnd, ...]
    delay_s: float


@dataclass(frozen=True, slots=True)
class SharedBandwidth:
    """Ends that share one link upwards and one downwards, each of so many bytes a second."""

    members: tuple[LinkEnd, ...]
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class NetEmulation:
    """The network that a job is to see.

    Attributes:
        delays: of the pairs that are far from each other; of several entries for a pair the last one counts.
        bandwidths: of what goes between such pairs.
    """

    delays: tuple[EmulatedDelay, ...] = ()
    bandwidths: tuple[SharedBandwidth, ...] = ()

    def missing_node(self, topology: Topology) -> ConfigError | None:
        """The mistake that it names a node which is not there; None if it does not."""
        pairs = [end for each in self.delays for end in (*each.sources, *each.targets)]
        members = [end for each in self.bandwidths for end in each.members]
        named = {rank for end in (*pairs, *members) if not end.group for rank in end.ranks or ()}
        missing = sorted(rank for rank in named if rank >= len(topology.nodes))
        if not missing:
            return None
        there = counted(len(topology.nodes), "node")
        return ConfigError(f"there is no node {missing[0]}; this cluster has {there}, from 0 on", path=_PATH)


def group_key(name: str) -> str:
    """What tells a group from others in this section, where `Actor`, `actor` and `ActorGroup` are the same.

    >>> group_key("ActorGroup"), group_key("actor"), group_key("Group")
    ('actor', 'actor', 'group')
    """
    key = name.strip().casefold()
    return key.removesuffix(_SUFFIX) or key


def _ends(value: Any) -> tuple[str, ...]:
    entries = value if isinstance(value, list | tuple) else [value]
    if not entries or not all(map(is_text_or_number, entries)):
        raise ConfigError(f"this must name at least one end, not {shown(value)}", hint=_FORMS)
    return tuple(str(entry).strip() for entry in entries)


_Ends = Annotated[tuple[str, ...], PlainValidator(_ends)]


class _PairSection(Section):
    """An entry of `crossdc_pairs:`."""

    src: _Ends
    dst: _Ends
    delay_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _BandwidthSection(Section):
    """An entry of `bandwidth_groups:`."""

    members: _Ends
    bandwidth_mbps: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class NetEmulationSection(Section):
    """`net_emulation:` as it stands in the file."""

    enabled: bool = False
    symmetric: bool = True
    crossdc_pairs: Annotated[list[_PairSection], Field(default_factory=list)]
    bandwidth_groups: Annotated[list[_BandwidthSection], Field(default_factory=list)]


def read_net_emulation(
    value: Any,
    errors: list[ConfigError],
    *,
    components: Collection[str] = (),
    node_groups: Mapping[str, Collection[int] | None] | None = None,
) -> NetEmulation | None:
    """The emulated network that a section asks for; None for none, or one that is not enabled.

    Args:
        value: the section, plain data.
        errors: takes the mistakes, each with its path.
        components: the names that groups have; none: nobody knows them yet.
        node_groups: the node ranks of each declared label; None of all nodes.
    """
    if value is None:
        return None
    section, found = check(NetEmulationSection, value, _PATH)
    errors.extend(found)
    if section is None:
        return None
    reader = _EndReader(errors, {group_key(each): each for each in components}, dict(node_groups or {}))
    delays: list[EmulatedDelay] = []
    for index, pair in enumerate(section.crossdc_pairs):
        place = f"{_PATH}.crossdc_pairs[{index}]"
        sources, targets = reader.read(pair.src, f"{place}.src"), reader.read(pair.dst, f"{place}.dst")
        delays.append(EmulatedDelay(sources, targets, pair.delay_ms / 1000))
        if section.symmetric:
            delays.append(EmulatedDelay(targets, sources, pair.delay_ms / 1000))
    bandwidths = [
        SharedBandwidth(
            reader.read(each.members, f"{_PATH}.bandwidth_groups[{index}].members"),
            each.bandwidth_mbps * _BYTES_OF_MBIT,
        )
        for index, each in enumerate(section.bandwidth_groups)
    ]
    _check_members(bandwidths, errors)
    if not section.enabled:
        return None
    return NetEmulation(tuple(delays), tuple(bandwidths))


@dataclass(frozen=True, slots=True)
class _EndReader:
    """Reads ends, and keeps their mistakes.

    Attributes:
        errors: takes them.
        components: the names that groups have, by key.
        labels: the node ranks of each label.
    """

    errors: list[ConfigError]
    components: Mapping[str, str]
    labels: Mapping[str, Collection[int] | None]

    def read(self, texts: Iterable[str], path: str) -> tuple[LinkEnd, ...]:
        ends: list[LinkEnd] = []
        for text in texts:
            try:
                ends.append(self._read(text))
            except ConfigError as error:
                self.errors.append(error.at(path=path))
        return tuple(ends)

    def _read(self, text: str) -> LinkEnd:
        name, colon, ranks = text.partition(":")
        name = name.strip()
        numbers = frozenset(parse_ranks(ranks)) if colon else None
        if name == _NODE and numbers is not None:
            return LinkEnd("", numbers)
        if name in self.labels and numbers is None:
            nodes = self.labels[name]
            if nodes is None:
                raise ConfigError(f"'{name}' is all nodes: no link leads from there to elsewhere")
            return LinkEnd("", frozenset(nodes))
        if not name or (self.components and group_key(name) not in self.components):
            known = [*self.components.values(), *self.labels]
            there = f"; there are {list_names(known)}" if known else ""
            hint = did_you_mean(name, known) or _FORMS
            raise ConfigError(f"'{text}' is no group and no node group{there}", hint=hint)
        return LinkEnd(group_key(name), numbers)


def _check_members(bandwidths: Iterable[SharedBandwidth], errors: list[ConfigError]) -> None:
    """An end that shares two links would leave open which one it uses."""
    seen: dict[tuple[str, int | None], int] = {}
    for index, each in enumerate(bandwidths):
        for end in each.members:
            for rank in end.ranks or (None,):
                first = seen.setdefault((end.group, rank), index)
                if first != index:
                    what = f"{end.group or _NODE}:{rank}" if rank is not None else end.group
                    problem = f"'{what}' is a member of bandwidth_groups[{first}], too"
                    errors.append(ConfigError(problem, path=f"{_PATH}.bandwidth_groups[{index}].members"))
