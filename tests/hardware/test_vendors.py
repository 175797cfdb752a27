"""Vendors: whose accelerators a node has, the mask it was started with, and what shows a process some of them."""

import pytest

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.hardware.devices import Device
from rlinf_scheduler.hardware.vendors import (
    SIMULATED_VARIABLE,
    VENDORS,
    FoundAccelerators,
    find_accelerators,
    match_devices,
    vendor_named,
    visibility_settings,
)


def found(resources, folder, files=(), **environment):
    for name in files:
        (folder / name).touch()
    return find_accelerators(environment, resources, folder)


@pytest.mark.parametrize(
    ("vendor", "resource", "variable", "shows_1_and_3", "shows_none"),
    [
        ("NVIDIA", "GPU", "CUDA_VISIBLE_DEVICES", "1,3", ""),
        ("AMD", "GPU", "HIP_VISIBLE_DEVICES", "1,3", "-1"),
        ("Intel", "GPU", "ONEAPI_DEVICE_SELECTOR", "level_zero:1,3", "*:cpu"),
        ("Moore Threads", "GPU", "MUSA_VISIBLE_DEVICES", "1,3", ""),
        ("Kunlun", "GPU", "XPU_VISIBLE_DEVICES", "1,3", ""),
        ("Ascend", "NPU", "ASCEND_RT_VISIBLE_DEVICES", "1,3", "-1"),
        ("Habana", "HPU", "HABANA_VISIBLE_MODULES", "1,3", ""),
        ("TPU", "TPU", "TPU_VISIBLE_CHIPS", "1,3", ""),
    ],
)
def test_vendor_shows_and_hides_devices_through_its_own_variable(
    vendor, resource, variable, shows_1_and_3, shows_none
):
    assert vendor_named(vendor.upper()).ray_resource == resource
    assert vendor_named(vendor).visibility_variable == variable
    assert visibility_settings(vendor, ("1", "3")) == {variable: shows_1_and_3}
    assert visibility_settings(vendor, ()) == {variable: shows_none}


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
def test_mask_of_a_node_is_what_its_processes_are_shown(vendor, tmp_path):
    environment = visibility_settings(vendor.name, ("4", "5"))
    files = [vendor.device_files.replace("[0-9]*", "0")] if vendor.device_files else []
    report = found({vendor.ray_resource: 2.0, "CPU": 8.0}, tmp_path, files, **environment)
    assert report == FoundAccelerators(2, vendor.name, ("4", "5"))


def test_unknown_vendor_is_taken_for_a_cuda_device():
    assert (
        visibility_settings("GPU", ("0",)) == visibility_settings("", ("0",)) == {"CUDA_VISIBLE_DEVICES": "0"}
    )


def test_node_without_accelerators_has_none(tmp_path):
    assert found({"CPU": 8.0}, tmp_path) == FoundAccelerators(0, "", None)


def test_simulated_accelerators_are_counted_by_their_variable(tmp_path):
    assert found({"GPU": 8.0}, tmp_path, **{SIMULATED_VARIABLE: "4"}) == FoundAccelerators(
        4, "simulated", None
    )
    assert found({}, tmp_path, **{SIMULATED_VARIABLE: "0"}) == FoundAccelerators(0, "", None)


@pytest.mark.parametrize(
    ("files", "environment", "vendor"),
    [
        (["nvidia0", "nvidiactl"], {}, "NVIDIA"),
        (["kfd"], {}, "AMD"),
        (["mtgpu.0"], {}, "Moore Threads"),
        (["xpu0"], {}, "Kunlun"),
        ([], {}, "NVIDIA"),
        ([], {"HIP_VISIBLE_DEVICES": "0,1"}, "AMD"),
        (["kfd"], {"CUDA_VISIBLE_DEVICES": "0,1"}, "AMD"),
        (["nvidia0", "kfd"], {"HIP_VISIBLE_DEVICES": "0,1"}, "AMD"),
    ],
)
def test_vendors_that_ray_counts_alike_are_told_apart_by_what_the_node_shows(
    files, environment, vendor, tmp_path
):
    assert found({"GPU": 2.0}, tmp_path, files, **environment).type == vendor


def test_amd_devices_are_masked_by_cudas_variable_too(tmp_path):
    assert found({"GPU": 2.0}, tmp_path, ["kfd"], CUDA_VISIBLE_DEVICES="6,7").mask == ("6", "7")


def test_mask_of_a_lower_layer_leaves_devices_that_count_from_zero(tmp_path):
    assert found({"GPU": 2.0}, tmp_path, ["kfd"], ROCR_VISIBLE_DEVICES="6,7").mask is None


@pytest.mark.parametrize(("count", "mask"), [(2, ("4", "5")), (1, ("4",)), (3, None)])
def test_mask_names_as_many_devices_as_ray_counted(count, mask, tmp_path):
    report = found({"GPU": float(count)}, tmp_path, CUDA_VISIBLE_DEVICES="4,5")
    assert (report.count, report.mask) == (count, mask)


def test_entries_of_a_mask_stand_for_devices():
    first, second = Device(0, uuid="GPU-8932f937-d72c"), Device(1, uuid="GPU-8a32f937-d72c")
    names = ["1", "GPU-8932", "gpu-8a", "MIG-GPU-8932f937-d72c/1/0", "GPU-8", "7", "MIG-0c7a"]
    assert match_devices(names, [first, second]) == (second, first, second, first, None, None, None)


def test_simulated_count_that_is_no_number_is_named(tmp_path):
    with pytest.raises(ConfigError, match=f"{SIMULATED_VARIABLE} is 'four'"):
        found({}, tmp_path, **{SIMULATED_VARIABLE: "four"})
