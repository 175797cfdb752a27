"""What a node says about itself; `probe_this_node` runs on the node, in a process of its own."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from rlinf.scheduler.comm import local_machine_id
from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.hardware.vendors import SIMULATED_VARIABLE, find_accelerators


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node as it sees itself.

    Attributes:
        node_id: Ray's id of the node, hex.
        ip: its address in the cluster.
        hostname: its name.
        is_head: whether the cluster's head runs there.
        node_rank_setting: `RLINF_NODE_RANK` as the node was started with, or None.
        num_accelerators: accelerators that processes on the node may use.
        accelerator_type: the vendor's name, "" without accelerators.
        mask: the values of the vendor's visibility variable that the node was started with, or None.
        machine_id: equal for nodes that can share Unix sockets and memory.
        python: the interpreter that runs workers there.
    """

    node_id: str
    ip: str
    hostname: str
    is_head: bool
    node_rank_setting: int | None
    num_accelerators: int
    accelerator_type: str
    mask: tuple[str, ...] | None
    machine_id: str
    python: str

    def describe(self) -> str:
        """The node in an error text."""
        return f"node {self.ip} ({self.hostname}, {self.node_id[:8]})"


def probe_this_node(node_id: str, ip: str, is_head: bool, resources: Mapping[str, float]) -> NodeReport:
    """Report this node.

    Args:
        node_id: Ray's id of the node.
        ip: its address.
        is_head: whether it is the head.
        resources: what Ray detected there, by resource name.

    Raises:
        ClusterError: a variable that the node was started with cannot be read.
    """
    found = find_accelerators(os.environ, resources)
    return NodeReport(
        node_id=node_id,
        ip=ip,
        hostname=platform.node(),
        is_head=is_head,
        node_rank_setting=_integer_variable("RLINF_NODE_RANK"),
        num_accelerators=found.count,
        accelerator_type=found.type,
        mask=found.mask,
        machine_id=local_machine_id(),
        python=sys.executable,
    )


def simulated_environment(node_rank: int, num_accelerators: int) -> dict[str, str]:
    """Variables that make a Ray node on this machine report `num_accelerators` pretend accelerators."""
    return {"RLINF_NODE_RANK": str(node_rank), SIMULATED_VARIABLE: str(num_accelerators)}


def _integer_variable(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ClusterError(f"{name}={text!r} on {platform.node()}: a node rank is a number from 0")
    return int(text)
