"""`Cluster` with RLinf's names and order of arguments beside ours."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from rlinf_scheduler import cluster as core
from rlinf_scheduler.checks import explains_arguments, explains_calls
from rlinf_scheduler.config import ClusterConfig
from rlinf_scheduler.host.ports import acquire_port
from rlinf_scheduler.planning.environments import PATH_VARIABLES
from rlinf_scheduler.session import current_or_none

if TYPE_CHECKING:
    from rlinf.scheduler.cluster.node import NodeGroupInfo, NodeInfo
    from rlinf.scheduler.hardware.accelerators.accelerator import ProfileConfig
    from rlinf_scheduler.hardware.profilers import ProfilingConfig


_LOWEST_PORT = 20_000


class ClusterEnvVar(str, Enum):  # noqa: UP042 - `str` of one has its class, as in RLinf
    """RLinf's variables, without the `RLINF_` in front."""

    CATCH_FAILURE = "CATCH_FAILURE"
    LOG_LEVEL = "LOG_LEVEL"
    TIMEOUT = "TIMEOUT"
    NODE_RANK = "NODE_RANK"
    COMM_NET_DEVICES = "COMM_NET_DEVICES"
    EXT_MODULE = "EXT_MODULE"
    NET_EMULATION = "NET_EMULATION"
    PATH_ENV_MERGE_MODE = "PATH_ENV_MERGE_MODE"
    CODE_WORKING_DIR = "CODE_WORKING_DIR"


class PathEnvMergeMode(str, Enum):  # noqa: UP042 - likewise
    """Where the folders of a variable such as PATH go: in front of what is there, or in its place."""

    APPEND = "append"
    OVERRIDE = "override"


@explains_calls
class Cluster(core.Cluster):
    """The nodes and accelerators that a job runs on: see `rlinf_scheduler.Cluster`.

    RLinf gives the number of nodes first, our documents the config: a number is a number of nodes wherever it stands,
    and 0 stands for all nodes that there are.

    `distributed_log_dir` is our `log_folder`.
    """

    SYS_NAME: ClassVar[str] = "RLinf"
    NAMESPACE: ClassVar[str] = "RLinf"
    PATH_LIKE_ENV_VARS: ClassVar[set[str]] = set(PATH_VARIABLES)
    DEFAULT_SYS_ENV_VAR: ClassVar[dict[ClusterEnvVar, str | None]] = {
        **dict.fromkeys(ClusterEnvVar),
        ClusterEnvVar.PATH_ENV_MERGE_MODE: PathEnvMergeMode.APPEND.value,
    }

    @explains_arguments
    def __init__(
        self,
        cluster_cfg: Any = None,
        num_nodes: Any = None,
        distributed_log_dir: str | None = None,
        **options: Any,
    ) -> None:
        if isinstance(cluster_cfg, int) or isinstance(num_nodes, Mapping | ClusterConfig):
            cluster_cfg, num_nodes = num_nodes, cluster_cfg
        if distributed_log_dir is not None:
            options.setdefault("log_folder", distributed_log_dir)
        every_node = num_nodes == 0 and not isinstance(num_nodes, bool)
        super().__init__(cluster_cfg, None if every_node else num_nodes, **options)

    @classmethod
    def has_initialized(cls) -> bool:
        """Return whether this process has a cluster."""
        return current_or_none() is not None

    @classmethod
    def find_free_port(cls, max_port_num: int | None = None) -> int:
        """Return a port of this machine that is this process's until it ends, at most `max_port_num`.

        Raises:
            ClusterError: there is none.
        """
        return acquire_port(ports=None if max_port_num is None else (_LOWEST_PORT, max_port_num))

    @staticmethod
    def get_full_env_var_name(var: ClusterEnvVar) -> str:
        """Return the name of a variable in the environment."""
        return f"RLINF_{var.value}"

    @property
    def _num_nodes(self) -> int:
        return self.num_nodes

    def get_node_group(self, label: str | int | None = "cluster") -> NodeGroupInfo | None:
        """Return a node group; None where there is none of that label."""
        from rlinf.scheduler.cluster.node import group_info  # noqa: PLC0415 - few ask

        name = "cluster" if label is None else str(label)
        topology = self.topology
        return group_info(topology, topology.group(name)) if name in topology.group_labels else None

    def get_node_info(self, node_rank: int) -> NodeInfo:
        """Return a node.

        Raises:
            ValueError: there is none of that rank.
        """
        from rlinf.scheduler.cluster.node import node_info  # noqa: PLC0415 - few ask

        if not 0 <= node_rank < self.num_nodes:
            raise ValueError(f"there is no node {node_rank}; there are nodes 0-{self.num_nodes - 1}")
        return node_info(self.topology, node_rank)

    def get_node_ip(self, node_rank: int) -> str:
        """Return the address of a node."""
        return self.topology.nodes[node_rank].ip

    @staticmethod
    def merge_worker_env_vars(
        base_env_vars: dict[str, str], incoming_env_vars: dict[str, str], mode: PathEnvMergeMode
    ) -> dict[str, str]:
        """Return variables with others laid over them: folders of path variables go in front, or in their place."""
        merged = dict(base_env_vars)
        for name, value in incoming_env_vars.items():
            beside = name in merged and mode is PathEnvMergeMode.APPEND
            merged[name] = Cluster._merge_path_like_env_value(name, merged[name], value) if beside else value
        return merged

    @staticmethod
    def _merge_path_like_env_value(env_var_name: str, existing_value: str, incoming_value: str) -> str:
        if env_var_name not in Cluster.PATH_LIKE_ENV_VARS:
            return incoming_value
        folders = [*incoming_value.split(os.pathsep), *existing_value.split(os.pathsep)]
        return os.pathsep.join(dict.fromkeys(filter(None, folders)))

    @staticmethod
    def modify_profile_context(
        python_interpreter_path: str, worker_name: str, profiling_cfg: ProfileConfig | None
    ) -> str:
        """Return the command of a worker's interpreter: of the profiler, if it is profiled."""
        for told, report in _profiled(worker_name, profiling_cfg):
            return told.command(told.program, python_interpreter_path, report)
        return python_interpreter_path

    @staticmethod
    def get_profiling_env_vars_for_worker(
        worker_name: str, profiling_cfg: ProfileConfig | None
    ) -> dict[str, str]:
        """Return the variables that a worker is given if it is profiled."""
        for told, report in _profiled(worker_name, profiling_cfg):
            return told.variables(report)
        return {}


def _profiled(worker_name: str, config: ProfileConfig | None) -> Iterator[tuple[ProfilingConfig, str]]:
    """Yield how a worker is profiled, and its report's path; nothing if it is not."""
    group, _, rank = worker_name.partition(":")
    if config is not None and config.core.profiles(group, int(rank or 0)):
        yield config.core, config.core.report_of(group, int(rank or 0))
