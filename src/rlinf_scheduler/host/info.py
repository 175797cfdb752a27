"""Who a worker is: its address, its place, its neighbours, the seed of its random numbers."""

from __future__ import annotations

import os
import pickle
import platform
import random
import secrets
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Buffer
from rlinf_scheduler.comm.directory import GROUPS
from rlinf_scheduler.errors import ClusterError, ConfigError
from rlinf_scheduler.planning import NodeGroup, Placement, Topology
from rlinf_scheduler.session import Session, current_or_none

if TYPE_CHECKING:  # most jobs are not profiled
    from rlinf_scheduler.hardware.profilers import ProfilingConfig


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker knows of itself.

    Attributes:
        address: its group and rank.
        world_size: how many ranks its group had when it was started; `Worker.world_size` is how many it has now.
        placement: the node and the devices that it was given.
        node_ip: its node's address in the cluster.
        hostname: its node's name.
        pid: its process id on that node.
        master_address: where rank 0 of its group is: MASTER_ADDR.
        master_port: the group's port for rendezvous: MASTER_PORT.
        num_restarts: how many processes had its place before, and died.
        seed: of its random numbers, from 0 to 2**32 - 1.
    """

    address: WorkerAddress
    world_size: int
    placement: Placement
    node_ip: str
    hostname: str
    pid: int
    master_address: str
    master_port: int
    num_restarts: int = 0
    seed: int = 0


def _nothing_to_stop() -> None:
    """Nobody hosts a worker that was constructed by hand."""


@dataclass(frozen=True, slots=True)
class Role:
    """Which rank of which group a process is; its session has it as a fact.

    Attributes:
        hardware: what it was given, piece by piece.
        stop: ends its process when its calls are done.
    """

    info: WorkerInfo
    hardware: tuple[object, ...] = ()
    stop: Callable[[], None] = _nothing_to_stop

    @classmethod
    def alone(cls) -> Role:
        """That of a process which nobody launched: rank 0 of 1."""
        info = WorkerInfo(
            address=WorkerAddress("local", 0),
            world_size=1,
            placement=Placement(rank=0, node_id="", node_rank=0),
            node_ip="127.0.0.1",
            hostname=platform.node(),
            pid=os.getpid(),
            master_address="127.0.0.1",
            master_port=0,
        )
        return cls(info)


# Which rank this process hosts, from its first moment on.
_hosted: list[WorkerAddress] = []


def note_hosted(address: WorkerAddress) -> None:
    """Say that this process hosts a rank, which it will be told."""
    _hosted.append(address)


def hosts_rank() -> bool:
    """Whether this process is that of a rank, told or not: no other one ever is."""
    return bool(_hosted)


def own_role() -> Role | None:
    """Which rank this process is; None where it is none.

    Raises:
        ClusterError: it is to become one, and has not been told yet what it was given.
    """
    session = current_or_none()
    role = session.fact(Role) if session is not None else None
    if role is None and _hosted:
        raise ClusterError(
            f"'{_hosted[-1]}' has not been told yet what it was given: ask in its __init__, or later"
        )
    return role


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What the config that a job was opened with says of all its groups; its processes' sessions have it as a fact.

    Attributes:
        node_groups: the node groups that a view of the cluster has which is opened without a config.
        profiling: which ranks are started under a profiler.
    """

    node_groups: tuple[NodeGroup, ...] = ()
    profiling: ProfilingConfig | None = None


def job_settings(session: Session) -> JobSettings:
    """Those of a process's job."""
    return session.fact(JobSettings) or JobSettings()


@dataclass(frozen=True, slots=True)
class DetachedJob:
    """That a process's job outlives its drivers; its session has it as a fact."""

    name: str


def keeps_elsewhere(session: Session) -> bool:
    """Whether another process launches what this one wants launched.

    The job server of a job that outlives its drivers.
    """
    return session.fact(DetachedJob) is not None and session.home != session.messenger.endpoint


def check_detached(session: Session, *, detached: bool) -> None:
    """Make sure that a group can stay when its driver has ended.

    Raises:
        ConfigError: the job ends with its driver.
    """
    if detached and not keeps_elsewhere(session):
        problem = "detached=True: this job ends with its driver"
        raise ConfigError(problem, hint="Cluster(job=NAME, detached=True) opens one that does not")


def group_entry(name: str) -> str:
    """Under which name the directory knows a group; a channel has it too, so that no group is called as it is."""
    return f"{GROUPS}{name}"


def packed_topology(topology: Topology) -> bytes:
    """A topology as every rank of a group is sent it: of a large cluster it is most of a launch's bytes.

    It leaves the accelerators' UUIDs away, which do not shrink; a rank is told those of its own node.
    """
    nodes = tuple(replace(node, uuids=()) for node in topology.nodes)
    return zlib.compress(pickle.dumps(replace(topology, nodes=nodes)))


def unpacked_topology(data: Buffer) -> Topology:
    """What `packed_topology` packed."""
    topology: Topology = pickle.loads(zlib.decompress(data))
    return topology


def job_topology(session: Session) -> Topology:
    """The bare cluster that a process's job runs on: its nodes, without the node groups of any config.

    Raises:
        ClusterError: the process knows of none: no `Cluster` was opened, and nobody launched it.
    """
    topology = session.fact(Topology)
    if topology is None:
        raise ClusterError(f"'{session.name}' knows of no nodes: they are found by Cluster(...)")
    return topology


# -- seeds -------------------------------------------------------------------------------------------


# What a rank finds its seed under; a group that it launches without a seed has its own derived from that.
SEED_VARIABLE = "RLINF_SEED"
# Every generator takes a seed below this: numpy's no larger one.
SEEDS = 1 << 32
# A job's may be larger: it is only derived from.
JOB_SEEDS = 1 << 63


def rank_seed(job_seed: int, group: str, rank: int) -> int:
    """The seed of one rank, from 0 to 2**32 - 1: the same whenever a rank of that name is started under that seed.

    >>> rank_seed(7, "actor", 0) == rank_seed(7, "actor", 0) != rank_seed(7, "actor", 1)
    True
    """
    digest = blake2b(f"{job_seed}/{group}/{rank}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def checked_seed(seed: object) -> int:
    """A seed that a user gave.

    Raises:
        ConfigError: it is no whole number from 0 to 2**63 - 1.
    """
    if type(seed) is not int or not 0 <= seed < JOB_SEEDS:
        raise ConfigError(f"seed={seed!r}: it is a whole number from 0 to 2**63 - 1")
    return seed


class DrawnSeed:
    """The seed of those groups of a process that were given none; a service of its session.

    It is RLINF_SEED where that is set, as it is in every rank; else it is drawn.
    """

    def __init__(self, _session: Session) -> None:
        given = os.environ.get(SEED_VARIABLE, "")
        if given and not given.isdecimal():
            raise ConfigError(f"{SEED_VARIABLE}={given!r}: it is a whole number from 0 to 2**63 - 1")
        self.value = checked_seed(int(given)) if given else secrets.randbelow(JOB_SEEDS)


def seed_generators(seed: int) -> None:
    """Seed `random`, `numpy.random`, and torch if it is loaded."""
    random.seed(seed)
    np.random.seed(seed)  # what programs use that have no generator of their own
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)
