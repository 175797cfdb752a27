"""RLinf's names of clusters, configs, placements and hardware, upon ours."""

import dataclasses
import pickle
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from rlinf.scheduler import (
    AcceleratorType,
    AcceleratorUtil,
    Cluster,
    ClusterConfig,
    ComponentPlacement,
    FlexiblePlacementStrategy,
    FrankaHWInfo,
    GimArmHWInfo,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Topology,
)
from rlinf.scheduler.cluster.cluster import ClusterEnvVar, PathEnvMergeMode
from rlinf.scheduler.cluster.node import NodeGroupInfo, NodeInfo, group_info, node_info
from rlinf.scheduler.cluster.utils import DistributedRayLogCollector
from rlinf.scheduler.hardware import Accelerator, Hardware, HardwareInfo, HardwareResource, NodeHardwareConfig
from rlinf.scheduler.hardware.accelerators.amd_gpu import RocprofSysConfig
from rlinf.scheduler.hardware.accelerators.nvidia_gpu import NsightConfig
from rlinf.scheduler.hardware.hardware import CONFIG_CLASSES, HardwareConfig
from rlinf.scheduler.hardware.infos import infos_of
from rlinf.scheduler.hardware.robots.franka import FrankaConfig
from rlinf_scheduler import planning
from rlinf_scheduler.config import read_cluster_config
from rlinf_scheduler.errors import CallArgumentError, ConfigError
from rlinf_scheduler.hardware import Accelerator as AcceleratorView
from rlinf_scheduler.hardware import hardware_type, registry
from rlinf_scheduler.hardware.filling_in import fill_in_groups
from rlinf_scheduler.hardware.robots import FrankaConfig as FrankaSettings
from rlinf_scheduler.planning import Node

ROBOT = {"node_rank": 1, "robot_ip": "10.0.0.1", "disable_validate": True}
GROUPS = [
    {
        "label": "gpus",
        "node_ranks": 0,
        "env_configs": [
            {"node_ranks": 0, "env_vars": [{"NIC": "eth0"}], "python_interpreter_path": "/opt/python"}
        ],
    },
    {"label": "arms", "node_ranks": "0-1", "hardware": {"type": "Franka", "configs": [ROBOT]}},
]
SECTION = {
    "num_nodes": 2,
    "component_placement": {"actor,rollout": "0-3", "env": "4-7:0-7"},
    "node_groups": GROUPS,
}


def topology(*nodes):
    groups = fill_in_groups(read_cluster_config(SECTION).node_groups, nodes)
    return Topology(tuple(nodes)).with_node_groups(groups)


NODES = topology(
    Node("a", "10.1.0.1", 4, "NVIDIA", accelerator_model="NVIDIA H100"),
    Node("b", "10.1.0.2", 4, "NVIDIA", variables=(("CAN_INTERFACE", "can3"),)),
)


# -- placements ------------------------------------------------------------------------------------


class Hybrid(ComponentPlacement):
    """A placement in RLinf's manner: it places one component otherwise, and counts on members of ours."""

    def __init__(self, config, cluster):
        super().__init__(config, cluster)
        self._placement_mode = "hybrid"
        first, *_, last = self.get_hardware_ranks("rollout")
        self._placements["rollout"] = PackedPlacementStrategy(first, last, num_hardware_per_process=2)
        self.ranks = self._component_rank_map["env"]
        self.has_critic = "critic" in self._components
        self.num_nodes = self._config["cluster"]["num_nodes"]


def test_a_subclass_places_a_component_otherwise():
    placement = Hybrid({"cluster": SECTION}, Topology.parse("2x4"))
    assert placement.placement_mode == "hybrid"
    assert placement.ranks == {(4, 5, 6, 7): list(range(8))}
    assert not placement.has_critic
    assert placement.num_nodes == 2
    strategy = placement.get_strategy("rollout")
    assert [p.local_hardware_ranks for p in strategy.get_placement(Topology.parse("2x4"))] == [[0, 1], [2, 3]]
    assert placement.get_world_size("actor") == 4


def test_a_placement_goes_to_ranks_without_the_cluster_that_it_was_made_on():
    class Opened:
        topology = Topology.parse("2x4")

        def __reduce__(self):
            raise TypeError("a cluster stays in its process")

    made = Hybrid({"cluster": SECTION}, Opened())
    assert isinstance(made._cluster, Opened)
    sent = pickle.loads(pickle.dumps(made))
    assert (sent.placement_mode, sent.get_world_size("env")) == ("hybrid", 8)


