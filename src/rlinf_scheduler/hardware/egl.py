"""EGL's numbers of a node's NVIDIA accelerators, and the variables by which renderers take the right one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlinf_scheduler.hardware.devices import Device, kernel_bus_id
from rlinf_scheduler.planning import Node, Placement

# MuJoCo and robosuite read the first, pyrender and others the second.
EGL_VARIABLES = ("MUJOCO_EGL_DEVICE_ID", "EGL_DEVICE_ID")
# Why they are guessed, or not set; absent where EGL says.
EGL_PROBLEM = "RLINF_EGL_PROBLEM"
EGL_VIEW = (sys.executable, "-I", "-S", str(Path(__file__).with_name("egl_view.py")))
DRM_DEVICES = Path("/sys/class/drm")
NVIDIA = "NVIDIA"


@dataclass(frozen=True, slots=True)
class EglDevice:
    """A device as EGL lists it.

    Attributes:
        number: its place in the list.
        cuda: CUDA's number of it in a process with the same variables; -1 where EGL does not say.
        uuid: e.g. "GPU-8932f937-...", or "".
        pci_bus_id: e.g. "0000:1b:00.0", or "".
    """

    number: int
    cuda: int = -1
    uuid: str = ""
    pci_bus_id: str = ""


def find_egl_devices(
    count: int,
    environment: Mapping[str, str],
    timeout_s: float = 10.0,
    command: tuple[str, ...] = EGL_VIEW,
    accelerators: Sequence[Device | None] = (),
) -> tuple[int, ...]:
    """EGL's number of each accelerator that processes with this environment see; empty where EGL does not say.

    Args:
        count: how many they see.
        environment: their variables.
        timeout_s: how long it may take.
        command: the program that asks, see `egl_view`.
        accelerators: what the vendor's tool says of each.
    """
    try:
        done = subprocess.run(  # noqa: S603 - the program is our own
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=True,
            env=dict(environment),
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    listed = parse_egl_view(done.stdout.decode("ascii", errors="replace"))
    return egl_numbers(listed, [*accelerators, *[None] * count][:count])


def parse_egl_view(output: str, drm_devices: Path = DRM_DEVICES) -> tuple[EglDevice, ...]:
    r"""The devices that `egl_view` has printed; lines that are none are left out.

    Args:
        output: see there.
        drm_devices: where the kernel describes cards.

    >>> parse_egl_view("0 1 - -\n1 - 8932F937d72c4106c12f20bd9faed9f6 -\n")[1].uuid
    'GPU-8932f937-d72c-4106-c12f-20bd9faed9f6'
    """
    rows = [line.split() for line in output.splitlines()]
    return tuple(
        EglDevice(
            int(number),
            int(cuda) if cuda.isdecimal() else -1,
            _uuid(uuid),
            kernel_bus_id((drm_devices / Path(file).name / "device").resolve().name),
        )
        for number, cuda, uuid, file in (row for row in rows if len(row) == 4 and row[0].isdecimal())
    )


def _uuid(digits: str) -> str:
    low = digits.lower()
    parts = low[:8], low[8:12], low[12:16], low[16:20], low[20:]
    return f"GPU-{'-'.join(parts)}" if len(low) == 32 and low.isalnum() else ""


def egl_numbers(listed: Sequence[EglDevice], accelerators: Sequence[Device | None]) -> tuple[int, ...]:
    """EGL's number of each accelerator, -1 where it is not known; empty where that is so of all.

    A device is found by CUDA's number, else by its UUID, else by its PCI address; one address may be that of several
    devices of EGL's, another driver's among them, and then the first one that no CUDA number is known of is taken.

    >>> listed = [EglDevice(0, pci_bus_id="0000:2a:00.0"), EglDevice(1, cuda=0), EglDevice(2, uuid="GPU-c")]
    >>> egl_numbers(listed, [None, Device(1, uuid="GPU-c"), Device(2, pci_bus_id="0000:2a:00.0"), Device(3)])
    (1, 2, 0, -1)
    """
    found = tuple(_number(listed, ordinal, device) for ordinal, device in enumerate(accelerators))
    return found if any(number >= 0 for number in found) else ()


def _number(listed: Sequence[EglDevice], ordinal: int, device: Device | None) -> int:
    of_cuda = [each.number for each in listed if each.cuda == ordinal]
    others = [each for each in listed if each.cuda < 0]
    of_uuid = [each.number for each in others if device and device.uuid and each.uuid == device.uuid]
    of_address = [
        each.number
        for each in others
        if device and device.pci_bus_id and each.pci_bus_id == device.pci_bus_id
    ]
    return next(iter((*of_cuda, *of_uuid, *of_address)), -1)


def render_settings(placement: Placement, node: Node) -> dict[str, str]:
    """The variables that make a renderer of a process use the process's own first accelerator.

    EGL does not look at the visibility variable: without them all processes of a node would render on its first
    device. Where EGL does not say, CUDA's own number is taken, and a variable says why.

    >>> node = Node(num_accelerators=2, accelerator_type="NVIDIA", egl_devices=(1, 0))
    >>> mine = Placement(0, "", 0, local_hardware_ranks=(1,), has_accelerators=True)
    >>> render_settings(mine, node)
    {'MUJOCO_EGL_DEVICE_ID': '0', 'EGL_DEVICE_ID': '0'}
    """
    if not placement.has_accelerators or node.accelerator_type != NVIDIA:
        return {}
    index = placement.local_hardware_ranks[0]
    known = node.egl_devices[index] if index < len(node.egl_devices) else -1
    if known >= 0:
        return dict.fromkeys(EGL_VARIABLES, str(known))
    name = node.accelerator_names[index]
    guessed = dict.fromkeys(EGL_VARIABLES, name) if name.isdecimal() else {}
    where = f"node {placement.node_rank}" + (f" ({node.hostname})" if node.hostname else "")
    uuid = node.uuids[index] if node.uuids else ""
    problem = (
        f"none of EGL's devices on {where} is known to be accelerator {index}{uuid and f' ({uuid})'}"
        if node.egl_devices
        else f"EGL is not installed on {where}, or lists no accelerator"
    )
    return {**guessed, EGL_PROBLEM: problem}
