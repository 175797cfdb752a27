"""What the launching process and a worker's host say to each other, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlinf.scheduler.comm import ClusterSecret, Endpoint
from rlinf.scheduler.placement import HardwareUnit, Placement

# Services of the launching process.
HELLO = "launch.hello"
PROGRESS = "launch.progress"
LOG = "worker.log"
START_CHANNEL = "job.start_channel"
START_CHANNEL_TIMEOUT_S = 120.0
# Services of a worker's host.
CALL = "worker.call"
STOP = "worker.stop"

# Progress of a rank, in order.
STARTING = "starting"
GREETED = "greeted"
CHECKING = "checking"
IMPORTING = "importing"
CONSTRUCTING = "in __init__"
READY = "ready"
FAILED = "failed"

# First element of a call's reply.
OK = 0
RAISED = 1


@dataclass(frozen=True, slots=True)
class HostSpec:
    """What a host's process is started with: enough to report to the launching process.

    Attributes:
        launch_id: which launch it belongs to.
        group: its group's name.
        rank: its rank.
        launcher: the process that launches the group.
        directory: where names are registered.
        secret: admits the process to the job.
        node_ip: its node's address.
        crosses_machines: whether peers may be on other machines.
        encryption: whether what goes from machine to machine is encrypted.
        sys_path: the launching process's import path, for modules that lie beside its script.
        log_level: the lowest level of log lines that somebody wants to see.
        timeout_s: how long the whole launch may take, in seconds.
        registers_itself: the worker makes its name known; otherwise the host does, before it constructs the worker.
    """

    launch_id: str
    group: str
    rank: int
    launcher: Endpoint
    directory: Endpoint
    secret: ClusterSecret
    node_ip: str
    crosses_machines: bool
    encryption: bool
    sys_path: tuple[str, ...]
    log_level: int
    timeout_s: float
    registers_itself: bool = False


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a rank becomes, once every rank of its group has a process.

    Attributes:
        placement: its place.
        world_size: how many ranks the group has.
        environment: variables to set before the user's code is imported.
        max_concurrency: how many calls may run at a time.
        master_address: rank 0's node.
        master_port: rank 0's port for rendezvous.
        hardware: what the worker finds in `self.hardware`.
        units: the declared pieces among it, to be checked before the worker is constructed.
    """

    placement: Placement
    world_size: int
    environment: dict[str, str]
    max_concurrency: int
    master_address: str
    master_port: int
    hardware: tuple[object, ...] = ()
    units: tuple[HardwareUnit, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerFactory:
    """The user's class and its arguments: pickled once for all ranks."""

    worker_class: type[Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
