"""The devices of a node as the vendor's own tool reports them; asked on the node itself."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

PCI_DEVICES = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator as its vendor's tool reports it.

    Attributes:
        index: its number in the tool, which counts every device of the node whatever a mask hides.
        name: the model, e.g. "NVIDIA H200"; "" where the tool does not say.
        uuid: what never changes, e.g. "GPU-8932f937-...", or "".
        memory_bytes: its memory, or None.
        pci_bus_id: e.g. "0000:1b:00.0", or "".
        numa_node: the NUMA node that it hangs on; None where there is none or it is not known.
    """

    index: int
    name: str = ""
    uuid: str = ""
    memory_bytes: int | None = None
    pci_bus_id: str = ""
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A vendor's command that lists devices.

    Attributes:
        command: the command line.
        parse: makes devices of its output; it ignores lines that it does not understand.
    """

    command: tuple[str, ...]
    parse: Callable[[str], list[Device]]


def list_devices(
    tool: Tool, timeout_s: float = 10.0, pci_devices: Path = PCI_DEVICES
) -> tuple[Device, ...] | None:
    """The devices of this node, by index, with their NUMA nodes.

    Args:
        tool: the vendor's command.
        timeout_s: how long it may take.
        pci_devices: where the kernel describes PCI devices.

    Returns:
        None where the tool is not installed, fails, or does not answer in time.
    """
    output = run_tool(tool.command, timeout_s)
    if output is None:
        return None
    found = sorted(tool.parse(output), key=lambda device: device.index)
    return tuple(replace(d, numa_node=read_numa_node(d.pci_bus_id, pci_devices)) for d in found)


def run_tool(command: Sequence[str], timeout_s: float) -> str | None:
    """What a command prints; None where it is absent, fails, or does not answer in time."""
    try:
        done = subprocess.run(  # noqa: S603 - the command is a vendor's, by name
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", errors="replace")


def read_numa_node(pci_bus_id: str, pci_devices: Path = PCI_DEVICES) -> int | None:
    """The NUMA node of a PCI device; None where the machine has none (the kernel says -1) or does not say.

    Args:
        pci_bus_id: as the kernel writes it, e.g. "0000:1b:00.0".
        pci_devices: where the kernel describes PCI devices.
    """
    try:
        node = int((pci_devices / pci_bus_id / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def kernel_bus_id(text: str) -> str:
    """A PCI bus id as the kernel writes it; "" where the text is none.

    >>> kernel_bus_id("00000000:1B:00.0"), kernel_bus_id("00010000:43:00.0"), kernel_bus_id("N/A")
    ('0000:1b:00.0', '10000:43:00.0', '')
    """
    match = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])", text.strip().lower())
    return f"{int(match[1], 16):04x}:{match[2]}" if match else ""
