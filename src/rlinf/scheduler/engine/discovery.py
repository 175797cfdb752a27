"""What the nodes said about themselves, as a topology to plan on and as a fleet to keep."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf.scheduler.config.fleet import Fleet, FleetAccelerator, FleetInterface, FleetNode
from rlinf.scheduler.engine.probe import NodeReport
from rlinf.scheduler.hardware.devices import Device


def fleet_of(reports: Sequence[NodeReport]) -> Fleet:
    """The nodes, in the order given, as `rlinf topology --out` saves them; `.topology` of it is planned on."""
    return Fleet(tuple(_node(report) for report in reports))


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
    )


def _accelerator(vendor: str, name: str, device: Device | None) -> FleetAccelerator:
    if device is None:
        return FleetAccelerator(vendor, name)
    return FleetAccelerator(vendor, name, device.name, device.uuid, device.memory_bytes, device.numa_node)
