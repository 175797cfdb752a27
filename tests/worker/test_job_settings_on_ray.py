"""What the config that opens a job says of all its groups: profilers, an extension, node groups, where logs go."""

import sys

import pytest
from ray_workers import Probe

from rlinf.scheduler import NodePlacementStrategy
from rlinf_scheduler.errors import ConfigError, LaunchError
from rlinf_scheduler.hardware.profilers import ProfilingConfig
from rlinf_scheduler.host.info import JobSettings
from rlinf_scheduler.host.output import LogFolder
from rlinf_scheduler.planning import NodeGroup

pytestmark = [pytest.mark.ray, pytest.mark.system]
BOTH = NodePlacementStrategy([0, 1])


@pytest.fixture
def settle(ray_cluster):
    """Have the job's settings be others until the test ends, as if it had been opened with them."""
    session = ray_cluster.session
    before = session.fact(JobSettings)

    def settled(**settings):
        session.provide(JobSettings, JobSettings(**settings))

    yield settled
    session.provide(JobSettings, before)


@pytest.fixture
def profiler(tmp_path):
    """A program that starts what it is told to, as a child, and writes down what it was told."""
    program = tmp_path / "nsys"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/told\nshift 5\n"$@"\n')
    program.chmod(0o755)
    return program


def launched(cluster, name):
    return Probe.create_group().launch(cluster, placement_strategy=BOTH, name=name)


def test_the_ranks_that_are_named_run_under_the_profiler_and_others_do_not(
    ray_cluster, settle, profiler, tmp_path
):
    settle(
        profiling=ProfilingConfig(
            "nsight",
            worker_groups=("PROFILED",),
            ranks=(1,),
            output_dir=str(tmp_path / "reports"),
            tool=str(profiler),
            options=(("t", "cuda,nvtx"),),
            env=(("MARK", "yes"),),
        )
    )
    group = launched(ray_cluster, "profiled")
    other = launched(ray_cluster, "not-profiled")
    assert group.environment("MARK").wait() == [{"MARK": None}, {"MARK": "yes"}]
    assert [name == str(profiler) for name in group.program_above().wait()] == [False, True]
    (told,) = (tmp_path / "told").read_text().splitlines()
    assert told.startswith(
        f"profile -t cuda,nvtx -o {tmp_path}/reports/rlinf-profile-profiled-1-%p {sys.executable}"
    )
    assert (tmp_path / "reports").is_dir()
    assert other.add(1).wait() == [1, 2]
    for each in (group, other):
        each.shutdown(timeout_s=60)


def test_rocms_profiler_has_its_variables_and_the_interpreter_behind_its_options(
    ray_cluster, settle, tmp_path
):
    program = tmp_path / "rocprof-sys-python"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/told\nwhile [ "$1" != -- ]; do shift; done; shift\n"$@"\n'
    )
    program.chmod(0o755)
    settle(
        profiling=ProfilingConfig(
            "rocprof_sys",
            worker_groups=("all",),
            ranks=(0,),
            tool=str(program),
            output_dir=str(tmp_path),
            options=(("F", "true"),),
        )
    )
    group = launched(ray_cluster, "rocm")
    assert [name == str(program) for name in group.program_above().wait()] == [True, False]
    assert group.environment("ROCPROFSYS_OUTPUT_PATH").wait()[0] == {"ROCPROFSYS_OUTPUT_PATH": str(tmp_path)}
    assert (tmp_path / "told").read_text().startswith(f"-F true -- {sys.executable}")
    group.shutdown(timeout_s=60)


def test_a_profiler_that_is_not_there_is_told_before_anything_starts(ray_cluster, settle, tmp_path):
    settle(profiling=ProfilingConfig("nsight", worker_groups=("all",), tool=str(tmp_path / "no-nsys")))
    with pytest.raises(ConfigError, match=r"cluster.profiling.tool: .*no-nsys' is not on node 0") as caught:
        launched(ray_cluster, "unprofiled")
    assert "install it there" in str(caught.value)
    assert "unprofiled" not in ray_cluster.groups


def test_a_folder_of_reports_that_cannot_be_made_is_told(ray_cluster, settle, profiler, tmp_path):
    (tmp_path / "file").touch()
    settle(
        profiling=ProfilingConfig(
            "nsight", worker_groups=("all",), tool=str(profiler), output_dir=str(tmp_path / "file" / "x")
        )
    )
    with pytest.raises(ConfigError, match=r"cluster.profiling.output_dir: .*cannot be made on node 0"):
        launched(ray_cluster, "unprofiled")


def test_every_rank_loads_the_jobs_extension_before_its_class(ray_cluster, tmp_path, monkeypatch):
    (tmp_path / "jobs_extension.py").write_text(
        "import os\ndef register(): os.environ['EXTENSION'] = os.environ['RLINF_GROUP']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RLINF_EXT_MODULE", "jobs_extension")
    group = launched(ray_cluster, "extended")
    assert group.environment("EXTENSION").wait() == [{"EXTENSION": "extended"}] * 2
    group.shutdown(timeout_s=60)


def test_an_extension_that_cannot_be_loaded_ends_the_launch_with_its_name(ray_cluster, monkeypatch):
    monkeypatch.setenv("RLINF_EXT_MODULE", "no_such_extension")
    with pytest.raises(LaunchError, match="RLINF_EXT_MODULE=no_such_extension: the module cannot be loaded"):
        launched(ray_cluster, "unextended")


def test_a_rank_that_opens_the_cluster_sees_the_jobs_node_groups(ray_cluster, settle):
    settle(node_groups=(NodeGroup("far", (1,)), NodeGroup("both", (0, 1))))
    group = launched(ray_cluster, "grouped")
    assert group.node_groups().wait() == [{"far": (1,), "both": (0, 1)}] * 2
    group.shutdown(timeout_s=60)


def test_ranks_write_into_the_folder_that_the_user_names_and_delete_nothing_in_it(
    ray_cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr("rlinf_scheduler.host.output.NUM_KEPT_JOBS", 1)
    folder, session = tmp_path / "logs" / "mine", ray_cluster.session
    folder.mkdir(parents=True)
    (folder / "kept").touch()
    before = session.fact(LogFolder)
    session.provide(LogFolder, LogFolder(str(folder)))
    try:
        group = launched(ray_cluster, "logged")
        group.shutdown(timeout_s=60)
    finally:
        session.provide(LogFolder, before)
    there = {path.name for path in folder.iterdir()}
    assert {"kept", "logged-0.log", "logged-1.log"} <= there
