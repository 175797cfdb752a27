"""Whether a process sees what it was placed on: by its variables, and by what a driver shows it."""

import pickle
import shutil
import subprocess

import pytest

from rlinf_scheduler.errors import DeviceMismatch
from rlinf_scheduler.hardware import seen, tools
from rlinf_scheduler.hardware.devices import list_devices
from rlinf_scheduler.hardware.seen import check_seen, look
from rlinf_scheduler.planning import FlexiblePlacementStrategy, Node, Topology

DEADLINE_S = 60.0
SIMULATED = Node(
    ip="10.0.0.2",
    num_accelerators=2,
    accelerator_type="simulated",
    visible=("4", "5"),
    uuids=("SIMULATED-1-4", "SIMULATED-1-5"),
)


def placed(node, devices, **options):
    topology = Topology(nodes=(Node(), node))
    return FlexiblePlacementStrategy([devices]).get_placement(topology, **options)[0]


def seen_on(node, variables, devices=(1,), **options):
    return check_seen(placed(node, list(devices), **options), node, variables)


def test_simulated_accelerators_have_uuids_of_their_node():
    assert seen_on(SIMULATED, {"CUDA_VISIBLE_DEVICES": "5", "RLINF_NODE_RANK": "1"}) == ("SIMULATED-1-5",)
    variables = {"CUDA_VISIBLE_DEVICES": "4,5", "RLINF_NODE_RANK": "1"}
    assert seen_on(SIMULATED, variables, isolate_gpu=False) == ("SIMULATED-1-4", "SIMULATED-1-5")


def test_a_variable_that_was_changed_is_told_with_both_sides():
    with pytest.raises(DeviceMismatch) as caught:
        seen_on(SIMULATED, {"CUDA_VISIBLE_DEVICES": "4", "RLINF_NODE_RANK": "1"})
    assert str(caught.value).splitlines() == [
        "rank 0 on node 1 (10.0.0.2) sees other accelerators than it was placed on",
        "  planned: 5 (SIMULATED-1-5)",
        "  sees: 4 (SIMULATED-1-4)",
        "  CUDA_VISIBLE_DEVICES='4' is not what the launch has set: the worker's module, something that it imports, "
        "or the interpreter's start has changed it; leave it to the placement",
    ]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_another_node_behind_the_same_variable_is_found_by_the_uuid():
    with pytest.raises(DeviceMismatch, match=r"sees: 5 \(SIMULATED-0-5\)\n.*is as the launch has set it"):
        seen_on(SIMULATED, {"CUDA_VISIBLE_DEVICES": "5", "RLINF_NODE_RANK": "0"})


def test_a_variable_that_is_gone_shows_all():
    node = Node(num_accelerators=2, accelerator_type="AMD")
    assert seen_on(node, {"HIP_VISIBLE_DEVICES": "1"}) == ("1",)
    with pytest.raises(DeviceMismatch, match=r"planned: 1\n  sees: all of the node's"):
        seen_on(node, {})


# What the driver's library has of it: devices by their place in CUDA_VISIBLE_DEVICES.
DRIVER = """
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { return getenv("CUDA_BROKEN") ? 999 : *getenv("CUDA_VISIBLE_DEVICES") ? 0 : 100; }
int cuDeviceGetCount(int *count) { *count = (strlen(getenv("CUDA_VISIBLE_DEVICES")) + 1) / 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = getenv("CUDA_VISIBLE_DEVICES")[2 * index] - '0'; return 0; }
int cuDeviceGetUuid_v2(char *uuid, int device) { memset(uuid, 0x10 + device, 16); return 0; }
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder with a library that answers as NVIDIA's driver does."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a driver's library with")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    library = folder / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "driver.c"], check=True)
    return folder


@pytest.fixture
def with_driver(driver, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    monkeypatch.setattr(seen, "_LOOK_S", DEADLINE_S)
    return monkeypatch


def uuid_of(device):
    """What the library above says of a device."""
    digits = f"{0x10 + device:02x}"
    return "GPU-" + "-".join(digits * count for count in (4, 2, 2, 2, 6))


def test_cuda_itself_is_asked_what_a_process_sees(with_driver):
    node = Node(num_accelerators=4, accelerator_type="NVIDIA", uuids=tuple(map(uuid_of, range(4))))
    with_driver.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    variables = {"CUDA_VISIBLE_DEVICES": "3,1"}
    assert look("NVIDIA", variables).uuids == (uuid_of(3), uuid_of(1))
    renumbered = Node(num_accelerators=4, accelerator_type="NVIDIA", uuids=node.uuids[::-1])
    with_driver.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert seen_on(node, {"CUDA_VISIBLE_DEVICES": "1"}) == (uuid_of(1),)
    with pytest.raises(DeviceMismatch, match="CUDA_DEVICE_ORDER"):
        seen_on(renumbered, {"CUDA_VISIBLE_DEVICES": "1"})


def test_a_device_that_the_driver_does_not_show_any_more_is_missed(with_driver):
    node = Node(num_accelerators=2, accelerator_type="NVIDIA")  # no tool has told UUIDs
    with_driver.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceMismatch, match=r"planned: 1\n  sees: none"):
        seen_on(node, {"CUDA_VISIBLE_DEVICES": "1"})


def test_a_driver_that_does_not_answer_leaves_the_names(with_driver):
    with_driver.setenv("CUDA_VISIBLE_DEVICES", "1")
    with_driver.setenv("CUDA_BROKEN", "1")
    assert list_devices(tools.CUDA_VIEW, DEADLINE_S) is None
    node = Node(num_accelerators=2, accelerator_type="NVIDIA", uuids=("GPU-a", "GPU-b"))
    assert seen_on(node, {"CUDA_VISIBLE_DEVICES": "1"}) == ("GPU-b",)


@pytest.mark.gpu
def test_the_real_driver_shows_the_devices_of_nvidia_smi(monkeypatch):
    known = list_devices(tools.NVIDIA_SMI, DEADLINE_S)
    if not known:
        pytest.skip("there is no NVIDIA accelerator here")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert look("NVIDIA", {"CUDA_VISIBLE_DEVICES": "0"}).uuids == (known[0].uuid,)
