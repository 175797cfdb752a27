"""Names of workers, and what is known of one, with RLinf's names beside ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import total_ordering
from typing import TYPE_CHECKING, Any, Self

import rlinf_scheduler.worker as core

if TYPE_CHECKING:
    from rlinf.scheduler.hardware.accelerators.accelerator import AcceleratorType

# A group's name, and the numbers on the way to a worker: as "rollout:3:0" or "rollout:3/0".
_NAME = re.compile(r"(.+?)((?:[:/]\d+)*)", re.ASCII)


@total_ordering
class WorkerAddress(core.WorkerAddress):
    """A worker's name in the job, or that of a whole group, whose way has no numbers.

    >>> address = WorkerAddress("rollout", [3, 0])
    >>> address.get_name(), address.get_parent_address().get_name(), address.get_parent_rank()
    ('rollout:3:0', 'rollout:3', 3)

    Args:
        root_group_name: the group's name.
        ranks: the number in the group, or the numbers on the way to a worker below a rank.

    Raises:
        ValueError: the name has a colon.
    """

    __slots__ = ("rank_path",)
    rank_path: list[int]

    def __init__(self, root_group_name: str, ranks: int | Sequence[int] = ()) -> None:
        if ":" in re.sub(
            r":\d+/", "", root_group_name
        ):  # a group that a rank has launched is `outer:0/inner`
            raise ValueError(f"group name {root_group_name!r}: it cannot hold a colon")
        path = [ranks] if isinstance(ranks, int) else [int(rank) for rank in ranks]
        super().__init__(root_group_name, path[0] if len(path) == 1 else path or 0)
        object.__setattr__(self, "rank_path", path)

    @property
    def root_group_name(self) -> str:
        """The group's name."""
        return self.group

    def __str__(self) -> str:
        ranks = "/".join(map(str, self.rank_path))
        return f"{self.group}:{ranks}" if ranks else self.group

    def get_name(self) -> str:
        """Return the name as RLinf writes it: `rollout:3:0` where `str` has `rollout:3/0`."""
        return ":".join([self.group, *map(str, self.rank_path)])

    def get_parent_rank(self) -> int:
        """Return the number of the worker that it is below of; 0 of a rank."""
        return self.rank_path[-2] if len(self.rank_path) > 1 else 0

    def get_parent_address(self) -> WorkerAddress | None:
        """Return the worker, or the group, that it is below of; None of a group."""
        return WorkerAddress(self.group, self.rank_path[:-1]) if self.rank_path else None

    def get_child_address(self, rank: int) -> WorkerAddress:
        """Return a worker below it, or a rank of the group."""
        return WorkerAddress(self.group, [*self.rank_path, rank])

    @classmethod
    def from_name(cls, worker_name: str) -> Self:
        """Return the address that `get_name`, or `str`, wrote.

        >>> WorkerAddress.from_name("outer:0/inner:2").root_group_name
        'outer:0/inner'
        """
        match = _NAME.fullmatch(worker_name)
        if match is None:
            raise ValueError(f"{worker_name!r} is not a worker's address: 'group:rank'")
        return cls(match[1], [int(rank) for rank in re.findall(r"\d+", match[2])])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, core.WorkerAddress):
            return NotImplemented
        return str(self) == str(other)

    def __lt__(self, other: Any) -> bool:
        if not isinstance(other, core.WorkerAddress):
            return NotImplemented
        return _order(self) < _order(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> Any:
        return type(self), (self.group, self.rank_path)

    def __repr__(self) -> str:
        return f"WorkerAddress({self.group!r}, {self.rank_path})"


def _order(address: core.WorkerAddress) -> tuple[str, list[int]]:
    own = address if isinstance(address, WorkerAddress) else WorkerAddress.from_name(str(address))
    return own.group, own.rank_path


@dataclass(frozen=True, slots=True)
class WorkerInfo(core.WorkerInfo):
    """Facts about a worker, with RLinf's names beside ours.

    Attributes:
        accelerator_type: whose accelerators it was given.
        accelerator_model: of which kind, e.g. "NVIDIA H100"; "" where that is not known.
        available_accelerators: the numbers in the cluster of those that it was given.
        hardware_infos: what it was given, piece by piece.
    """

    address: WorkerAddress
    accelerator_type: AcceleratorType | None = None
    accelerator_model: str = ""
    available_accelerators: tuple[int, ...] = ()
    hardware_infos: tuple[Any, ...] = ()

    @classmethod
    def of(cls, info: core.WorkerInfo, **more: Any) -> WorkerInfo:
        """Return ours with the fields that RLinf's has more."""
        ours = {each.name: getattr(info, each.name) for each in fields(core.WorkerInfo)}
        return cls(**ours | {"address": WorkerAddress.from_name(str(info.address))} | more)

    @property
    def rank(self) -> int:
        """Its number in the group."""
        return self.address.rank

    @property
    def group_world_size(self) -> int:
        """How many ranks its group has."""
        return self.world_size

    @property
    def cluster_node_rank(self) -> int:
        """Its node's number in the cluster."""
        return self.placement.node_rank

    @property
    def accelerator_rank(self) -> int:
        """The index on its node of its first accelerator; -1 without any."""
        first = self.placement.local_gpu_id
        return -1 if first is None else first

    @property
    def node_port(self) -> int:
        """Its group's port for rendezvous: MASTER_PORT."""
        return self.master_port

    def __hash__(self) -> int:
        return hash(self.address)
