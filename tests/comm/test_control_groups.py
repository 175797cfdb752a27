"""The limits of the control groups that a process is in, wherever these are mounted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fake_control_groups import FakeControlGroups
from rlinf_scheduler.comm import control_groups

MIB = 1 << 20
LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
NONE = {1: str((1 << 63) - 4096), 2: "max"}


@pytest.fixture
def system(tmp_path):
    return FakeControlGroups(tmp_path)


def limits(system, version, groups):
    for path, limit in groups.items():
        system.group(path, version, **{LIMIT[version]: limit})


def limit_of(system):
    return control_groups.memory_limit_bytes(system.proc)


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_nested_group_is_seen_without_a_namespace(system, version):
    system.mount(version)
    limits(system, version, {"/": NONE[version], "/slurm": NONE[version], "/slurm/job_7": 80 * MIB})
    system.place("self", "/slurm/job_7", version)
    assert limit_of(system) == 80 * MIB


@pytest.mark.parametrize("version", [1, 2])
def test_a_parent_that_has_less_is_the_limit(system, version):
    system.mount(version)
    limits(system, version, {"/user.slice": 70 * MIB, "/user.slice/app": 80 * MIB, "/other": MIB})
    system.place("self", "/user.slice/app/python.scope", version)
    limits(system, version, {"/user.slice/app/python.scope": NONE[version]})
    assert limit_of(system) == 70 * MIB


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_that_reads_the_whole_path_sees_its_own_group_at_the_mount(system, version):
    system.mount(version, root="/docker/4f1")
    limits(system, version, {"/": 90 * MIB, "/worker": 80 * MIB})
    system.place("self", "/docker/4f1/worker", version)
    assert limit_of(system) == 80 * MIB


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("root", "path"), [("/", "/"), ("/a/b", "/c/d"), ("/", "/../other"), ("/..", "/")])
def test_of_a_group_that_lies_beyond_the_mount_the_mount_s_own_counts(system, version, root, path):
    system.mount(version, root=root)
    limits(system, version, {"/": 90 * MIB})
    system.place("self", path, version)
    assert limit_of(system) == 90 * MIB


def test_of_two_versions_beside_each_other_the_one_that_has_memory_counts(system):
    system.mount(2)
    system.mount(1)
    limits(system, 1, {"/job": 80 * MIB})
    system.place("self", "/job", 1)
    with (system.proc / "self" / "cgroup").open("a") as file:
        file.write("0::/\n")
    assert limit_of(system) == 80 * MIB


def test_who_is_slowed_down_above_a_limit_has_it(system):
    system.mount(2)
    system.group("/job", 2, **{"memory.max": 80 * MIB, "memory.high": 60 * MIB})
    system.place("self", "/job", 2)
    assert limit_of(system) == 60 * MIB


def test_where_nothing_is_bounded_or_can_be_read_there_is_no_limit(system, tmp_path):
    assert limit_of(system) is None
    system.mount(2)
    system.place("self", "/job", 2)
    assert limit_of(system) is None
    limits(system, 2, {"/job": "max"})
    assert limit_of(system) is None
    assert control_groups.memory_limit_bytes(tmp_path / "nowhere") is None


SAY_IT = "import sys; sys.stdin.read(); from rlinf_scheduler.comm.shm.ledger import memory_bytes; print(memory_bytes())"


@pytest.fixture
def nested_group():
    """A real control group below this process's own that bounds memory to 512 MiB."""
    try:
        own = next(control_groups.folders("memory"))
        group = own / f"rlinf-test-{os.getpid()}"
        group.mkdir()
    except (OSError, StopIteration) as error:
        pytest.skip(f"control groups cannot be made here: {error}")
    try:
        limit = next(filter(Path.exists, (group / name for name in LIMIT.values())), None)
        if limit is None:
            pytest.skip("control groups of this process bound no memory")
        limit.write_text(str(512 * MIB))
        yield group
    finally:
        group.rmdir()


def test_a_process_of_a_real_nested_group_sees_its_limit(nested_group):
    command = [sys.executable, "-c", SAY_IT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        (nested_group / "cgroup.procs").write_text(str(process.pid))
        output, _ = process.communicate(timeout=60)
    assert int(output) == 512 * MIB
