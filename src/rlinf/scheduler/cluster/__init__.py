"""The cluster of a job."""

from typing import TYPE_CHECKING, Any

from rlinf_scheduler.lazy import loader, mirror

if TYPE_CHECKING:
    from rlinf.scheduler.cluster.cluster import Cluster as Cluster
    from rlinf.scheduler.cluster.cluster import ClusterEnvVar as ClusterEnvVar
    from rlinf.scheduler.cluster.config import ClusterConfig as ClusterConfig
    from rlinf.scheduler.cluster.node import NodeGroupInfo as NodeGroupInfo
    from rlinf.scheduler.cluster.node import NodeInfo as NodeInfo
    from rlinf.scheduler.cluster.utils import dataclass_arg_check as dataclass_arg_check
    from rlinf.scheduler.cluster.utils import load_user_extension_module as load_user_extension_module
    from rlinf.scheduler.cluster.utils import parse_rank_config as parse_rank_config

# Names that `rlinf_scheduler.cluster` does not have, or has otherwise.
_OWN = {
    "Cluster": "rlinf.scheduler.cluster.cluster",
    "ClusterEnvVar": "rlinf.scheduler.cluster.cluster",
    "ClusterConfig": "rlinf.scheduler.cluster.config",
    "NodeGroupInfo": "rlinf.scheduler.cluster.node",
    "NodeInfo": "rlinf.scheduler.cluster.node",
    "dataclass_arg_check": "rlinf.scheduler.cluster.utils",
    "load_user_extension_module": "rlinf.scheduler.cluster.utils",
    "parse_rank_config": "rlinf.scheduler.cluster.utils",
}
_own, _others = loader(globals(), _OWN), mirror(globals(), "rlinf_scheduler.cluster")


def __getattr__(name: str) -> Any:
    return _own(name) if name in _OWN else _others(name)
