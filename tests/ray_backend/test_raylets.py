"""Which Rays this machine is a node of, as its processes say."""

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from rlinf_scheduler.errors import ClusterError, ClusterTimeout
from rlinf_scheduler.ray_backend import raylets


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine on which these command lines run."""

    def make(*command_lines):
        for pid, line in enumerate(command_lines, 100):
            (tmp_path / str(pid)).mkdir()
            (tmp_path / str(pid) / "cmdline").write_bytes(b"\0".join(word.encode() for word in line) + b"\0")
        (tmp_path / "99").mkdir()  # one that has ended while we look
        (tmp_path / "self").mkdir()
        monkeypatch.setattr(raylets, "_PROC", tmp_path)

    return make


def raylet(address, ip="10.0.0.1"):
    program = "/site-packages/ray/core/src/ray/raylet/raylet"
    return (
        program,
        "--node_id=1",
        f"--node_ip_address={ip}",
        f"--gcs-address={address}",
        "--log_dir=/tmp/of-ray",
    )


def test_raylets_are_told_by_their_program_and_say_whose_they_are(machine):
    machine(raylet("10.0.0.1:6379"), ("vim", "raylet", "--gcs-address=10.0.0.9:1"), raylet("10.0.0.2:7000"))
    assert sorted(raylets.raylets_here()) == ["10.0.0.1:6379", "10.0.0.2:7000"]


@pytest.mark.parametrize(
    "wanted", ["10.0.0.1:6379", "127.0.0.1:6379", "localhost:6379", "no-such-host.invalid:6379"]
)
def test_a_node_is_found_by_each_of_its_heads_names(machine, wanted):
    machine(raylet("10.0.0.1:6379"))
    raylets.wait_for_raylet(wanted, 0)


@pytest.mark.parametrize("wanted", ["10.0.0.1:6380", "10.0.0.2:6379"])
def test_a_node_of_another_ray_does_not_count(machine, wanted):
    machine(raylet("10.0.0.1:6379"))
    with pytest.raises(
        ClusterTimeout, match=f"no node of the Ray at {wanted}, after 0 s: .*rlinf node start"
    ):
        raylets.wait_for_raylet(wanted, 0)


def test_a_node_that_is_just_starting_is_waited_for(machine, monkeypatch):
    machine()
    looks = iter([[], [], ["10.0.0.1:6379"]])
    monkeypatch.setattr(raylets, "raylets_here", lambda: next(looks))
    begun = time.monotonic()
    raylets.wait_for_raylet("10.0.0.1:6379", 60)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("others", "found"),
    [
        (["10.0.0.1"], "10.0.0.2"),
        ([], None),  # Ray finds it
        (["10.0.0.1", "10.0.0.3"], None),  # two are of this machine
    ],
)
def test_of_raylets_of_several_machines_that_of_this_one_is_told_by_its_address(
    machine, monkeypatch, others, found
):
    monkeypatch.setattr(raylets, "network_interfaces", lambda: (("a", "10.0.0.2"), ("b", "10.0.0.3")))
    another_ray = raylet("10.0.0.9:6379", "10.0.0.9")
    machine(another_ray, *(raylet("10.0.0.1:6379", ip) for ip in ["10.0.0.2", *others]))
    assert raylets.node_ip_here("10.0.0.1:6379") == found


def test_a_ray_whose_folder_lets_nobody_else_in_refuses_before_it_would_abort(machine, monkeypatch):
    machine(raylet("10.0.0.1:6379"))

    def stat(path, *args, **options):
        if path == "/tmp/of-ray":
            raise PermissionError(path)
        return real(path, *args, **options)

    real = os.stat
    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(
        ClusterError, match=r"the Ray at 10\.0\.0\.1:6379 is that of user .*: run the program as that"
    ):
        raylets.wait_for_raylet("10.0.0.1:6379", 0)


@pytest.fixture
def like_here(tmp_path, monkeypatch):
    """A node of this machine, node 'ab', whose processes see what this one sees; its folder in `/proc`."""
    here, folder = Path("/proc/self"), tmp_path / "100"
    (folder / "ns").mkdir(parents=True)
    for link in ("ns/mnt", "ns/net", "ns/pid", "root"):
        (folder / link).symlink_to(os.readlink(here / link))
    (folder / "cgroup").write_text((here / "cgroup").read_text())
    (folder / "environ").write_bytes(b"RLINF_NODE_RANK=3\0CUDA_VISIBLE_DEVICES=4,5\0")
    starts = f"--python_worker_command={sys.executable} default_worker.py --a-port=1"
    (folder / "cmdline").write_bytes("\0".join(["/ray/raylet", "--node_id=ab", starts]).encode())
    (tmp_path / "self").symlink_to(here.resolve())
    monkeypatch.setattr(raylets, "_PROC", tmp_path)
    return folder


def test_a_node_whose_processes_see_what_is_here_is_found_with_its_variables(like_here):
    assert raylets.nodes_like_here(["ab", "cd"]) == {
        "ab": {"RLINF_NODE_RANK": "3", "CUDA_VISIBLE_DEVICES": "4,5"}
    }
    assert raylets.nodes_like_here(["cd"]) == {}


@pytest.mark.parametrize(
    "what", ["ns/mnt", "ns/net", "ns/pid", "root", "cgroup", "environ", "python", "user"]
)
def test_a_node_that_sees_anything_else_or_hides_it_is_not(like_here, monkeypatch, what):
    if what == "python":
        monkeypatch.setattr(sys, "executable", "/another/python")
    elif what == "user":
        monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    else:
        (like_here / what).unlink()
        if what == "cgroup":
            (like_here / what).write_text("0::/a/step/of/slurm")
        elif what != "environ":  # which is another user's
            (like_here / what).symlink_to("another:[1]")
    assert raylets.nodes_like_here(["ab"]) == {}


@pytest.mark.parametrize("lacking", ["ns/mnt", "cgroup"])
def test_where_the_kernel_does_not_say_what_this_process_sees_no_node_is_like_it(like_here, lacking):
    own = like_here.parent / "self"
    own.unlink()
    shutil.copytree(like_here, own, symlinks=True)
    assert list(raylets.nodes_like_here(["ab"])) == ["ab"]
    (own / lacking).unlink()
    assert raylets.nodes_like_here(["ab"]) == {}


def test_a_node_whose_command_cannot_be_taken_apart_is_not(like_here):
    starts = f"--python_worker_command={sys.executable} default_worker.py --temp-dir=/home/o'brien"
    (like_here / "cmdline").write_bytes("\0".join(["/ray/raylet", "--node_id=ab", starts]).encode())
    assert raylets.nodes_like_here(["ab"]) == {}
