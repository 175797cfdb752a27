"""Accelerator vendors: how each is counted, and the variable that says which devices a process sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SIMULATED_VARIABLE = "RLINF_SIMULATED_ACCELERATORS"


@dataclass(frozen=True, slots=True)
class Vendor:
    """One accelerator vendor.

    Attributes:
        name: e.g. "NVIDIA".
        ray_resource: the name under which Ray counts its devices.
        visibility_variable: the environment variable that holds the visible devices, comma separated.
    """

    name: str
    ray_resource: str
    visibility_variable: str


@dataclass(frozen=True, slots=True)
class FoundAccelerators:
    """What a node has: how many, whose, and the mask it was started with (None: all are visible)."""

    count: int
    type: str
    mask: tuple[str, ...] | None


# Ray counts NVIDIA, AMD and Intel devices all as "GPU"; the masks that are set, then the first row, decide.
VENDORS: tuple[Vendor, ...] = (
    Vendor("NVIDIA", "GPU", "CUDA_VISIBLE_DEVICES"),
    Vendor("AMD", "GPU", "HIP_VISIBLE_DEVICES"),
    Vendor("Intel", "GPU", "ONEAPI_DEVICE_SELECTOR"),
    Vendor("Ascend", "NPU", "ASCEND_RT_VISIBLE_DEVICES"),
    Vendor("Habana", "HPU", "HABANA_VISIBLE_MODULES"),
    Vendor("TPU", "TPU", "TPU_VISIBLE_CHIPS"),
)
# Pretend accelerators are seen through CUDA's variable, which is what most programs read.
SIMULATED = Vendor("simulated", "", "CUDA_VISIBLE_DEVICES")

_BY_NAME = {vendor.name.lower(): vendor for vendor in (*VENDORS, SIMULATED)}
_NOTHING = FoundAccelerators(0, "", None)


def visibility_variable(accelerator_type: str) -> str:
    """The variable that limits which accelerators of this vendor a process sees; CUDA's for an unknown vendor."""
    vendor = _BY_NAME.get(accelerator_type.lower())
    return vendor.visibility_variable if vendor else "CUDA_VISIBLE_DEVICES"


def find_accelerators(environment: Mapping[str, str], resources: Mapping[str, float]) -> FoundAccelerators:
    """The accelerators of a node.

    Args:
        environment: the variables that the node's processes start with.
        resources: what Ray detected on the node, by resource name. Ray honours a mask when it counts.
    """
    simulated = environment.get(SIMULATED_VARIABLE, "").strip()
    if simulated:
        return FoundAccelerators(int(simulated), SIMULATED.name if int(simulated) else "", None)
    candidates = [v for v in VENDORS if resources.get(v.ray_resource, 0) >= 1]
    if not candidates:
        return _NOTHING
    masked = [v for v in candidates if environment.get(v.visibility_variable)]
    vendor = (masked or candidates)[0]
    count = int(resources[vendor.ray_resource])
    return FoundAccelerators(count, vendor.name, _mask(environment, vendor, count))


def _mask(environment: Mapping[str, str], vendor: Vendor, count: int) -> tuple[str, ...] | None:
    text = environment.get(vendor.visibility_variable, "")
    values = tuple(value.strip() for value in text.split(",") if value.strip())
    # A mask of another length is not what Ray counted (a selector expression, say): better none than a wrong one.
    return values if len(values) == count else None
