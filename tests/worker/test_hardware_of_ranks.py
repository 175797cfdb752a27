"""What ranks find in `self.hardware`, and robots that cannot be reached."""

import socket

import pytest
from ray_workers import Probe

from rlinf.scheduler import ComponentPlacement, FlexiblePlacementStrategy, NodePlacementStrategy
from rlinf_scheduler.errors import LaunchError
from rlinf_scheduler.hardware import Accelerator


def arms(*configs):
    return {
        "num_nodes": 2,
        "component_placement": {"env": {"node_group": "arms", "placement": "all"}},
        "node_groups": [
            {
                "label": "arms",
                "node_ranks": "0-1",
                "hardware": {"type": "Robot", "configs": list(configs)},
            }
        ],
    }


def launch(forked_job, config, name):
    view = forked_job.view(config)
    strategy = ComponentPlacement({"cluster": config}, view.topology).get_strategy("env")
    return Probe.create_group().launch(view, strategy, name=name)


@pytest.fixture
def robot():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_worker_finds_its_accelerators(forked_job):
    group = Probe.create_group().launch(forked_job, FlexiblePlacementStrategy([[0], [5, 6]]), name="armed")
    assert group.find_hardware().wait(60) == [
        (Accelerator("simulated", 0, "0"),),
        (Accelerator("simulated", 1, "5"), Accelerator("simulated", 2, "6")),
    ]


def test_a_worker_on_a_bare_node_finds_nothing(forked_job):
    group = Probe.create_group().launch(forked_job, NodePlacementStrategy([1]), name="bare")
    assert group.find_hardware().wait(60) == [()]


def test_each_worker_finds_its_own_robot(forked_job, robot):
    checked = {"node_rank": 0, "address": "127.0.0.1", "port": robot, "check": "tcp"}
    group = launch(forked_job, arms(checked, {"node_rank": 1, "address": "10.0.0.8"}), "two-arms")
    found = group.find_hardware().wait(60)
    assert [hardware[0].address for hardware in found] == ["127.0.0.1", "10.0.0.8"]


def test_a_robot_that_cannot_be_reached_ends_the_launch_naming_it(forked_job, robot):
    there = {"node_rank": 0, "address": "127.0.0.1", "port": robot, "check": "tcp"}
    gone = {"node_rank": 1, "address": "127.0.0.1", "port": 1, "check": "tcp"}
    with pytest.raises(LaunchError, match="rank 1 failed to reach its hardware") as caught:
        launch(forked_job, arms(there, gone), "unreachable")
    assert "127.0.0.1" in str(caught.value)
