"""A plan explained: who shares which device with whom, and the whole of it as plain data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from rlinf_scheduler.planning.declared_hardware import hardware_counts
from rlinf_scheduler.planning.plan import ComponentPlan, Plan, Run
from rlinf_scheduler.planning.record import Placement
from rlinf_scheduler.planning.topology import Topology

# A device: its node, what it is, its index there; bare nodes are the node itself, with index None.
DeviceKey = tuple[int, str, int | None]

PLAN_DATA_VERSION = 1

_PLACEMENT_FIELDS = tuple(field.name for field in fields(Placement))
_LISTS = ("hardware_ranks", "local_hardware_ranks", "visible_accelerators")


@dataclass(frozen=True, slots=True)
class SharedDevice:
    """A device, or a bare node, that several components use.

    Attributes:
        node_rank: its node.
        hardware_type: what it is; "" for the node itself.
        local_hardware_rank: its index on the node; None for the node itself.
        components: who uses it, in the order of the config.
    """

    node_rank: int
    hardware_type: str
    local_hardware_rank: int | None
    components: tuple[str, ...]


class Sharing:
    """Who shares what in a plan.

    Args:
        plan: the plan.
    """

    def __init__(self, plan: Plan) -> None:
        users: dict[DeviceKey, dict[str, None]] = {}
        for name, component in plan.components.items():
            for run in component.runs:
                for device in run_devices(run):
                    users.setdefault(device, {})[name] = None
        self._users = {device: tuple(names) for device, names in users.items()}
        self._order = {name: index for index, name in enumerate(plan.components)}

    @property
    def users(self) -> Mapping[DeviceKey, tuple[str, ...]]:
        """Who uses each device that anybody uses, in the order of the config."""
        return self._users

    @property
    def devices(self) -> list[SharedDevice]:
        """The devices that more than one component uses, by node."""
        shared = [SharedDevice(*device, names) for device, names in self._users.items() if len(names) > 1]
        return sorted(shared, key=lambda d: (d.node_rank, d.hardware_type, d.local_hardware_rank or 0))

    def others(self, component: str, devices: Iterator[DeviceKey] | Sequence[DeviceKey]) -> tuple[str, ...]:
        """The other components that use any of these devices, in the order of the config."""
        names = {name for device in devices for name in self._users.get(device, ())}
        return tuple(sorted(names - {component}, key=self._order.__getitem__))


def shared_devices(one: ComponentPlan, other: ComponentPlan) -> tuple[SharedDevice, ...]:
    """The devices that two components both use, by node; a bare node is no device."""
    used = [
        {d: None for run in component.runs for d in run_devices(run) if d[1]} for component in (one, other)
    ]
    names = tuple(dict.fromkeys((one.name, other.name)))
    return tuple(SharedDevice(*device, names) for device in sorted(used[0].keys() & used[1].keys()))


def run_devices(run: Run) -> Iterator[DeviceKey]:
    """The devices of a run, each once."""
    return devices_of(run, run.cut.local_hardware_ranks)


def devices_of(run: Run, lists: Sequence[tuple[int, ...]]) -> Iterator[DeviceKey]:
    """The devices of some of a run's processes, each once."""
    node_rank, hardware_type = run.node_rank, run.cut.kind.hardware_type
    if not hardware_type:
        yield node_rank, "", None
        return
    for index in dict.fromkeys(index for own in lists for index in own):
        yield node_rank, hardware_type, index


def plan_as_data(plan: Plan, *, isolate_gpu: bool = True, sharing: Sharing | None = None) -> dict[str, Any]:
    """A plan as dicts, lists, texts and numbers, for JSON.

    Args:
        plan: the plan.
        isolate_gpu: as in `get_placement`.
        sharing: that of the plan, where somebody has it already.

    Returns:
        `version`, `topology` (`nodes`, `node_groups`), `components` by name (`world_size`, `node_groups`,
        `hardware_ranks`, `shares_with`, and `placements` with every field of `Placement` and `shares_with`), and
        `shared`: the devices that several components use. The schema is in the documents, as plan-json.
    """
    sharing = sharing or Sharing(plan)
    return {
        "version": PLAN_DATA_VERSION,
        "topology": _topology_as_data(plan.topology),
        "components": {
            name: {
                "world_size": component.world_size,
                "node_groups": list(component.node_groups),
                "hardware_ranks": component.hardware_ranks,
                "shares_with": list(
                    sharing.others(name, [d for run in component.runs for d in run_devices(run)])
                ),
                "placements": _placements_as_data(plan, name, sharing, isolate_gpu=isolate_gpu),
            }
            for name, component in plan.components.items()
        },
        "shared": [asdict(device) | {"components": list(device.components)} for device in sharing.devices],
    }


def _topology_as_data(topology: Topology) -> dict[str, Any]:
    hardware: dict[int, dict[str, int]] = defaultdict(dict)
    for (node_rank, kind), number in hardware_counts(topology).items():
        hardware[node_rank][kind] = number
    return {
        "num_nodes": topology.num_nodes,
        "num_accelerators": topology.num_accelerators,
        "nodes": [
            {
                "node_rank": rank,
                "node_id": node.node_id,
                "ip": node.ip,
                "hostname": node.hostname,
                "num_accelerators": node.num_accelerators,
                "accelerator_type": node.accelerator_type,
                "accelerator_model": node.accelerator_model,
                "visible": list(node.accelerator_names),
                "hardware": hardware[rank],
            }
            for rank, node in enumerate(topology.nodes)
        ],
        "node_groups": [
            {"label": group.label, "node_ranks": list(group.node_ranks)} for group in topology.node_groups
        ],
    }


def _placements_as_data(
    plan: Plan, name: str, sharing: Sharing, *, isolate_gpu: bool
) -> list[dict[str, Any]]:
    component = plan.components[name]
    placements = component.placements(isolate_gpu=isolate_gpu)
    rows = []
    for run in component.runs:
        for rank, own in zip(run.ranks, run.cut.local_hardware_ranks, strict=True):
            placement = placements[rank]
            row = {key: getattr(placement, key) for key in _PLACEMENT_FIELDS}
            for key in _LISTS:
                row[key] = list(row[key])
            row["shares_with"] = list(sharing.others(name, devices_of(run, [own])))
            rows.append(row)
    return rows
