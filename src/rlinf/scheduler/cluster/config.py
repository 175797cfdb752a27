"""The `cluster:` section by RLinf's names; read and checked by ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlinf.scheduler.cluster.node import NodeGroupEnvConfig as NodeGroupEnvConfig
from rlinf.scheduler.cluster.node import environment_configs
from rlinf.scheduler.hardware.accelerators.accelerator import ProfileConfig
from rlinf.scheduler.hardware.accelerators.amd_gpu import RocprofSysConfig
from rlinf.scheduler.hardware.accelerators.nvidia_gpu import NsightConfig
from rlinf.scheduler.hardware.hardware import NodeHardwareConfig, config_of
from rlinf.scheduler.hardware.robots import FrankaConfig as _  # noqa: F401 - the robots' records are there then
from rlinf_scheduler.config import read_cluster_config
from rlinf_scheduler.hardware.profilers import ProfilingConfig
from rlinf_scheduler.planning import NodeGroup, Topology
from rlinf_scheduler.planning.topology import uniform_topology


@dataclass
class NodeGroupConfig:
    """Nodes under a label."""

    label: str
    node_ranks: list[int]
    env_configs: list[NodeGroupEnvConfig] | None = None
    hardware: NodeHardwareConfig | None = None
    hardware_type: str | None = None
    ignore_hardware: bool = False


@dataclass
class ClusterConfig:
    """The whole section."""

    num_nodes: int
    component_placement: Any
    node_groups: list[NodeGroupConfig] | None = None
    profiling: ProfileConfig | None = None

    @staticmethod
    def from_dict_cfg(cfg_dict: Any) -> ClusterConfig:
        """Return the section, read and checked.

        Raises:
            ConfigError: it has a mistake; the text says where. `ConfigErrors` for several.
        """
        checked = read_cluster_config({"cluster": cfg_dict} if "cluster" not in cfg_dict else cfg_dict)
        section = cfg_dict.get("cluster", cfg_dict)
        num_nodes = checked.num_nodes or 0
        topology: Topology | None = None
        if num_nodes:
            topology = uniform_topology(num_nodes, 0).with_node_groups(checked.node_groups)
        groups = list(topology.node_groups if topology is not None else checked.node_groups)
        return ClusterConfig(
            num_nodes,
            section.get("component_placement"),
            [_group_config(group) for group in groups] or None,
            _profile_of(checked.profiling) if checked.profiling is not None else None,
        )

    def get_node_labels_by_rank(self, node_rank: int) -> list[str]:
        """Return the labels of a node's groups."""
        return [group.label for group in self.node_groups or () if node_rank in group.node_ranks]

    def get_node_python_interpreter_path_by_rank(self, node_rank: int) -> list[str]:
        """Return the interpreters that a node's groups set."""
        return [
            each.python_interpreter_path
            for group in self.node_groups or ()
            for each in group.env_configs or ()
            if node_rank in each.node_ranks and each.python_interpreter_path is not None
        ]

    def get_node_hw_configs_by_rank(self, node_rank: int) -> list[Any]:
        """Return the settings of the hardware that is declared on a node."""
        return [
            config
            for group in self.node_groups or ()
            for config in (group.hardware.configs if group.hardware is not None else ())
            if config.node_rank == node_rank
        ]


def _group_config(group: NodeGroup) -> NodeGroupConfig:
    hardware = None
    if group.hardware_type:
        hardware = NodeHardwareConfig.__new__(NodeHardwareConfig)
        hardware.type = group.hardware_type
        hardware.configs = [config_of(unit.type, unit.config) for unit in group.hardware]
    return NodeGroupConfig(
        group.label,
        list(group.node_ranks),
        environment_configs(group) or None,
        hardware,
        group.hardware_type or None,
        group.ignore_hardware,
    )


def _profile_of(checked: ProfilingConfig) -> ProfileConfig | None:
    kinds: dict[str, type[ProfileConfig]] = {"nsight": NsightConfig, "rocprof_sys": RocprofSysConfig}
    return kinds[checked.backend].of(checked) if checked.backend in kinds else None
