"""The nodes as they reported themselves: which is node 0, and all of them as a fleet to plan on and to keep. Pure."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Collection, Sequence

from rlinf_scheduler.config.fleet import Fleet, FleetAccelerator, FleetInterface, FleetNode
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.hardware.devices import Device
from rlinf_scheduler.hardware.vendors import NODE_RANK_VARIABLE
from rlinf_scheduler.ray_backend.probe import NodeReport
from rlinf_scheduler.wording import counted


def order_nodes(reports: Sequence[NodeReport], num_lost: int = 0) -> list[NodeReport]:
    """The nodes in rank order.

    A node that was started with `RLINF_NODE_RANK` has that rank. The others fill the free ranks: the head
    first, then by numeric IP address, then by node id. Ranks of nodes that are gone are closed up.

    Args:
        num_lost: how many nodes were there and are gone: so many ranks may be missing.

    Raises:
        ClusterError: two nodes claim one rank, or a rank leaves a gap that no other node fills.
    """
    claimed = _claimed_ranks(reports)
    others = iter(sorted((r for r in reports if r.node_rank_setting is None), key=_fallback_key))
    ordered: list[NodeReport] = []
    num_missing = 0
    for rank in itertools.count():
        if len(ordered) == len(reports):
            break
        report = claimed.get(rank) or next(others, None)
        if report is not None:
            ordered.append(report)
            continue
        num_missing += 1
        if num_missing > num_lost:
            highest = claimed[max(claimed)]
            raise ClusterError(
                f"{highest.describe()} has {NODE_RANK_VARIABLE}={max(claimed)}, but the cluster has "
                f"{counted(len(reports), 'node')} and none has rank {rank}"
            )
    return ordered


def _claimed_ranks(reports: Sequence[NodeReport]) -> dict[int, NodeReport]:
    claimed: dict[int, NodeReport] = {}
    for report in reports:
        rank = report.node_rank_setting
        if rank is None:
            continue
        if rank in claimed:
            raise ClusterError(
                f"{report.describe()} and {claimed[rank].describe()} both have {NODE_RANK_VARIABLE}={rank}"
            )
        claimed[rank] = report
    return claimed


def _fallback_key(report: NodeReport) -> tuple[bool, int, int, str]:
    try:
        address = ipaddress.ip_address(report.ip)
    except ValueError:
        return (not report.is_head, 9, 0, f"{report.ip} {report.node_id}")
    return (not report.is_head, address.version, int(address), report.node_id)


def fleet_of(reports: Sequence[NodeReport]) -> Fleet:
    """The nodes, in the order given, as `rlinf topology --out` saves them; `.topology` of it is planned on."""
    return Fleet(tuple(_node(report) for report in reports))


def fleet_after(
    fleet: Fleet, reports: Sequence[NodeReport], draining: Collection[str] = (), room: int | None = None
) -> Fleet:
    """The nodes after some were lost and others have come; who was there keeps its rank, dead or alive.

    A new one that was started with the rank of one that is gone takes its place; others come last, in the order of
    `order_nodes`.

    Args:
        draining: the ids of nodes that live and were not asked, as they are to be given back.
        room: how many new ones are taken, in that order; None: all.

    Raises:
        ClusterError: two nodes claim one rank.
    """
    alive = {report.node_id: report for report in reports}
    nodes = [_node(alive[node.node_id]) if node.node_id in alive else node for node in fleet.nodes]
    known = {node.node_id for node in nodes}
    new = [report for report in reports if report.node_id not in known]
    new = sorted(new, key=lambda report: (report.node_rank_setting is None, _fallback_key(report)))[:room]
    for rank, report in _claimed_ranks(new).items():
        if rank < len(nodes) and nodes[rank].node_id not in (*alive, *draining):
            nodes[rank] = _node(report)
            new.remove(report)
    nodes.extend(map(_node, sorted(new, key=_fallback_key)))
    return Fleet(tuple(nodes))


def _node(report: NodeReport) -> FleetNode:
    devices = report.devices or (None,) * report.num_accelerators
    return FleetNode(
        node_id=report.node_id,
        ip=report.ip,
        hostname=report.hostname,
        accelerators=tuple(
            _accelerator(report.accelerator_type, name, device)
            for name, device in zip(report.accelerator_names, devices, strict=True)
        ),
        python=report.python,
        interfaces=tuple(FleetInterface(name, address) for name, address in report.interfaces),
        labels=report.labels,
        variables=report.variables,
        egl_devices=report.egl_devices,
    )


def _accelerator(vendor: str, name: str, device: Device | None) -> FleetAccelerator:
    if device is None:
        return FleetAccelerator(vendor, name)
    return FleetAccelerator(vendor, name, device.name, device.uuid, device.memory_bytes, device.numa_node)