def test_what_a_rule_places_together_has_one_strategy():
    placement = ComponentPlacement({"cluster": SECTION}, Topology.parse("2x4"))
    assert placement.get_strategy("actor") is placement.get_strategy("rollout")
    assert isinstance(placement.get_strategy("env"), FlexiblePlacementStrategy)


def test_a_component_that_is_not_there_is_told_as_ever():
    placement = ComponentPlacement({"cluster": SECTION}, Topology.parse("2x4"))
    for ask in (placement.get_strategy, placement.get_world_size, placement.get_hardware_ranks):
        with pytest.raises(
            planning.topology_of.__globals__["ConfigError"], match="there is no component 'critic'"
        ):
            ask("critic")


def test_placements_have_lists_for_rlinfs_programs_and_are_ours_elsewhere():
    (first, *_) = PackedPlacementStrategy(0, 3).get_placement(NODES)
    assert first.visible_accelerators == ["0"] == list(first.visible_accelerators)
    assert first.visible_accelerators == ("0",)
    assert first.accelerator_type is AcceleratorType.NV_GPU
    sent = pickle.loads(pickle.dumps(first))
    assert type(sent) is planning.Placement
    assert sent == first == sent
    assert hash(sent) == hash(first)
    assert dataclasses.replace(first, local_rank=3).visible_accelerators == ["0"]


def test_a_process_without_accelerators_has_the_index_that_rlinf_gives_it():
    (bare,) = NodePlacementStrategy([0]).get_placement(NODES)
    assert (bare.local_accelerator_rank, bare.local_gpu_id) == (-1, None)
    assert bare.accelerator_type is AcceleratorType.NO_ACCEL


def test_a_packed_strategy_tells_its_numbers():
    strategy = PackedPlacementStrategy(
        0, 7, num_hardware_per_process=2, stride=2, node_group=["gpus", "arms"]
    )
    numbers = (
        strategy._start_hw_rank,
        strategy._end_hw_rank,
        strategy._num_hardware_per_process,
        strategy._stride,
    )
    assert numbers == (0, 7, 2, 2)
    assert strategy.node_groups == ("gpus", "arms")


class Records:
    """A cluster as RLinf's own tests make one: its records, and nothing of ours."""

    def __init__(self, nodes, node_groups):
        self._nodes, self._node_groups = nodes, node_groups


def test_rlinfs_records_of_a_cluster_can_be_planned_on():
    resource = HardwareResource(Accelerator.HW_TYPE, [HardwareInfo(Accelerator.HW_TYPE, "NV_GPU:X")] * 4)
    nodes = [NodeInfo([], rank, f"n{rank}", "", 8, "", {}, {}, [resource]) for rank in range(2)]
    nodes[1].hardware_resources.append(HardwareResource("Franka", [HardwareInfo("Franka", "Franka")]))
    arm = NodeGroupInfo("arm", [nodes[1]], hardware_type="Franka")
    cluster = Records(nodes, {"cluster": NodeGroupInfo("cluster", nodes), "arm": arm})
    strategy = FlexiblePlacementStrategy([[0], [1]], node_group_label=["arm", "cluster"])
    placements = strategy.get_placement(cluster, isolate_accelerator=True)
    assert [p.hardware_type for p in placements] == ["Franka", "NVIDIA"]
    assert [p.cluster_node_rank for p in placements] == [1, 0]


# -- nodes and groups ------------------------------------------------------------------------------


def test_a_node_has_accelerators_declared_robots_and_those_that_its_variables_tell_of():
    first, second = node_info(NODES, 0), node_info(NODES, 1)
    assert (first.num_accelerators, first.accelerator_type, first.node_ip) == (4, "NV_GPU", "10.1.0.1")
    assert first.accelerator_model == "NV_GPU:NVIDIA H100"
    assert first.node_labels == ["gpus", "arms"]
    found = {each.type: [info.config for info in each.infos] for each in second.hardware_resources[1:]}
    assert found["Franka"][0].robot_ip == "10.0.0.1"
    assert found["GimArm"][0].can_interface == "can3"


