"""Which EGL device a rank renders on, also where there is no EGL."""

import os
import sys

import pytest

from rlinf_scheduler.hardware.devices import Device
from rlinf_scheduler.hardware.egl import (
    EGL_PROBLEM,
    EGL_VARIABLES,
    EGL_VIEW,
    EglDevice,
    egl_numbers,
    find_egl_devices,
    parse_egl_view,
    render_settings,
)
from rlinf_scheduler.planning import Node, PackedPlacementStrategy, Topology

DEADLINE_S = 60.0
# As on a node of eight of which a container has four.
SHUFFLED = "0 2 - -\n1 3 - -\n2 0 - -\n3 1 - -\n"


def node(**settings):
    return Node("n", **{"num_accelerators": 4, "accelerator_type": "NVIDIA", **settings})


def variables(on, **options):
    strategy = PackedPlacementStrategy(0, 3, **options)
    return [render_settings(p, on).get(EGL_VARIABLES[0]) for p in strategy.get_placement(Topology((on,)))]


def program(text):
    return (sys.executable, "-c", text)


def test_the_driver_is_asked_with_the_variables_of_the_nodes_processes():
    asks = program("import os,sys; sys.stdout.write(os.environ['CUDA_VISIBLE_DEVICES'])")
    assert find_egl_devices(2, {"CUDA_VISIBLE_DEVICES": "5 1 - -"}, DEADLINE_S, asks) == (-1, 5)


def test_every_accelerator_has_its_own_number():
    asks = program(f"print({SHUFFLED!r})")
    assert find_egl_devices(4, os.environ, DEADLINE_S, asks) == (2, 3, 0, 1)


@pytest.mark.parametrize("text", ["raise SystemExit(1)", "pass", "print('no EGL')", "print('7 3 - -')"])
def test_where_egl_says_nothing_of_use_there_are_no_numbers(text):
    found = find_egl_devices(1, os.environ, DEADLINE_S, program(text))
    assert found == ()


UUID = "8932f937d72c4106c12f20bd9faed9f6"
GPU = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"


def test_devices_have_the_address_of_the_kernels_card(tmp_path):
    card = tmp_path / "card3"
    card.mkdir()
    (card / "device").symlink_to(tmp_path / "0000:2a:00.0")
    text = f"0 - {UUID} /dev/dri/card3\n1 4 - /dev/dri/card9\nwarning: no driver\n2 - broken -\n"
    assert parse_egl_view(text, tmp_path) == (
        EglDevice(0, -1, GPU, "0000:2a:00.0"),
        EglDevice(1, 4),
        EglDevice(2),
    )


@pytest.mark.parametrize(
    ("listed", "accelerators", "numbers"),
    [
        # CUDA's number counts first: it is of a process with the same mask.
        ([EglDevice(0, 1, GPU), EglDevice(1, 0)], [Device(0, uuid=GPU), Device(1)], (1, 0)),
        # A container has two of eight, and EGL lists all.
        (
            [EglDevice(n, -1, f"GPU-{n}") for n in range(8)],
            [Device(0, uuid="GPU-5"), Device(1, uuid="GPU-2")],
            (5, 2),
        ),
        # Mesa lists the same card beside the vendor, and a renderer without one.
        (
            [EglDevice(0, 0, "", "0000:1b:00.0"), EglDevice(1, -1, "", "0000:1b:00.0"), EglDevice(2)],
            [Device(0, pci_bus_id="0000:1b:00.0")],
            (0,),
        ),
        (
            [EglDevice(0), EglDevice(1, -1, "", "0000:1b:00.0")],
            [None, Device(1, pci_bus_id="0000:1b:00.0")],
            (-1, 1),
        ),
        ([EglDevice(0)], [Device(0, uuid=GPU, pci_bus_id="0000:1b:00.0")], ()),
        ([], [None, None], ()),
    ],
)
def test_a_device_is_found_by_cudas_number_its_uuid_or_its_address(listed, accelerators, numbers):
    assert egl_numbers(listed, accelerators) == numbers


def test_the_egl_that_is_installed_here_is_asked():
    ctypes = pytest.importorskip("ctypes")
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        pytest.skip("EGL is not installed here")
    import subprocess

    listed = parse_egl_view(subprocess.run(EGL_VIEW, capture_output=True, text=True, check=True).stdout)
    assert [device.number for device in listed] == list(range(len(listed)))


def test_a_program_that_does_not_answer_is_given_up():
    assert find_egl_devices(1, os.environ, 0.2, command=program("import time; time.sleep(60)")) == ()


def test_ranks_render_on_their_own_first_accelerator():
    assert variables(node(egl_devices=(2, 3, 0, 1))) == ["2", "3", "0", "1"]
    assert variables(node(egl_devices=(2, 3, 0, 1)), num_gpus_per_process=2) == ["2", "0"]


def test_where_egl_does_not_say_cudas_own_number_is_taken():
    assert variables(node()) == ["0", "1", "2", "3"]
    assert variables(node(visible=("4", "5", "6", "7"))) == ["4", "5", "6", "7"]
    assert variables(node(egl_devices=(2, -1, 0, 1))) == ["2", "1", "0", "1"]


def test_where_a_number_is_not_known_the_rank_is_told_why():
    def problem(on):
        (first, *_) = PackedPlacementStrategy(0, 0).get_placement(Topology((on,)))
        return render_settings(first, on).get(EGL_PROBLEM)

    assert problem(node(hostname="big")) == "EGL is not installed on node 0 (big), or lists no accelerator"
    unknown = "none of EGL's devices on node 0 is known to be accelerator 0 (GPU-a)"
    assert problem(node(egl_devices=(-1, 0, 1, 2), uuids=("GPU-a", "b", "c", "d"))) == unknown
    assert problem(node(egl_devices=(2, 3, 0, 1))) is None


def test_a_uuid_stands_for_no_number():
    assert variables(node(visible=("GPU-a", "GPU-b", "GPU-c", "GPU-d"))) == [None] * 4


def test_other_vendors_and_ranks_without_accelerators_have_none():
    assert variables(node(accelerator_type="AMD")) == [None] * 4


def test_both_names_say_the_same():
    (first, *_) = PackedPlacementStrategy(0, 3).get_placement(Topology((node(egl_devices=(2, 3, 0, 1)),)))
    assert render_settings(first, node(egl_devices=(2, 3, 0, 1))) == dict.fromkeys(EGL_VARIABLES, "2")
