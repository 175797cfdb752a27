"""Which EGL device a rank renders on, also where there is no EGL."""

import os
import sys

import pytest

from rlinf_scheduler.hardware.egl import EGL_VARIABLES, find_egl_devices, render_settings
from rlinf_scheduler.planning import Node, PackedPlacementStrategy, Topology

# As on a node of eight of which a container has four.
SHUFFLED = "0 2\n1 3\n2 0\n3 1\n"


def node(**settings):
    return Node("n", **{"num_accelerators": 4, "accelerator_type": "NVIDIA", **settings})


def variables(on, **options):
    strategy = PackedPlacementStrategy(0, 3, **options)
    return [render_settings(p, on).get(EGL_VARIABLES[0]) for p in strategy.get_placement(Topology((on,)))]


def program(text):
    return (sys.executable, "-c", text)


def test_the_driver_is_asked_with_the_variables_of_the_nodes_processes():
    asks = program("import os,sys; sys.stdout.write(os.environ['CUDA_VISIBLE_DEVICES'])")
    assert find_egl_devices(2, {"CUDA_VISIBLE_DEVICES": "1 5"}, command=asks) == (-1, 5)


def test_every_accelerator_has_its_own_number():
    asks = program(f"print({SHUFFLED!r})")
    assert find_egl_devices(4, os.environ, command=asks) == (2, 3, 0, 1)


@pytest.mark.parametrize("text", ["raise SystemExit(1)", "pass", "print('no EGL')", "print('7 0')"])
def test_where_egl_says_nothing_of_use_there_are_no_numbers(text):
    found = find_egl_devices(1, os.environ, command=program(text))
    assert found in ((), (-1,))


def test_a_program_that_does_not_answer_is_given_up():
    assert find_egl_devices(1, os.environ, 0.2, command=program("import time; time.sleep(60)")) == ()


def test_ranks_render_on_their_own_first_accelerator():
    assert variables(node(egl_devices=(2, 3, 0, 1))) == ["2", "3", "0", "1"]
    assert variables(node(egl_devices=(2, 3, 0, 1)), num_gpus_per_process=2) == ["2", "0"]


def test_where_egl_does_not_say_cudas_own_number_is_taken():
    assert variables(node()) == ["0", "1", "2", "3"]
    assert variables(node(visible=("4", "5", "6", "7"))) == ["4", "5", "6", "7"]
    assert variables(node(egl_devices=(2, -1, 0, 1))) == ["2", "1", "0", "1"]


def test_a_uuid_stands_for_no_number():
    assert variables(node(visible=("GPU-a", "GPU-b", "GPU-c", "GPU-d"))) == [None] * 4


def test_other_vendors_and_ranks_without_accelerators_have_none():
    assert variables(node(accelerator_type="AMD")) == [None] * 4


def test_both_names_say_the_same():
    (first, *_) = PackedPlacementStrategy(0, 3).get_placement(Topology((node(egl_devices=(2, 3, 0, 1)),)))
    assert render_settings(first, node(egl_devices=(2, 3, 0, 1))) == dict.fromkeys(EGL_VARIABLES, "2")
