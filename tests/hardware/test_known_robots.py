"""Robots that are known by their makers: their settings, what their nodes say of them, and whether they are there."""

import socket

import pytest

from rlinf.scheduler import ComponentPlacement, Topology
from rlinf_scheduler.config import read_cluster_config
from rlinf_scheduler.errors import ConfigError, HardwareUnreachable
from rlinf_scheduler.hardware import HardwareType, check_reachable, register_hardware, robots
from rlinf_scheduler.hardware.filling_in import fill_in_groups
from rlinf_scheduler.hardware.registry import (
    KNOWN_ROBOTS,
    ROBOT_VARIABLES,
    hardware_type,
    hardware_variables,
)
from rlinf_scheduler.hardware.robots import DualFrankaConfig, FrankaConfig, GimArmConfig
from rlinf_scheduler.planning import HardwareUnit, Node


def section(kind, *configs, label="robots", node_ranks=0):
    hardware = {"type": kind, "configs": [{"node_rank": 0, **config} for config in configs]}
    return {"label": label, "node_ranks": node_ranks, "hardware": hardware}


def groups_of(*sections):
    return read_cluster_config({"cluster": {"node_groups": list(sections)}}).node_groups


def settings(kind, *configs, **variables):
    """What the robots of one node are set to be, with the node's variables."""
    node = Node("n0", variables=tuple(variables.items()))
    (group,) = fill_in_groups(groups_of(section(kind, *configs)), [node])
    return [unit.config for unit in group.hardware]


def mistake(*sections):
    with pytest.raises(ConfigError) as caught:
        groups_of(*sections)
    return str(caught.value)


@pytest.mark.parametrize("kind", KNOWN_ROBOTS)
def test_each_can_be_declared_with_its_node_alone(kind):
    (config,) = settings(kind, {})
    assert config.node_rank == 0


def test_their_variables_are_those_that_nodes_are_asked_for():
    wanted = {name.upper() for kind in KNOWN_ROBOTS for name in hardware_type(kind).fillable}
    assert set(ROBOT_VARIABLES) == wanted


def test_serial_numbers_that_yaml_takes_for_numbers_are_text():
    (config,) = settings("Franka", {"camera_serials": [322142001230, "x"]})
    assert config.camera_serials == ["322142001230", "x"]


def test_an_address_that_is_none_is_a_mistake_at_its_place():
    text = mistake(section("Franka", {"robot_ip": "franka.local"}))
    assert "node_groups[0].hardware.configs[0].robot_ip" in text


def test_a_robot_that_is_named_twice_is_a_mistake_whatever_else_differs():
    twice = section("Franka", {"robot_ip": "10.0.0.1"}, {"robot_ip": "10.0.0.1", "gripper_type": "robotiq"})
    assert "the same Franka, at 10.0.0.1" in mistake(twice)
    elsewhere = section("Franka", {"robot_ip": "10.0.0.1", "camera_type": "zed"}, label="more")
    assert "named once" in mistake(section("Franka", {"robot_ip": "10.0.0.1"}), elsewhere)


def test_the_same_robot_may_be_in_two_groups():
    robot = {"robot_ip": "10.0.0.1"}
    assert len(groups_of(section("Franka", robot), section("Franka", robot, label="more"))) == 2


def test_local_services_of_two_nodes_are_two_robots():
    configs = ({"node_rank": 0}, {"node_rank": 1, "left_arm_port": 50051})
    assert len(groups_of(section("DOSW1", *configs, node_ranks="0-1"))) == 1


def test_what_a_config_leaves_out_comes_from_the_node():
    (config,) = settings("Franka", {}, ROBOT_IP="10.0.0.1", CAMERA_SERIALS="a, b", CAMERA_TYPE="zed")
    assert (config.robot_ip, config.camera_serials) == ("10.0.0.1", ["a", "b"])
    assert config.camera_type == "realsense"  # it has a default, which the config has left


