"""Which devices of a component another one may have for a while: time-sharing, planned. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from rlinf_scheduler.errors import PlacementError
from rlinf_scheduler.planning.record import Placement
from rlinf_scheduler.planning.resources import ResourceTable
from rlinf_scheduler.planning.strategies import FlexiblePlacementStrategy
from rlinf_scheduler.planning.topology import Topology
from rlinf_scheduler.wording import counted


@dataclass(frozen=True, slots=True)
class LentDevices:
    """What one further rank of the borrower is to have.

    Attributes:
        node_rank: the node.
        devices: their indices there.
        lenders: the ranks of the lender whose devices they are.
    """

    node_rank: int
    devices: tuple[int, ...]
    lenders: tuple[int, ...]


def lent_devices(
    lender: Sequence[Placement], borrower: Sequence[Placement], num_workers: int | None = None
) -> list[LentDevices]:
    """The devices of a component on which ranks of another one can run beside it, the lender's first ranks' first.

    Args:
        lender: where it runs.
        borrower: where that one runs, which has as many devices a rank there.
        num_workers: how many further ranks it is to have; None: as many as there are devices for.

    Raises:
        PlacementError: there are no such devices, or not so many.

    >>> from rlinf_scheduler.planning import Topology
    >>> topology = Topology.parse("1x8")
    >>> actor, rollout = (
    ...     FlexiblePlacementStrategy(places).get_placement(topology) for places in ([[0, 1], [2, 3]], [[4], [5]])
    ... )
    >>> [(each.devices, each.lenders) for each in lent_devices(actor, rollout, 3)]
    [((0,), (0,)), ((1,), (0,)), ((2,), (1,))]
    """
    if not borrower[0].has_accelerators or not any(each.has_accelerators for each in lender):
        raise PlacementError(
            "devices are lent from ranks that have accelerators to ranks that have accelerators"
        )
    width = len(borrower[0].local_hardware_ranks)
    has = {(each.node_rank, index) for each in borrower for index in each.local_hardware_ranks}
    owners: dict[int, dict[int, int]] = {}
    for each in lender:
        for index in each.local_hardware_ranks if each.has_accelerators else ():
            if (each.node_rank, index) not in has:
                owners.setdefault(each.node_rank, {}).setdefault(index, each.rank)
    found: list[LentDevices] = []
    for node_rank, ranks in owners.items():
        indices = iter(sorted(ranks))
        while len(chunk := tuple(islice(indices, width))) == width:
            lenders = tuple(dict.fromkeys(ranks[index] for index in chunk))
            found.append(LentDevices(node_rank, chunk, lenders))
    wanted = num_workers or max(1, len(found))
    if wanted > len(found):
        there = (
            f"{counted(len(found), 'further rank')} of {counted(width, 'device')} could run on its devices"
        )
        raise PlacementError(
            f"{there}, not {wanted}: the other ones are the borrower's already, or too few on a node"
        )
    return found[:wanted]


def borrowed_placement(
    lent: Sequence[LentDevices], borrower: Sequence[Placement], topology: Topology
) -> FlexiblePlacementStrategy:
    """The placement of the further ranks, in the numbers of the borrower's node groups.

    Raises:
        PlacementError: a device belongs to none of these.
    """
    labels = borrower[0].node_group.split(",")
    numbers = {
        (row.node_rank, row.first_on_node + offset): row.first + offset
        for row in ResourceTable(topology, labels).rows
        if row.kind.accelerators
        for offset in range(row.size)
    }
    for each in lent:
        if (each.node_rank, each.devices[0]) not in numbers:
            raise PlacementError(
                f"node {each.node_rank} is not in the borrower's node group, {' or '.join(labels)}"
            )
    places = [[numbers[each.node_rank, index] for index in each.devices] for each in lent]
    return FlexiblePlacementStrategy(places, labels)
