"""The accelerator vendors that are known, and what a node has of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlinf_scheduler.checks import whole_number
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.hardware import tools
from rlinf_scheduler.hardware.devices import Device, list_devices
from rlinf_scheduler.hardware.plugins import plugin_vendor, plugin_vendors
from rlinf_scheduler.hardware.vendor import DigitsMask, ListMask, SelectorMask, Vendor

SIMULATED_VARIABLE = "RLINF_SIMULATED_ACCELERATORS"
NODE_RANK_VARIABLE = "RLINF_NODE_RANK"

# Ray counts the devices of the first five all as "GPU"; what a node shows of itself, then this order, decides.
VENDORS: tuple[Vendor, ...] = (
    Vendor(
        "NVIDIA",
        "GPU",
        "CUDA_VISIBLE_DEVICES",
        tool=tools.NVIDIA_SMI,
        view=tools.CUDA_VIEW,
        device_files="nvidia[0-9]*",
        torch_type="cuda",
    ),
    Vendor(
        # HIP takes CUDA's variable where its own is not set or empty, so "" would not hide anything.
        "AMD",
        "GPU",
        "HIP_VISIBLE_DEVICES",
        mask=ListMask(hide_all="-1"),
        same_as=("CUDA_VISIBLE_DEVICES",),
        applied_before=("ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
        tool=tools.ROCM_SMI,
        device_files="kfd",
        torch_type="cuda",  # as torch calls them
    ),
    Vendor(
        "Intel",
        "GPU",
        "ONEAPI_DEVICE_SELECTOR",
        mask=SelectorMask("level_zero"),
        applied_before=("ZE_AFFINITY_MASK",),
        tool=tools.XPU_SMI,
        torch_type="xpu",
    ),
    Vendor("Moore Threads", "GPU", "MUSA_VISIBLE_DEVICES", device_files="mtgpu.[0-9]*", torch_type="musa"),
    Vendor("Kunlun", "GPU", "XPU_VISIBLE_DEVICES", device_files="xpu[0-9]*"),
    Vendor(
        "Ascend",
        "NPU",
        "ASCEND_RT_VISIBLE_DEVICES",
        mask=DigitsMask(),
        tool=tools.NPU_SMI,
        device_files="davinci[0-9]*",
        torch_type="npu",
    ),
    Vendor("Habana", "HPU", "HABANA_VISIBLE_MODULES", tool=tools.HL_SMI, torch_type="hpu"),
    Vendor("TPU", "TPU", "TPU_VISIBLE_CHIPS"),
)
# Pretend accelerators are seen through CUDA's variable, which is what most programs read.
SIMULATED = Vendor("simulated", "GPU", "CUDA_VISIBLE_DEVICES", torch_type="cpu")

# Every variable that has a say in which devices of whatever vendor a process sees.
MASKS = tuple(dict.fromkeys(name for vendor in VENDORS for name in vendor.variables))

_BUILT_IN = {vendor.name.lower(): vendor for vendor in (*VENDORS, SIMULATED)}


@dataclass(frozen=True, slots=True)
class FoundAccelerators:
    """What a node has: how many, whose, and the mask it was started with (None: all are visible)."""

    count: int
    type: str
    mask: tuple[str, ...] | None


_NOTHING = FoundAccelerators(0, "", None)


def vendors() -> tuple[Vendor, ...]:
    """The vendors that are known: those of installed packages, then those that stand here.

    Raises:
        ConfigError: an installed package's vendor cannot be used; the text names the package.
    """
    return (*plugin_vendors(), *VENDORS)


def vendor_named(name: str) -> Vendor | None:
    """The vendor of that name, in capitals or not; None where it is not known.

    Raises:
        ConfigError: the installed package that has it cannot be used; the text names the package.
    """
    return _BUILT_IN.get(name.lower()) or plugin_vendor(name)


def visibility_settings(accelerator_type: str, visible: Sequence[str]) -> dict[str, str]:
    """The environment variables that make a process see some accelerators of a node.

    Args:
        accelerator_type: the vendor of the node's accelerators; "" or an unknown one is taken for a CUDA device.
        visible: what it sees, as `Placement.visible_accelerators` says; empty: none.

    >>> visibility_settings("Intel", ("4", "5")), visibility_settings("AMD", ())
    ({'ONEAPI_DEVICE_SELECTOR': 'level_zero:4,5'}, {'HIP_VISIBLE_DEVICES': '-1'})
    """
    return vendor_or_cuda(accelerator_type).mask_settings(visible)


def find_accelerators(
    environment: Mapping[str, str], resources: Mapping[str, float], device_folder: Path = Path("/dev")
) -> FoundAccelerators:
    """The accelerators of a node.

    Args:
        environment: the variables that the node's processes start with.
        resources: what Ray detected on the node, by resource name. Ray honours a mask when it counts.
        device_folder: where the kernel shows devices.

    Raises:
        ConfigError: an installed package's vendor cannot be used, and the text names the package; or the variable
            that counts pretend accelerators holds no number.
    """
    simulated = environment.get(SIMULATED_VARIABLE, "").strip()
    if simulated:
        return _simulated(simulated, environment)
    candidates = [vendor for vendor in vendors() if resources.get(vendor.ray_resource, 0) >= 1]
    if not candidates:
        return _NOTHING
    vendor = _most_likely(candidates, environment, device_folder)
    count = int(resources[vendor.ray_resource])
    mask = vendor.read_mask(environment)
    # Ray did not read a mask that names fewer devices than it counted, so that mask is not used. With a longer mask
    # Ray was told to use its first devices.
    return FoundAccelerators(count, vendor.name, mask[:count] if mask and len(mask) >= count else None)


def local_vendor(environment: Mapping[str, str], device_folder: Path = Path("/dev")) -> str:
    """The vendor of the accelerators that the kernel shows on this machine, and no mask hides; "" without any.

    It asks no tool: for a process that is no part of a job.

    Args:
        environment: the variables of the process.
        device_folder: where the kernel shows devices.
    """
    if environment.get(SIMULATED_VARIABLE, "").strip():
        return SIMULATED.name
    for vendor in VENDORS:
        if vendor.device_files and any(device_folder.glob(vendor.device_files)):
            return vendor.name if vendor.read_mask(environment) != () else ""
    return ""


def find_devices(accelerator_type: str, timeout_s: float = 10.0) -> tuple[Device, ...] | None:
    """The devices of this node as the vendor's own tool reports them, by index, whatever a mask hides.

    Args:
        accelerator_type: the vendor.
        timeout_s: how long the tool may take.

    Returns:
        None where the vendor has no such tool, or it is absent, fails, or does not answer in time.
    """
    vendor = vendor_named(accelerator_type)
    if vendor is None or vendor.tool is None:
        return None
    return list_devices(vendor.tool, timeout_s)


def simulated_uuid(environment: Mapping[str, str], name: str) -> str:
    """The UUID of a pretend accelerator: every process of a simulated node says the same, and no other node does.

    Args:
        environment: the variables of a process of the node.
        name: what the visibility variable calls the accelerator.
    """
    return f"SIMULATED-{environment.get(NODE_RANK_VARIABLE, '')}-{name}"


def match_devices(names: Sequence[str], devices: Sequence[Device]) -> tuple[Device | None, ...]:
    """The device that each entry of a mask stands for; None where that cannot be said.

    Args:
        names: entries of a visibility variable: indices, UUIDs or their beginnings.
        devices: the node's devices.
    """
    return tuple(_match(name, devices) for name in names)


def _simulated(count_text: str, environment: Mapping[str, str]) -> FoundAccelerators:
    count = whole_number(count_text, from_text=True)
    if count is None:
        raise ConfigError(f"{SIMULATED_VARIABLE} is '{count_text}': it must be a whole number from 0")
    mask = SIMULATED.read_mask(environment)
    return FoundAccelerators(
        count, SIMULATED.name if count else "", mask if mask and len(mask) == count else None
    )


def _match(name: str, devices: Sequence[Device]) -> Device | None:
    if name.isdecimal():
        return next((device for device in devices if device.index == int(name)), None)
    if name.startswith("MIG-GPU-"):
        # A part of a device: MIG-<UUID>/<GPU instance>/<compute instance>.
        name = name.removeprefix("MIG-").partition("/")[0]
    # CUDA takes as much of a UUID as makes it the only one.
    found = [device for device in devices if device.uuid and device.uuid.lower().startswith(name.lower())]
    return found[0] if len(found) == 1 else None


def vendor_or_cuda(accelerator_type: str) -> Vendor:
    """The vendor of that name; CUDA's variable is taken for accelerators of an unknown one."""
    return (vendor_named(accelerator_type) if accelerator_type else None) or SIMULATED


def _most_likely(candidates: Sequence[Vendor], environment: Mapping[str, str], device_folder: Path) -> Vendor:
    present = [v for v in candidates if v.device_files and any(device_folder.glob(v.device_files))]
    masked = [v for v in candidates if environment.get(v.visibility_variable)]
    both = [vendor for vendor in present if vendor in masked]
    return (both or present or masked or list(candidates))[0]