def test_what_a_config_says_stays():
    (config,) = settings("Franka", {"robot_ip": "10.0.0.9"}, ROBOT_IP="10.0.0.1")
    assert config.robot_ip == "10.0.0.9"


def test_several_robots_of_a_node_take_a_part_each_in_order():
    first, second = settings(
        "Franka", {"robot_ip": "10.0.0.9"}, {"camera_serials": ["r"]}, ROBOT_IP="10.0.0.1,10.0.0.2"
    )
    assert (first.robot_ip, second.robot_ip, second.camera_serials) == ("10.0.0.9", "10.0.0.2", ["r"])


@pytest.mark.parametrize("value", ["10.0.0.1", "10.0.0.1,10.0.0.2,10.0.0.3"])
def test_another_number_of_parts_than_robots_is_a_mistake(value):
    with pytest.raises(ConfigError, match=r"ROBOT_IP of node 0 has \d comma-separated values? for 2 Frankas"):
        settings("Franka", {"camera_serials": ["l"]}, {"camera_serials": ["r"]}, ROBOT_IP=value)


def test_robots_that_no_config_lists_are_found_by_their_nodes_variables():
    found = settings(
        "Franka",
        ROBOT_IP="10.0.0.1,10.0.0.2",
        CAMERA_SERIALS="a,b",
        DISABLE_VALIDATE="true,no",
        CAMERA_TYPE="zed,zed",
    )
    assert [config.robot_ip for config in found] == ["10.0.0.1", "10.0.0.2"]
    assert [config.camera_serials for config in found] == [["a"], ["b"]]
    assert [config.disable_validate for config in found] == [True, False]
    assert [config.camera_type for config in found] == ["zed", "zed"]


def test_one_robot_keeps_the_whole_list():
    (config,) = settings("GimArm", CAN_INTERFACE="can3", CAMERA_SERIALS="a,b")
    assert (config.can_interface, config.camera_serials) == ("can3", ["a", "b"])


def test_cameras_alone_make_no_robot():
    assert settings("Franka", CAMERA_SERIALS="a,b") == []


def test_arms_that_are_not_as_many_are_a_mistake():
    with pytest.raises(ConfigError, match="2 in LEFT_ROBOT_IP and 1 in RIGHT_ROBOT_IP"):
        settings("DualFranka", LEFT_ROBOT_IP="10.0.0.1,10.0.0.2", RIGHT_ROBOT_IP="10.0.0.3")


def test_a_variable_that_a_setting_cannot_be_is_named():
    with pytest.raises(ConfigError, match="LEFT_ARM_PORT of node 0 is 'left'"):
        settings("DOSW1", ROBOT_URL="arm", LEFT_ARM_PORT="left")


def test_a_plan_counts_the_robots_that_nodes_have():
    config = {
        "cluster": {
            "node_groups": [section("Franka", node_ranks="all")],
            "component_placement": {"env": {"node_group": "robots", "placement": "all"}},
        }
    }
    nodes = [Node(f"n{i}", variables=(("ROBOT_IP", f"10.0.0.{i}"),)) for i in range(3)]
    placement = ComponentPlacement(config, Topology(tuple(nodes)))
    assert [p.node_rank for p in placement.placements("env")] == [0, 1, 2]
    assert {p.hardware_type for p in placement.placements("env")} == {"Franka"}


def test_a_group_without_any_robot_has_nothing_to_place_on():
    config = {
        "cluster": {
            "node_groups": [section("Franka")],
            "component_placement": {"env": {"node_group": "robots", "placement": "0"}},
        }
    }
    with pytest.raises(ConfigError):
        ComponentPlacement(config, Topology.parse("1x8"))


def unit(config, kind="Franka"):
    return HardwareUnit(kind, config.node_rank, config)


@pytest.fixture
def no_cameras(monkeypatch):
    monkeypatch.setattr(robots, "connected_cameras", lambda kind: set())


