"""The cluster: Ray started or joined, its nodes known and ordered, this process's place in the job.

`Cluster` is loaded on first use: a worker's process needs the session but not the config reader that `Cluster` brings.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlinf.scheduler.cluster.cluster import Cluster

__all__ = ["Cluster"]


def __getattr__(name: str) -> Any:
    if name == "Cluster":
        return import_module("rlinf.scheduler.cluster.cluster").Cluster
    raise AttributeError(f"module 'rlinf.scheduler.cluster' has no attribute '{name}'")
