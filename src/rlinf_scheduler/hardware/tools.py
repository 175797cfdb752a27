"""The vendors' tools and what their output means. Parsing is pure: text in, devices out."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlinf_scheduler.hardware.devices import Device, Tool, kernel_bus_id

_MIB = 2**20


def parse_nvidia_smi(output: str) -> list[Device]:
    """Devices from `nvidia-smi --query-gpu=index,uuid,name,memory.total,pci.bus_id --format=csv,noheader,nounits`.

    >>> parse_nvidia_smi("0, GPU-8932f937, NVIDIA H200, 143771, 00000000:1B:00.0")
    [Device(index=0, name='NVIDIA H200', uuid='GPU-8932f937', memory_bytes=150754820096, \
pci_bus_id='0000:1b:00.0', numa_node=None)]
    """
    devices = []
    for row in _rows(output, 5):
        index, uuid, name, memory, bus_id = row
        if index.isdecimal():
            devices.append(Device(int(index), name, uuid, _bytes_of_mib(memory), kernel_bus_id(bus_id)))
    return devices


def parse_hl_smi(output: str) -> list[Device]:
    """Devices from `hl-smi -Q module_id,uuid,name,memory.total,bus_id -f csv,noheader`.

    The visibility variable counts module ids, so these are the indices.
    """
    devices = []
    for module_id, uuid, name, memory, bus_id in _rows(output, 5):
        if module_id.isdecimal():
            devices.append(Device(int(module_id), name, uuid, _bytes_of_mib(memory), kernel_bus_id(bus_id)))
    return devices


def parse_rocm_smi(output: str) -> list[Device]:
    """Devices from `rocm-smi --showproductname --showuniqueid --showbus --showmeminfo vram --json`.

    Names of fields differ between releases in their capitals.
    """
    devices = []
    for key, entry in _json_object(output).items():
        match = re.fullmatch(r"card(\d+)", key)
        if match is None or not isinstance(entry, dict):
            continue
        fields = {str(name).lower(): str(value) for name, value in entry.items()}
        memory = fields.get("vram total memory (b)", "")
        unique_id = fields.get("unique id", "")
        devices.append(
            Device(
                index=int(match[1]),
                name=fields.get("card series") or fields.get("card model") or "",
                uuid=f"GPU-{unique_id.removeprefix('0x')}" if unique_id.startswith("0x") else "",
                memory_bytes=int(memory) if memory.isdecimal() else None,
                pci_bus_id=kernel_bus_id(fields.get("pci bus", "")),
            )
        )
    return devices


def parse_xpu_smi(output: str) -> list[Device]:
    """Devices from `xpu-smi discovery -j`; it says nothing of memory."""
    entries = _json_object(output).get("device_list")
    devices = []
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("device_id"), int):
            devices.append(
                Device(
                    index=entry["device_id"],
                    name=str(entry.get("device_name", "")),
                    uuid=str(entry.get("uuid", "")),
                    pci_bus_id=kernel_bus_id(str(entry.get("pci_bdf_address", ""))),
                )
            )
    return devices


def parse_npu_smi(output: str) -> list[Device]:
    """Devices from `npu-smi info -m`; the logical id is what programs count, and controllers have none."""
    devices = []
    for line in output.splitlines():
        columns = re.split(r"\s{2,}|\t", line.strip())
        if len(columns) >= 4 and all(column.isdecimal() for column in columns[:3]):
            devices.append(Device(int(columns[2]), columns[3]))
    return devices


def parse_cuda_view(output: str) -> list[Device]:
    """Devices from `cuda_view`."""
    return [Device(index, uuid=line.strip()) for index, line in enumerate(output.splitlines())]


NVIDIA_SMI = Tool(
    ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total,pci.bus_id", "--format=csv,noheader,nounits"),
    parse_nvidia_smi,
)
ROCM_SMI = Tool(
    ("rocm-smi", "--showproductname", "--showuniqueid", "--showbus", "--showmeminfo", "vram", "--json"),
    parse_rocm_smi,
)
XPU_SMI = Tool(("xpu-smi", "discovery", "-j"), parse_xpu_smi)
NPU_SMI = Tool(("npu-smi", "info", "-m"), parse_npu_smi)
HL_SMI = Tool(("hl-smi", "-Q", "module_id,uuid,name,memory.total,bus_id", "-f", "csv,noheader"), parse_hl_smi)


# In a process of its own: see there.
CUDA_VIEW = Tool((sys.executable, "-I", "-S", str(Path(__file__).with_name("cuda_view.py"))), parse_cuda_view)


def _rows(output: str, width: int) -> Iterator[list[str]]:
    for row in csv.reader(output.splitlines(), skipinitialspace=True):
        if len(row) == width:
            yield [column.strip() for column in row]


def _json_object(output: str) -> Mapping[str, Any]:
    # Warnings may stand around it.
    start, end = output.find("{"), output.rfind("}")
    try:
        content = json.loads(output[start : end + 1])
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _bytes_of_mib(text: str) -> int | None:
    match = re.match(r"\d+", text, re.ASCII)
    return int(match[0]) * _MIB if match else None
