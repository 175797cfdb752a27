"""The `cluster:` section of a config as typed, checked data; every error says where in the file it is."""

from __future__ import annotations

from rlinf_scheduler.config.cluster_config import (
    ClusterConfig,
    read_cluster_config,
    try_read_cluster_config,
)
from rlinf_scheduler.hardware.robot import RobotConfig

__all__ = [
    "ClusterConfig",
    "RobotConfig",
    "read_cluster_config",
    "try_read_cluster_config",
]
