"""What a worker's accelerators are, asked of its class: right in each rank, and in a process that is none."""

import subprocess
import sys

import pytest
from ray_workers import Probe

from rlinf.scheduler import FlexiblePlacementStrategy, NodePlacementStrategy
from rlinf_scheduler import Worker
from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.hardware.vendors import local_vendor
from rlinf_scheduler.host import info


def test_the_class_says_in_each_rank_what_that_rank_was_given(forked_job):
    placed = Probe.create_group().launch(forked_job, FlexiblePlacementStrategy([[0], [4]]), name="placed")
    bare = Probe.create_group().launch(forked_job, NodePlacementStrategy([1]), name="bare")
    assert placed.class_facts().wait(60) == [("simulated", "cpu", "torch.cpu")] * 2
    assert bare.class_facts().wait(60) == [("", "cpu", "torch.cpu")]


def test_a_process_that_is_no_rank_asks_its_machine(monkeypatch):
    monkeypatch.setenv("RLINF_SIMULATED_ACCELERATORS", "2")
    assert (Worker.accelerator_type, Worker.torch_device_type) == ("simulated", "cpu")


def test_a_process_that_is_not_told_its_rank_yet_says_so(monkeypatch):
    monkeypatch.setattr(info, "_hosted", [WorkerAddress("actor", 1)])
    with pytest.raises(ClusterError, match="'actor:1' has not been told yet what it was given"):
        _ = Worker.torch_platform


def test_what_a_program_sets_on_a_worker_wins():
    worker = Worker()
    worker.torch_platform = worker.torch_device_type = "mine"
    assert (worker.torch_platform, worker.torch_device_type) == ("mine", "mine")
    assert Worker().torch_device_type == "cpu"


def test_without_accelerators_there_is_nothing_to_free_and_to_wait_for():
    platform = Worker().torch_platform
    platform.empty_cache()
    platform.synchronize()
    platform.set_device(0)
    with platform.stream(platform.current_stream()):
        assert (platform.is_available(), platform.device_count(), platform.memory_allocated()) == (
            False,
            0,
            0,
        )
    assert platform.current_device() == "cpu"


@pytest.mark.parametrize(
    ("files", "environment", "vendor"),
    [
        (["nvidia0", "nvidiactl"], {}, "NVIDIA"),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": "1"}, "NVIDIA"),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": ""}, ""),
        (["davinci0"], {}, "Ascend"),
        (["nvidiactl"], {}, ""),
        ([], {}, ""),
    ],
)
def test_a_machines_accelerators_are_those_that_the_kernel_shows(tmp_path, files, environment, vendor):
    for name in files:
        (tmp_path / name).touch()
    assert local_vendor(environment, tmp_path) == vendor


def test_asking_for_the_vendor_loads_no_torch():
    program = "import sys, rlinf_scheduler as r; r.Worker.torch_device_type; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
