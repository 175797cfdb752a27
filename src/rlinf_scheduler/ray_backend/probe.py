"""What a node says about itself; `probe_this_node` runs on the node, or beside it where all looks the same."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rlinf_scheduler.comm import local_machine_id
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.hardware.devices import Device
from rlinf_scheduler.hardware.egl import NVIDIA, find_egl_devices
from rlinf_scheduler.hardware.registry import hardware_variables
from rlinf_scheduler.hardware.vendors import (
    NODE_RANK_VARIABLE,
    SIMULATED,
    SIMULATED_VARIABLE,
    find_accelerators,
    find_devices,
    match_devices,
    simulated_uuid,
    visibility_settings,
)
from rlinf_scheduler.planning import Node
from rlinf_scheduler.ray_backend.interfaces import network_interfaces

_RAYLET = "raylet"


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node as it sees itself.

    Attributes:
        node_rank_setting: `RLINF_NODE_RANK` as the node was started with, or None.
        num_accelerators: accelerators that processes on the node may use, as Ray counts them.
        accelerator_type: the vendor's name, "" without accelerators.
        mask: the values of the vendor's visibility variable that the node was started with, or None.
        machine_id: equal for nodes that can share Unix sockets and memory.
        devices: what the vendor's own tool says of each accelerator, in the order of the mask; None where it does
            not say, an empty tuple where there is no such tool.
        variables: those of the node's environment that say something of hardware, with values.
        egl_devices, labels: as of `Node`.
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
    devices: tuple[Device | None, ...] = ()
    python: str = ""
    interfaces: tuple[tuple[str, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    egl_devices: tuple[int, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def accelerator_names(self) -> tuple[str, ...]:
        """What the visibility variable holds for each accelerator."""
        return self.mask or tuple(map(str, range(self.num_accelerators)))

    def describe(self) -> str:
        """The node in an error text."""
        return f"node {self.ip} ({self.hostname}, {self.node_id[:8]})"


def probe_this_node(
    node_id: str,
    ip: str,
    is_head: bool,
    resources: Mapping[str, float],
    environment: Mapping[str, str] | None = None,
) -> NodeReport:
    """Report this node. It must run on that node, or where its processes see the same: `nodes_like_here`.

    Args:
        resources: what Ray detected there, by resource name.
        environment: the variables that the node's processes start with; None: as of `node_environment`.

    Raises:
        ClusterError: a variable that the node was started with cannot be read.
        ConfigError: an installed hardware package cannot be used.
    """
    if environment is None:
        environment = node_environment()
    found = find_accelerators(environment, resources)
    report = NodeReport(
        node_id=node_id,
        ip=ip,
        hostname=platform.node(),
        is_head=is_head,
        node_rank_setting=_integer_variable(NODE_RANK_VARIABLE, environment),
        num_accelerators=found.count,
        accelerator_type=found.type,
        mask=found.mask,
        machine_id=local_machine_id(),
        python=sys.executable,
        interfaces=network_interfaces(),
        variables=tuple((name, environment[name]) for name in hardware_variables() if name in environment),
    )
    report = replace(report, devices=_devices(report, environment))
    if found.type != NVIDIA or not found.count:
        return report
    egl_devices = find_egl_devices(found.count, environment, accelerators=report.devices)
    return replace(report, egl_devices=egl_devices)


def node_environment(proc: Path = Path("/proc")) -> Mapping[str, str]:
    """The variables that this node's processes start with: the raylet's that started this one; else its own.

    In its processes some versions of Ray set masks anew. See proc_pid_environ(5).
    """
    parent = proc / str(os.getppid())
    try:
        if (parent / "comm").read_text(errors="replace").strip() != _RAYLET:
            return os.environ
        return variables_of(parent)
    except OSError:
        return os.environ


def variables_of(process: Path) -> Mapping[str, str]:
    """The variables that a process was started with, by its folder in `/proc`.

    Raises:
        OSError: it has ended, or is another user's.
    """
    entries = os.fsdecode((process / "environ").read_bytes()).split("\0")
    return {name: value for name, is_set, value in (entry.partition("=") for entry in entries) if is_set}


def _devices(report: NodeReport, environment: Mapping[str, str]) -> tuple[Device | None, ...]:
    names = report.accelerator_names
    if report.accelerator_type == SIMULATED.name:
        pretended = enumerate(simulated_uuid(environment, name) for name in names)
        return tuple(Device(index, uuid=uuid) for index, uuid in pretended)
    devices = find_devices(report.accelerator_type) if names else None
    return match_devices(names, devices) if devices else ()


def simulated_environment(node_rank: int, node: Node) -> dict[str, str]:
    """Variables that make a Ray node here report pretend accelerators like those of `node`, mask included."""
    return {
        NODE_RANK_VARIABLE: str(node_rank),
        SIMULATED_VARIABLE: str(node.num_accelerators),
        **visibility_settings(SIMULATED.name, node.accelerator_names),
    }


def _integer_variable(name: str, environment: Mapping[str, str]) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ClusterError(f"{name}={text!r} on {platform.node()}: a node rank is a number from 0")
    return int(text)
