"""The robots that a config declares are looked at from the nodes that have them, as before a launch."""

import json
import socket

import pytest

from programs import run_program
from rlinf_scheduler.config import read_cluster_config
from rlinf_scheduler.doctor.examination import declared_units, examine, look_at
from rlinf_scheduler.doctor.facts import HardwareFacts
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.hardware import HardwareType, register_hardware, registry
from rlinf_scheduler.planning import Node


def groups_of(kind, *configs, node_ranks=0, label="robots"):
    hardware = {"type": kind, "configs": list(configs)}
    group = {"label": label, "node_ranks": node_ranks, "hardware": hardware}
    return read_cluster_config({"cluster": {"node_groups": [group]}}).node_groups


def looked_at(kind, **config):
    pieces, _ = declared_units(groups_of(kind, {"node_rank": 0, **config}), {0: Node("n0")})
    return look_at("node 0", pieces[0])


@pytest.fixture
def nobody_listens():
    """A port that is taken, and where nobody answers."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_each_node_looks_at_its_own():
    groups = groups_of(
        "GimArm",
        {"node_rank": 0, "can_interface": "can0"},
        {"node_rank": 1, "can_interface": "can1"},
        node_ranks="0-1",
    )
    pieces, absent = declared_units(groups, {0: Node("n0"), 1: Node("n1")})
    assert {rank: [unit.config.can_interface for unit in units] for rank, units in pieces.items()} == {
        0: ["can0"],
        1: ["can1"],
    }
    assert absent == []


def test_what_the_config_leaves_out_comes_from_the_node_as_at_a_launch():
    node = Node("n0", variables=(("ROBOT_IP", "10.10.10.2"),))
    pieces, _ = declared_units(groups_of("Franka", {"node_rank": 0}), {0: node})
    assert [unit.config.robot_ip for unit in pieces[0]] == ["10.10.10.2"]


def test_variables_that_do_not_fit_are_an_error():
    node = Node("n0", variables=(("ROBOT_IP", "nowhere"),))
    with pytest.raises(ConfigError, match="ROBOT_IP of node 0 is 'nowhere'"):
        declared_units(groups_of("Franka", {"node_rank": 0}), {0: node})


def test_of_a_node_that_is_not_there_it_is_said_that_nothing_was_looked_at():
    pieces, absent = declared_units(groups_of("Robot", {"node_rank": 2}, node_ranks=2), {0: Node("n0")})
    assert pieces == {}
    assert [(each.node, each.faults) for each in absent] == [("node 2", ())]
    assert "(Robot) was not looked at" in absent[0].notes[0]


def test_a_robot_that_is_not_there_is_a_fault_if_a_launch_fails_of_it(nobody_listens):
    facts = looked_at("Robot", address="127.0.0.1", port=nobody_listens, check="tcp")
    assert facts.faults == (f"Robot of node 0 at 127.0.0.1:{nobody_listens}: connection refused",)
    facts = looked_at("GimArm", can_interface="nosuchcan", disable_validate=False)
    assert "can_interface nosuchcan: there is no such network interface" in facts.faults[0]


def test_what_a_launch_would_only_log_is_a_note():
    facts = looked_at("GimArm", can_interface="nosuchcan")
    note = "GimArm of node 0: can_interface nosuchcan: there is no such network interface"
    assert facts == HardwareFacts("node 0", 1, (), (note,))


@pytest.mark.parametrize(
    "config", [{"can_interface": "lo"}, {"can_interface": "no", "disable_validate": True}]
)
def test_nothing_is_said_of_what_is_there_and_of_what_is_not_to_be_looked_at(config):
    assert looked_at("GimArm", **config) == HardwareFacts("node 0", 1)


def test_a_check_of_a_programs_own_that_raises_is_told_of_beside_what_else_is_found(monkeypatch):
    class Loom(HardwareType):
        name = "Loom"

        def check(self, config, timeout_s):
            raise LookupError("no shuttle")

    monkeypatch.setattr(registry, "_registered", {})
    register_hardware(Loom())
    pieces, _ = declared_units(groups_of("Loom", {"node_rank": 0}), {0: Node("n0")})
    absent, _ = declared_units(
        groups_of("GimArm", {"node_rank": 0, "can_interface": "nosuchcan"}), {0: Node("n0")}
    )
    facts = look_at("node 0", [*pieces[0], *absent[0]])
    assert facts.faults == ("Loom of node 0: its check raised LookupError: no shuttle",)
    assert "nosuchcan" in facts.notes[0]


def test_without_a_cluster_this_machine_is_node_0(monkeypatch):
    from rlinf_scheduler.doctor import examination

    monkeypatch.setattr(examination, "find_address", lambda *_: examination.LOCAL)
    monkeypatch.setattr(examination.ray, "is_initialized", lambda: False)
    groups = groups_of(
        "GimArm", {"node_rank": 0, "can_interface": "nosuchcan"}, {"node_rank": 1}, node_ranks="0-1"
    )
    here, other = examine(None, None, 10.0, groups=groups).hardware
    assert "nosuchcan" in here.notes[0]
    assert other.node == "node 1"


CONF = """\
cluster:
  node_groups:
    - label: arms
      node_ranks: 0-1
      hardware:
        type: GimArm
        configs:
          - {node_rank: 0, can_interface: nosuchcan0}
          - {node_rank: 1, can_interface: nosuchcan1, disable_validate: false}
          - {node_rank: 1, can_interface: lo}
"""
RLINF = "import sys; from rlinf_scheduler.cli.main import app; app(sys.argv[1:])"


@pytest.mark.ray
def test_every_node_of_a_cluster_looks_at_its_own(ray_address, tmp_path):
    (tmp_path / "conf.yaml").write_text(CONF)
    command = ["doctor", str(tmp_path / "conf.yaml"), "--address", ray_address, "--json"]
    done = run_program("-c", RLINF, *command, with_ray=True, timeout=120)
    assert done.returncode == 1, done.stderr
    first, second = sorted(json.loads(done.stdout)["facts"]["hardware"], key=lambda each: each["node"])
    assert [first["num_pieces"], second["num_pieces"]] == [1, 2]
    assert "nosuchcan0" in first["notes"][0]
    assert "nosuchcan1" in second["faults"][0]
    assert "FAULT" not in done.stderr
