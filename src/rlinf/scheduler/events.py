"""What happens in a job, as frozen dataclasses: logs, metrics and live views are views of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node of the cluster was probed."""

    node_rank: int
    node_id: str
    ip: str
    num_accelerators: int


@dataclass(frozen=True, slots=True)
class GroupLaunched:
    """Every rank of a worker group has finished `__init__`."""

    group: str
    num_workers: int
    took_s: float


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """One rank has finished `__init__`."""

    group: str
    rank: int
    node_rank: int
    pid: int
    took_s: float


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A rank's process is gone without having been asked to stop."""

    group: str
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerLogged:
    """A worker wrote a log record (`Worker.log_info` and its siblings)."""

    group: str
    rank: int
    level: int
    message: str


@dataclass(frozen=True, slots=True)
class ChannelOpened:
    """A channel's server is ready."""

    name: str
    node_rank: int
    maxsize: int


Event = NodeJoined | GroupLaunched | WorkerStarted | WorkerLost | WorkerLogged | ChannelOpened
Listener = Callable[[Event], None]
