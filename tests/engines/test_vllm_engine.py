"""What is vLLM's own: its processes are members of the job, their deaths are named, and nothing of them is left."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from test_contract import DEADLINE_S, Job, folder, reference  # noqa: F401

from engine_ranks import PROMPT, asked
from rlinf_scheduler import errors
from rlinf_scheduler.observe.status_service import begin_status, received

pytestmark = [
    pytest.mark.timeout(420),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of what vLLM imports
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "engines" / "rollout_with_vllm.py"


def engine(*args, **options):
    from rlinf_scheduler.engines import VllmEngine

    return VllmEngine(*args, **options)


def left_behind():
    """Shared memory, and folders of sockets."""
    return {
        name
        for path in ("/dev/shm", tempfile.gettempdir())
        for name in os.listdir(path)
        if name.startswith(("psm_", "rlinf-engine-"))
    }


def is_there(pid):
    """Whether a process runs; one that has ended may wait for a parent that asks for its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def rows_of(job):
    """The processes of a job that a look at it shows, by their addresses."""
    status = received(begin_status(job.job.session))
    return {rank.address: rank for group in status.groups for rank in group.ranks}


def processes_below(pid):
    """The processes below one, by their names."""
    found = {}
    children = " ".join(each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/children"))
    for child in map(int, children.split()):
        command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        found |= {command: child} | processes_below(child)
    return {name: child for name, child in found.items() if "resource_tracker" not in name}


@pytest.mark.parametrize("killed", ["VLLM::EngineCore", "rollout:0/0"])
def test_a_process_that_is_killed_is_named_and_nothing_is_left_of_the_others(folder, killed):  # noqa: F811
    before = left_behind()
    job = Job("vllm", folder)
    try:
        job.publish()
        job.update()
        rows = rows_of(job)
        pids = processes_below(rows["rollout:0"].pid)
        assert rows["rollout:0/0"].pid in pids.values()
        (pid,) = (pid for name, pid in pids.items() if name.startswith(killed))
        told, health = job.run("killed", pid)
        assert f"of vLLM (pid {pid}) is gone" in health
        # How a child's child has ended only its parent is told for certain, vLLM's core; it logs what it knows.
        assert re.search("ended by SIGKILL" + "|died unexpectedly" * (killed != "VLLM::EngineCore"), health)
        assert told == [f"EngineDead: {health}"] * 3
        job.rank.close().wait(DEADLINE_S)
        assert {name: pid for name, pid in pids.items() if is_there(pid)} == {}
        assert left_behind() == before
        assert f"pid {pid}" in job.run("refused_after_death")
    finally:
        job.close()


def test_an_engine_that_does_not_start_says_what_its_processes_logged(folder):  # noqa: F811
    with pytest.raises(
        errors.WorkerError, match=r"vLLM did not start: .* \(EngineCore failed to start\. \w+: "
    ):
        Job("vllm", folder, threads="none")


def test_each_worker_of_a_model_in_two_parts_takes_its_part_and_is_named_when_it_dies(folder):  # noqa: F811
    first, *rest = sorted(os.sched_getaffinity(0))
    job = Job("vllm", folder, tensor_parallel_size=2, threads=f"{first}|{rest[0] if rest else first}")
    try:
        job.publish(seed=1)
        assert job.update() == 1
        (generation,) = job.run("generate", asked("whole", 8))
        tokens, log_probs = reference(folder, 1, PROMPT, 8)
        assert list(generation.token_ids) == tokens
        np.testing.assert_allclose(generation.logprobs, log_probs[range(8), tokens], atol=1e-4)
        rows = rows_of(job)
        assert {"rollout:0/0", "rollout:0/1"} <= rows.keys()
        told, health = job.run("killed", rows["rollout:0/1"].pid)
        assert re.search(rf"\(pid {rows['rollout:0/1'].pid}\) is gone: .*(SIGKILL|died unexpectedly)", health)
        assert told == [f"EngineDead: {health}"] * 3
    finally:
        job.close()


def test_streams_of_an_engine_that_has_half_of_its_weights_say_that_it_is_dead(folder):  # noqa: F811
    before = left_behind()
    job = Job("vllm", folder)
    try:
        job.publish()
        said, told, late = job.run("half_loaded")
        assert said == "vLLM is gone: weights 'policy' of version 1 are loaded in part: half of it"
        assert told == [f"EngineDead: {said}"] * 3
        assert late == f"EngineDead: {said}"
        assert left_behind() == before
    finally:
        job.close()


def test_arguments_that_the_engine_sets_itself_are_refused():
    with pytest.raises(errors.EngineError, match="worker_extension_cls: VllmEngine sets this itself"):
        engine("model", worker_extension_cls="mine.Worker")


def test_a_vllm_that_is_too_old_is_named(monkeypatch):
    monkeypatch.setattr("vllm.__version__", "0.31.2")
    with pytest.raises(errors.EngineError, match=r"vLLM 0\.31\.2 is too old.*0\.32 does"):
        engine("model")


def test_a_plug_in_that_vllm_will_not_find_is_named(monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.engines.vllm.entry_points", lambda group: ())
    with pytest.raises(errors.EngineError, match="does not find the plug-in 'rlinf'"):
        engine("model")


def test_the_plug_in_may_be_loaded_again_and_loads_nothing():
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    from rlinf_scheduler.engines import vllm_plugin

    vllm_plugin.register()
    vllm_plugin.register()
    assert vllm_plugin.BACKEND in WeightTransferEngineFactory._registry


@pytest.mark.ray(own=True)
@pytest.mark.timeout(500)
def test_the_example_updates_while_it_generates():
    ran = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=480)
    assert ran.returncode == 0, ran.stderr
    assert re.findall(r"version (\d): requests", ran.stdout) == ["1", "2"]
    assert re.findall(r"400 tokens, by version: .*2: \d+", ran.stdout)