def test_a_group_has_its_nodes_and_what_their_processes_start_with():
    gpus, arms = (group_info(NODES, NODES.group(label)) for label in ("gpus", "arms"))
    assert (gpus.node_ranks, gpus.hardware_type) == ([0], "Accelerator")
    assert gpus.get_node_env_vars(0) == {"NIC": "eth0"}
    assert gpus.get_node_env_vars(1) == {}
    assert gpus.get_node_python_interpreter_path(0) == "/opt/python"
    assert (arms.hardware_type, arms.local_hardware_ranks) == ("Franka", [[], [0]])
    assert arms.get_node_by_hardware_rank(0).node_rank == 1
    assert arms.get_local_hardware_rank(0) == 0


def test_a_section_is_read_by_rlinfs_names():
    config = ClusterConfig.from_dict_cfg(SECTION)
    assert config.num_nodes == 2
    gpus, arms = config.node_groups
    assert gpus.env_configs[0].env_vars == [{"NIC": "eth0"}]
    assert gpus.hardware is None
    assert (arms.node_ranks, arms.hardware_type) == ([0, 1], "Franka")
    assert config.get_node_labels_by_rank(0) == ["gpus", "arms"]
    assert config.get_node_python_interpreter_path_by_rank(0) == ["/opt/python"]
    (robot,) = config.get_node_hw_configs_by_rank(1)
    assert isinstance(robot, FrankaConfig)
    assert dataclasses.asdict(robot)["robot_ip"] == "10.0.0.1"
    assert config.get_node_hw_configs_by_rank(0) == []


@pytest.mark.ray
def test_the_number_of_nodes_and_the_config_may_come_in_either_order(ray_cluster):
    section = {"num_nodes": 2, "node_groups": [GROUPS[0]]}
    for view in (Cluster(2), Cluster(0), Cluster(section), Cluster(2, section), Cluster(section, 2)):
        assert view._num_nodes == 2
        assert view.num_nodes == 2
    assert Cluster(num_nodes=2, cluster_cfg=section, distributed_log_dir="unused").get_node_group(
        "gpus"
    ).node_ranks == [0]
    with pytest.raises(ConfigError, match="num_nodes is 3"):
        Cluster(3)
    with pytest.raises(CallArgumentError):
        Cluster(num_node=2)


@pytest.mark.ray
def test_a_cluster_tells_of_its_nodes(ray_cluster):
    view = Cluster()
    assert Cluster.has_initialized()
    assert view.get_node_info(1).num_accelerators == 4
    assert view.get_node_ip(0) == view.topology.nodes[0].ip
    assert view.get_node_group().node_ranks == view.get_node_group(None).node_ranks == [0, 1]
    assert view.get_node_group("node").hardware_type is None
    assert view.get_node_group("nowhere") is None
    with pytest.raises(ValueError, match="there is no node 2"):
        view.get_node_info(2)


def test_a_free_port_may_have_a_limit():
    assert Cluster.find_free_port() != Cluster.find_free_port()
    assert Cluster.find_free_port(max_port_num=29_000) <= 29_000


# -- helpers ---------------------------------------------------------------------------------------


def test_variables_are_laid_over_others():
    merge = Cluster.merge_worker_env_vars
    base = {"PATH": "/a:/b", "X": "1"}
    assert merge(base, {"PATH": "/c:/a", "X": "2"}, PathEnvMergeMode.APPEND) == {"PATH": "/c:/a:/b", "X": "2"}
    assert merge(base, {"PATH": "/c"}, PathEnvMergeMode.OVERRIDE)["PATH"] == "/c"
    assert Cluster.get_full_env_var_name(ClusterEnvVar.EXT_MODULE) == "RLINF_EXT_MODULE"


def test_a_collector_of_logs_says_that_there_is_nothing_to_collect():
    with pytest.raises(TypeError, match="each rank writes files of its own"):
        DistributedRayLogCollector()


# -- hardware --------------------------------------------------------------------------------------


def test_a_worker_is_shown_its_hardware_in_rlinfs_records():
    (robot,) = infos_of([FrankaSettings(node_rank=0, robot_ip="10.0.0.1")], "Franka")
    assert isinstance(robot, FrankaHWInfo)
    assert (robot.type, robot.model, robot.config.robot_ip) == ("Franka", "Franka", "10.0.0.1")
    robot.config.camera_serials = ["a"]  # a program may fill it in
    (arm,) = infos_of([hardware_type("GimArm").config_model(node_rank=0)], "GimArm")
    assert isinstance(arm, GimArmHWInfo)
    assert arm.model == "GimArm_gim_arm_xl"
    (device,) = infos_of([AcceleratorView("NVIDIA", 0, "0")], "NVIDIA", "NVIDIA H100")
    assert (device.type, device.model) == ("Accelerator", "NV_GPU:NVIDIA H100")


