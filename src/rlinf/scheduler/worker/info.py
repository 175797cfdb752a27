"""Who a worker is: its address, its place, its neighbours."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.scheduler.planning import Placement


@dataclass(frozen=True, slots=True, order=True)
class WorkerAddress:
    """A worker's name in the job: its group and its rank there; as text `group:rank`."""

    group: str
    rank: int

    def __str__(self) -> str:
        return f"{self.group}:{self.rank}"

    @classmethod
    def parse(cls, text: str) -> WorkerAddress:
        """The address that `str(address)` wrote.

        Raises:
            ValueError: the text is not `group:rank`.
        """
        group, colon, rank = text.rpartition(":")
        if not colon or not group or not rank.isdecimal():
            raise ValueError(f"{text!r} is not a worker's address: 'group:rank'")
        return cls(group, int(rank))


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker knows of itself.

    Attributes:
        address: its group and rank.
        world_size: how many ranks its group has.
        placement: the node and the devices that it was given.
        node_ip: its node's address in the cluster.
        hostname: its node's name.
        pid: its process id on that node.
        master_address: where rank 0 of its group is: MASTER_ADDR.
        master_port: the group's port for rendezvous: MASTER_PORT.
    """

    address: WorkerAddress
    world_size: int
    placement: Placement
    node_ip: str
    hostname: str
    pid: int
    master_address: str
    master_port: int
