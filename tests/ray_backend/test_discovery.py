"""What a node says about itself, and what becomes of it."""

import ipaddress
import json
import os
import time

import pytest
from typer.testing import CliRunner

from rlinf_scheduler.cli.main import app
from rlinf_scheduler.config.fleet_file import read_fleet
from rlinf_scheduler.errors import ClusterError, ClusterTimeout
from rlinf_scheduler.hardware.devices import Device
from rlinf_scheduler.planning import Node
from rlinf_scheduler.ray_backend import authentication, lost_nodes
from rlinf_scheduler.ray_backend.backend import wait_for_nodes
from rlinf_scheduler.ray_backend.nodes import fleet_of
from rlinf_scheduler.ray_backend.probe import (
    NodeReport,
    network_interfaces,
    node_environment,
    probe_this_node,
    simulated_environment,
)


def probe(environment, resources=()):
    return probe_this_node("id", "10.0.0.7", False, dict(resources), environment)


def test_a_node_reports_what_ray_counted_and_the_mask_that_it_was_started_with():
    report = probe({"CUDA_VISIBLE_DEVICES": "4,5", "RLINF_NODE_RANK": "3"}, {"GPU": 2.0})
    assert (report.num_accelerators, report.accelerator_type, report.mask) == (2, "NVIDIA", ("4", "5"))
    assert report.accelerator_names == ("4", "5")
    assert report.node_rank_setting == 3


def test_a_node_without_accelerators_says_so():
    report = probe({})
    assert (report.num_accelerators, report.accelerator_type, report.devices) == (0, "", ())
    assert report.python
    assert report.node_rank_setting is None


def test_a_node_rank_that_is_no_number_is_an_error_that_names_the_variable():
    with pytest.raises(ClusterError, match="RLINF_NODE_RANK='first'"):
        probe({"RLINF_NODE_RANK": "first"})


def test_a_simulated_node_reports_the_node_that_it_simulates():
    node = Node(num_accelerators=3, visible=("1", "5", "7"))
    report = probe(simulated_environment(2, node))
    assert (report.node_rank_setting, report.accelerator_names) == (2, ("1", "5", "7"))


@pytest.mark.parametrize(("parent", "mask"), [("raylet", "4,5=a"), ("sh", None)])
def test_a_node_starts_its_processes_with_what_its_raylet_was_started_with(
    tmp_path, monkeypatch, parent, mask
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    folder = tmp_path / str(os.getppid())
    folder.mkdir()
    (folder / "comm").write_text(f"{parent}\n")
    (folder / "environ").write_bytes(b"CUDA_VISIBLE_DEVICES=4,5=a\0BYTES=\xff\0")
    assert node_environment(tmp_path).get("CUDA_VISIBLE_DEVICES") == mask


def test_interfaces_have_addresses_and_leave_the_loopback_out():
    for name, address in network_interfaces():
        assert name
        assert not ipaddress.ip_address(address).is_loopback


def test_devices_of_the_vendors_tool_stand_beside_their_entries_of_the_mask():
    report = NodeReport(
        node_id="a",
        ip="10.0.0.1",
        hostname="h",
        is_head=True,
        node_rank_setting=None,
        num_accelerators=2,
        accelerator_type="NVIDIA",
        mask=("5", "4"),
        machine_id="m",
        devices=(Device(5, "NVIDIA H200", "GPU-55", 143771 * 2**20, "0000:1b:00.0", 1), None),
        python="/usr/bin/python3",
        interfaces=(("eth0", "10.0.0.1"),),
    )
    (node,) = fleet_of([report]).nodes
    first, second = node.accelerators
    assert (first.visible, first.model, first.uuid, first.numa_node) == ("5", "NVIDIA H200", "GPU-55", 1)
    assert first.memory_bytes == 143771 * 2**20
    assert (second.visible, second.model, second.memory_bytes) == ("4", "", None)
    assert node.as_node().visible == ("5", "4")


@pytest.fixture
def patient(monkeypatch):
    """What is there is waited for, however busy it is."""
    for limit in ("_SHORTEST_ATTEMPT_S", "_ATTEMPT_TIMEOUT_S"):
        monkeypatch.setattr(authentication, limit, 60.0)
    monkeypatch.setattr(lost_nodes, "_LOOK_S", 60.0)


@pytest.mark.ray
def test_too_few_nodes_are_an_error_at_the_deadline_that_lists_those_there(ray_cluster, patient):
    address = ray_cluster.topology.nodes[0].ip
    with pytest.raises(ClusterTimeout, match="3 nodes were asked for and 2 are there") as caught:
        wait_for_nodes(3, 0.3)
    assert str(caught.value).count(address) == 2


@pytest.mark.ray
def test_what_was_waited_for_before_counts_against_the_deadline(ray_cluster, patient):
    with pytest.raises(ClusterTimeout, match="3 nodes were asked for"):
        wait_for_nodes(3, 100, begun=time.monotonic() - 200)


@pytest.mark.ray
def test_the_probed_fleet_can_be_saved_and_planned_on(ray_cluster, tmp_path):
    file = tmp_path / "fleet.yaml"
    shown = CliRunner().invoke(app, ["topology", "--out", str(file)])
    assert shown.exit_code == 0, shown.output
    assert "2 nodes with 8 accelerators" in shown.output
    assert "4,5,6,7" in shown.output
    assert read_fleet(file).topology == ray_cluster.topology
    data = json.loads(CliRunner().invoke(app, ["topology", "--json"]).stdout)
    assert [len(node["accelerators"]) for node in data["nodes"]] == [4, 4]
