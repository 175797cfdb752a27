"""Declared hardware, such as robots, numbered: the index of every piece on its node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from rlinf_scheduler.planning.topology import Topology

# Every group's table asks for the numbers of all groups of its topology: those of the last one are kept.
_last_numbers: tuple[Topology, dict[str, list[int]]] | None = None


def numbers_of(topology: Topology) -> dict[str, list[int]]:
    """As `number_hardware`; asked again for the same topology, it does not number again."""
    global _last_numbers
    kept = _last_numbers
    if kept is None or kept[0] is not topology:
        kept = _last_numbers = (topology, number_hardware(topology))
    return kept[1]


def number_hardware(topology: Topology) -> dict[str, list[int]]:
    """The index on its node of every declared piece of hardware, by group label, in the order declared.

    Pieces are numbered by node and type over all groups; a piece that a second group declares too keeps its index.
    """
    index_of: dict[tuple[Hashable, ...], int] = {}
    counts: Counter[tuple[str, int]] = Counter()
    numbers: dict[str, list[int]] = {}
    for group in topology.node_groups:
        # Settings that one group holds twice are two pieces: an address may have been left out.
        repeats: Counter[tuple[Hashable, ...]] = Counter()
        indexes = numbers[group.label] = []
        for unit in group.hardware:
            settings = (unit.type, unit.node_rank, _hashable(unit.config))
            repeats[settings] += 1
            piece = (*settings, repeats[settings])
            if piece not in index_of:
                index_of[piece] = counts[settings[:2]]
                counts[settings[:2]] += 1
            indexes.append(index_of[piece])
    return numbers


def hardware_counts(topology: Topology) -> dict[tuple[int, str], int]:
    """How many pieces of declared hardware each node has, by node and type. A piece of two groups counts once."""
    indexes = number_hardware(topology)
    pieces = {
        (unit.node_rank, unit.type, index)
        for group in topology.node_groups
        for unit, index in zip(group.hardware, indexes[group.label], strict=True)
    }
    return dict(Counter((node_rank, kind) for node_rank, kind, _ in sorted(pieces)))


def _hashable(config: object) -> Hashable:
    try:
        hash(config)
    except TypeError:
        return repr(config)
    return config