def test_settings_of_a_robot_are_checked():
    assert FrankaConfig(node_rank=0, camera_serials=[12]).camera_serials == ["12"]
    with pytest.raises(ValueError, match="robot_ip"):
        FrankaConfig(node_rank=0, robot_ip="nowhere")


@pytest.fixture
def declared(monkeypatch):
    """A type of hardware that a program declares in RLinf's way."""
    monkeypatch.setattr(registry, "_registered", {})

    @dataclasses.dataclass
    class CraneConfig(HardwareConfig):
        hook: str
        reach: float = 1.0

    @dataclasses.dataclass
    class CraneInfo(HardwareInfo):
        config: CraneConfig

    @Hardware.register()
    class Crane(Hardware):
        HW_TYPE = "Crane"

        @classmethod
        def enumerate(cls, node_rank, configs=None):
            return HardwareResource("Crane", [CraneInfo("Crane", "tall", each) for each in configs])

    NodeHardwareConfig.register_hardware_config("Crane")(CraneConfig)
    yield CraneConfig, CraneInfo
    del CONFIG_CLASSES["Crane"]


def test_a_type_that_a_program_declares_in_rlinfs_way_is_one_of_ours(declared):
    config_class, info_class = declared
    hardware = {"type": "Crane", "configs": [{"node_rank": 0, "hook": "h", "reach": 2}]}
    section = {"num_nodes": 1, "node_groups": [{"label": "cranes", "node_ranks": 0, "hardware": hardware}]}
    (group,) = read_cluster_config(section).node_groups
    kind, settings = hardware_type("Crane"), group.hardware[0].config
    assert kind.view(settings) == config_class(node_rank=0, hook="h", reach=2.0)
    assert pickle.loads(pickle.dumps(settings)) == settings
    (shown,) = infos_of([kind.view(kind.at_node(settings))], "Crane")
    assert isinstance(shown, info_class)
    assert (shown.model, shown.config.hook) == ("tall", "h")
    hardware["configs"][0]["hok"] = 1
    with pytest.raises(ConfigError, match=r"configs\[0\].hok: unknown key 'hok'"):
        read_cluster_config(section)


@pytest.mark.parametrize("kind", list(AcceleratorType))
def test_a_runner_opens_a_window_of_capture_on_every_worker_and_it_opens_where_torch_has_cuda(
    monkeypatch, kind
):
    told = []
    profiler = SimpleNamespace(start=partial(told.append, "start"), stop=partial(told.append, "stop"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(profiler=profiler)))
    AcceleratorUtil.start_profiling(kind, 3)
    AcceleratorUtil.stop_profiling(kind)
    assert told == (["start", "stop"] if kind in ("NV_GPU", "AMD_GPU") else [])


@pytest.mark.parametrize("kind", list(AcceleratorType))
def test_every_vendor_is_known_by_rlinfs_word(kind):
    settings = AcceleratorUtil.get_accelerator_env_var(kind, ["3"])
    assert any(each.endswith("3") for each in settings.values()) == (kind is not AcceleratorType.NO_ACCEL)


def test_profilers_have_rlinfs_names():
    assert NsightConfig(flags=[]).flags == []
    nsight = NsightConfig(worker_groups=["actor"], options={"t": "cuda"}, flags="stats", steps=[3])
    assert nsight.to_cli_tokens("/r")[:3] == ["--stats", "-t", "cuda"]
    assert nsight.to_cli_tokens()[-1] == "--capture-range-end=stop"
    assert nsight.profiles_worker_group("Actor")
    assert nsight.should_profile_step(3)
    assert Cluster.modify_profile_context("py", "rollout:0", nsight) == "py"
    rocprof = RocprofSysConfig(worker_groups="all", args={"F": True}, output_dir="/r")
    assert rocprof.to_cli_tokens() == ["rocprof-sys-python", "-F", "true", "--"]
    assert Cluster.modify_profile_context("py", "a:0", rocprof) == "rocprof-sys-python -F true -- py"
    assert Cluster.get_profiling_env_vars_for_worker("a:0", rocprof)["ROCPROFSYS_OUTPUT_PATH"] == "/r"
    with pytest.raises(ConfigError, match="did you mean 'steps'"):
        NsightConfig(step=[3])
