"""The cluster of a job."""

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import declared

if TYPE_CHECKING:
    from rlinf.scheduler.cluster.cluster import Cluster as Cluster
    from rlinf.scheduler.cluster.cluster import ClusterEnvVar as ClusterEnvVar
    from rlinf.scheduler.cluster.config import ClusterConfig as ClusterConfig
    from rlinf.scheduler.cluster.node import NodeGroupInfo as NodeGroupInfo
    from rlinf.scheduler.cluster.node import NodeInfo as NodeInfo
    from rlinf.scheduler.cluster.utils import load_user_extension_module as load_user_extension_module
else:
    __getattr__ = declared(globals(), "rlinf_scheduler.cluster")
