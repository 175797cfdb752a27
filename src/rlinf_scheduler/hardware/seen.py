"""Whether a process sees the accelerators that it was placed on; asked there, before a worker is constructed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlinf_scheduler.errors import DeviceMismatch
from rlinf_scheduler.hardware.devices import list_devices
from rlinf_scheduler.hardware.vendors import SIMULATED, simulated_uuid, vendor_or_cuda
from rlinf_scheduler.planning import Node, Placement

# A driver that a reset of its devices keeps busy answers within it.
_LOOK_S = 20.0


@dataclass(frozen=True, slots=True)
class SeenDevices:
    """What a process sees.

    Attributes:
        names: the entries of its visibility variable, in order; None: it leaves all devices visible.
        uuids: the UUIDs of its devices, in order; None where nothing can tell.
    """

    names: tuple[str, ...] | None
    uuids: tuple[str, ...] | None = None


def look(accelerator_type: str, environment: Mapping[str, str]) -> SeenDevices:
    """What this process sees: by its variables, and by what the vendor's driver shows to a process with them.

    Args:
        accelerator_type: the vendor.
        environment: this process's, `os.environ`.
    """
    vendor = vendor_or_cuda(accelerator_type)
    names = vendor.read_mask(environment)
    if accelerator_type == SIMULATED.name:
        return SeenDevices(names, tuple(simulated_uuid(environment, name) for name in names or ()))
    devices = list_devices(vendor.view, _LOOK_S) if vendor.view is not None and names != () else None
    return SeenDevices(names, None if devices is None else tuple(device.uuid for device in devices))


def check_seen(placement: Placement, node: Node, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Make sure that this process sees the accelerators that its placement makes visible, and no other.

    UUIDs are compared where the node's are known and the vendor's driver tells what a process sees (NVIDIA, and
    simulated accelerators), names in the visibility variable in any case.

    Args:
        placement: its placement.
        node: its node, as it was probed.
        environment: this process's, `os.environ`.

    Returns:
        The UUIDs, or where they are not known the names, of what it sees.

    Raises:
        DeviceMismatch: it sees others, more, or fewer.
    """
    planned = placement.visible_accelerators
    uuid_of = dict(zip(node.accelerator_names, node.uuids, strict=True)) if node.uuids else {}
    seen = look(node.accelerator_type, environment)
    uuids = [uuid_of.get(name, "") for name in planned]
    if seen.names == planned and _agree(uuids, seen.uuids):
        return seen.uuids or tuple(uuid or name for uuid, name in zip(uuids, planned, strict=True))
    vendor = vendor_or_cuda(node.accelerator_type)
    variable = vendor.visibility_variable
    raise DeviceMismatch(
        rank=placement.rank,
        node=f"{placement.node_rank} ({node.ip})",
        planned=[f"{name} ({uuid})" if uuid else name for name, uuid in zip(planned, uuids, strict=True)],
        seen=_described(seen),
        variable=f"{variable}={environment.get(variable, '')!r}",
        was_changed=seen.names != planned,
    )


def _agree(planned: Sequence[str], seen: Sequence[str] | None) -> bool:
    """Whether devices are the same ones, as far as both sides are known."""
    if seen is None:
        return True
    return len(planned) == len(seen) and all(
        not ours or ours == theirs for ours, theirs in zip(planned, seen, strict=True)
    )


def _described(seen: SeenDevices) -> list[str]:
    if seen.uuids is not None:
        names = seen.names if seen.names and len(seen.names) == len(seen.uuids) else ()
        return [f"{name} ({uuid})" for name, uuid in zip(names, seen.uuids, strict=False)] or list(seen.uuids)
    return ["all of the node's"] if seen.names is None else list(seen.names)