@pytest.fixture
def franka_port(monkeypatch):
    """A port of this machine that stands for the one that Franka's controller listens on; nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        monkeypatch.setattr(robots, "_FRANKA_PORT", held.getsockname()[1])
        yield held


def test_a_controller_that_refuses_a_connection_is_there(franka_port):
    check_reachable([unit(FrankaConfig(node_rank=0, robot_ip="127.0.0.1"))])


def test_all_that_is_not_there_is_named(franka_port, no_cameras):
    config = FrankaConfig(
        node_rank=2, gripper_type="robotiq", gripper_connection="/dev/no", camera_serials=["7"]
    )
    with pytest.raises(HardwareUnreachable) as caught:
        check_reachable([unit(config)])
    text = "\n".join(caught.value.failures)
    assert "Franka of node 2: robot_ip is not set, and neither is ROBOT_IP" in text
    assert "gripper_connection /dev/no: there is no such device" in text
    assert "camera_serials: no realsense camera 7; none is connected" in text
    assert "disable_validate: true" in text


def test_an_arm_that_another_node_drives_is_that_nodes_to_look_at(no_cameras):
    check_reachable([unit(FrankaConfig(node_rank=0, controller_node_rank=1))])


def test_nothing_is_looked_at_where_nobody_wants_it(no_cameras):
    check_reachable([unit(FrankaConfig(node_rank=0, camera_serials=["7"], disable_validate=True))])


def test_of_robots_that_say_nothing_of_it_it_is_logged(caplog, no_cameras):
    config = GimArmConfig(node_rank=1, can_interface="can-nowhere")
    check_reachable([unit(config, "GimArm")])
    assert "can_interface can-nowhere: there is no such network interface" in caplog.text
    with pytest.raises(HardwareUnreachable, match="can-nowhere"):
        check_reachable([unit(config.model_copy(update={"disable_validate": False}), "GimArm")])


def test_both_arms_and_all_cameras_of_two_frankas_are_looked_at(franka_port, no_cameras, caplog):
    config = DualFrankaConfig(
        node_rank=0, left_robot_ip="127.0.0.1", base_camera_serials=["b"], right_gripper_type="robotiq"
    )
    check_reachable([unit(config, "DualFranka")])
    for told in ("right_robot_ip is not set", "base_camera_serials: no realsense camera b", "right_gripper"):
        assert told in caplog.text
    assert "left_robot_ip" not in caplog.text


def test_cameras_that_are_connected_stand_for_those_that_nobody_names(monkeypatch):
    monkeypatch.setattr(robots, "connected_cameras", lambda kind: {"b", "a"})
    franka = hardware_type("Franka")
    assert franka.at_node(FrankaConfig(node_rank=0)).camera_serials == ["a", "b"]
    named = FrankaConfig(node_rank=0, camera_serials=["c"])
    assert franka.at_node(named) is named


class Crane(HardwareType):
    """A type that a program adds."""

    name = "Crane"
    fills_in = True
    identifiers = ("hook",)

    class config_model(robots.HardwareConfig):
        hook: str | None = None
        reach: float = 1.0


@pytest.fixture
def crane(monkeypatch):
    from rlinf_scheduler.hardware import registry

    monkeypatch.setattr(registry, "_registered", {})
    register_hardware(Crane())


def test_a_program_adds_a_type_of_its_own(crane):
    (config,) = settings("Crane", HOOK="h", REACH="2.5")
    assert (config.hook, config.reach) == ("h", 2.5)
    assert {"HOOK", "REACH"} <= set(hardware_variables())
    register_hardware(Crane())  # again, as a module does that is loaded again


def test_a_name_that_is_taken_is_refused(crane):
    with pytest.raises(ConfigError, match="'Crane' is there already"):
        register_hardware(type("Other", (HardwareType,), {"name": "Crane"})())
    with pytest.raises(ConfigError, match="'Franka' is there already"):
        register_hardware(type("Other", (HardwareType,), {"name": "Franka"})())
