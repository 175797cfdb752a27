"""What vendors' tools print, as devices; and tools that are absent, broken or slow."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.hardware import tools
from rlinf_scheduler.hardware.devices import Device, Tool, list_devices, read_numa_node
from rlinf_scheduler.hardware.vendors import find_devices

DEADLINE_S = 60.0
NVIDIA_SMI = """\
0, GPU-8932f937-d72c-4106-c12f-20bd9faed9f6, NVIDIA H200, 143771, 00000000:1B:00.0
1, GPU-0c7a3f1e-0000-4106-c12f-20bd9faed9f6, NVIDIA H200, [N/A], 00010000:43:00.0
"""
ROCM_SMI = """\
WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status
{"card0": {"Unique ID": "0x4b2c1a9f8d3e6f7a", "PCI Bus": "0000:C1:00.0", "Card Series": "AMD Instinct MI300X", \
"VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "297000000"},
 "card1": {"Unique ID": "N/A", "Card series": "AMD Instinct MI300X"},
 "system": {"Driver version": "6.7.0"}}
"""
XPU_SMI = """\
{"device_list": [{"device_id": 0, "device_name": "Intel(R) Data Center GPU Max 1550", "device_type": "GPU",
  "pci_bdf_address": "0000:4d:00.0", "uuid": "00000000-0000-0000-0000-020a00008086"}]}
"""
NPU_SMI = """\
\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name
\t4                              0                              0                              Ascend 910B3
\t4                              1                              -                              Mcu
\t5                              0                              1                              Ascend 910B3
"""
HL_SMI = """\
3, 01P0-HL2080A0-15-TNBS80-20-07-09, HL-225, 98304 MiB, 0000:33:00.0
2, 01P0-HL2080A0-15-TNBS81-20-07-09, HL-225, 98304 MiB, 0000:34:00.0
"""


def test_nvidia_devices_are_read():
    assert tools.parse_nvidia_smi(NVIDIA_SMI) == [
        Device(0, "NVIDIA H200", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", 143771 * 2**20, "0000:1b:00.0"),
        Device(1, "NVIDIA H200", "GPU-0c7a3f1e-0000-4106-c12f-20bd9faed9f6", None, "10000:43:00.0"),
    ]


def test_amd_devices_are_read_from_between_warnings():
    assert tools.parse_rocm_smi(ROCM_SMI) == [
        Device(0, "AMD Instinct MI300X", "GPU-4b2c1a9f8d3e6f7a", 206141652992, "0000:c1:00.0"),
        Device(1, "AMD Instinct MI300X"),
    ]


def test_intel_devices_are_read():
    assert tools.parse_xpu_smi(XPU_SMI) == [
        Device(
            0,
            "Intel(R) Data Center GPU Max 1550",
            "00000000-0000-0000-0000-020a00008086",
            None,
            "0000:4d:00.0",
        )
    ]


def test_ascend_devices_are_read_by_logical_id_without_controllers():
    assert tools.parse_npu_smi(NPU_SMI) == [Device(0, "Ascend 910B3"), Device(1, "Ascend 910B3")]


def test_habana_devices_are_read_by_module_id():
    assert [(d.index, d.memory_bytes, d.pci_bus_id) for d in tools.parse_hl_smi(HL_SMI)] == [
        (3, 98304 * 2**20, "0000:33:00.0"),
        (2, 98304 * 2**20, "0000:34:00.0"),
    ]


PARSERS = [
    tools.parse_nvidia_smi,
    tools.parse_rocm_smi,
    tools.parse_xpu_smi,
    tools.parse_npu_smi,
    tools.parse_hl_smi,
]


@pytest.mark.parametrize("parse", PARSERS)
@given(st.text(max_size=60) | st.text('0123,{}[]":\n\t card GPU-', max_size=60))
def test_any_output_is_read_without_an_exception(parse, output):
    assert isinstance(parse(output), list)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "output",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        "No devices were found\n",
        "{}",
        '{"device_list": [3, {"device_id": "x"}], "card0": 7}',
        "[]",
        "",
    ],
)
def test_complaints_of_a_tool_are_no_devices(parse, output):
    assert parse(output) == []


def script(folder, name, body):
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return str(file)


@pytest.fixture
def tool_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_devices_of_a_node_come_from_the_vendors_own_tool(tool_folder):
    script(tool_folder, "nvidia-smi", f"cat <<'END'\n{NVIDIA_SMI}END")
    assert [device.index for device in find_devices("NVIDIA", DEADLINE_S)] == [0, 1]


def test_tool_is_asked_for_what_its_parser_reads(tool_folder):
    script(tool_folder, "nvidia-smi", 'echo "$@" > "$0.asked"')
    assert find_devices("NVIDIA", DEADLINE_S) == ()
    asked = (tool_folder / "nvidia-smi.asked").read_text()
    assert asked == "--query-gpu=index,uuid,name,memory.total,pci.bus_id --format=csv,noheader,nounits\n"


@pytest.mark.parametrize("body", ["exit 9", "kill -9 $$", "exec sleep 30"])
def test_tool_that_fails_or_hangs_says_nothing(tmp_path, body):
    assert list_devices(Tool((script(tmp_path, "tool", body),), tools.parse_npu_smi), timeout_s=0.5) is None


def test_absent_tool_says_nothing(tmp_path):
    assert list_devices(Tool((str(tmp_path / "absent"),), tools.parse_npu_smi)) is None


@pytest.mark.parametrize("vendor", ["Kunlun", "nobody", ""])
def test_vendor_without_a_stable_tool_says_nothing(vendor):
    assert find_devices(vendor) is None


@pytest.mark.parametrize(
    ("written", "node"), [("1\n", 1), ("0\n", 0), ("-1\n", None), ("x", None), (None, None)]
)
def test_numa_node_is_the_kernels_word(tmp_path, written, node):
    device = tmp_path / "0000:1b:00.0"
    device.mkdir()
    if written is not None:
        (device / "numa_node").write_text(written)
    assert read_numa_node("0000:1b:00.0", tmp_path) == node
    assert read_numa_node("", tmp_path) is None


def test_devices_are_listed_by_index_with_their_numa_nodes(tmp_path):
    for bus_id, node in (("0000:33:00.0", 1), ("0000:34:00.0", 0)):
        (tmp_path / bus_id).mkdir()
        (tmp_path / bus_id / "numa_node").write_text(f"{node}\n")
    tool = Tool((script(tmp_path, "hl-smi", f"cat <<'END'\n{HL_SMI}END"),), tools.parse_hl_smi)
    found = list_devices(tool, DEADLINE_S, pci_devices=tmp_path)
    assert [(device.index, device.numa_node) for device in found] == [(2, 0), (3, 1)]
