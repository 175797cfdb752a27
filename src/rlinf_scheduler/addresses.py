"""Names of workers: a rank is `group:rank`, a process that joined the job below it `group:rank/child`. Pure."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsIndex, TypeAlias

# A rank's number; or the way to a worker below one: "3/0", or [3, 0].
Rank: TypeAlias = SupportsIndex | str | Sequence[SupportsIndex]
_BELOW = "/"


@dataclass(frozen=True, slots=True, order=True, init=False)
class WorkerAddress:
    """A worker's name in the job; as text `group:rank`, or `group:rank/child` of one that joined below a rank.

    >>> address = WorkerAddress("rollout", 3).child(0)
    >>> str(address), address.rank, str(address.parent)
    ('rollout:3/0', 0, 'rollout:3')

    Args:
        group: the group's name.
        rank: the number in the group; or the numbers on the way to a worker below a rank, as "3/0" or [3, 0].

    Raises:
        ValueError: that is no such way.

    Attributes:
        group: see above.
        path: the numbers on the way to it, the group's rank first.
    """

    group: str
    path: tuple[int, ...]

    def __init__(self, group: str, rank: Rank) -> None:
        object.__setattr__(self, "group", group)
        object.__setattr__(self, "path", rank_path(rank))

    def __str__(self) -> str:
        return f"{self.group}:{self.way}"

    @property
    def rank(self) -> int:
        """Its number: in its group, or among the workers below its parent."""
        return self.path[-1]

    @property
    def way(self) -> str:
        """The numbers on the way to it, as text: "3", or "3/0"."""
        return _BELOW.join(map(str, self.path))

    @property
    def parent(self) -> WorkerAddress | None:
        """The worker below which it joined; None of a rank."""
        return WorkerAddress(self.group, self.path[:-1]) if len(self.path) > 1 else None

    def child(self, number: int) -> WorkerAddress:
        """The address of a worker below it."""
        return WorkerAddress(self.group, (*self.path, number))

    @classmethod
    def parse(cls, text: str) -> WorkerAddress:
        """The address that `str(address)` wrote.

        Raises:
            ValueError: the text is not `group:rank`, nor `group:rank/child`.
        """
        group, colon, rank = text.rpartition(":")
        if not colon or not group or not is_path(rank):
            raise ValueError(f"{text!r} is not a worker's address: 'group:rank', or 'group:rank/child'")
        return cls(group, rank)


def rank_path(rank: Rank) -> tuple[int, ...]:
    """The numbers on the way to a worker, as users write it.

    >>> rank_path(3), rank_path("3/0"), rank_path([3, 0])
    ((3,), (3, 0), (3, 0))

    Raises:
        ValueError: it is none.
    """
    if isinstance(rank, str):
        if is_path(rank):
            return tuple(map(int, rank.split(_BELOW)))
    elif numbers := _numbers(rank):
        return numbers
    raise ValueError(f"{rank!r} is no rank: 3, or of a worker below it '3/0' or [3, 0]")


def worker_name(group: str, rank: Rank) -> str:
    """The name of a worker, as the directory has it.

    >>> worker_name("rollout", 3), worker_name("rollout", [3, 0])
    ('rollout:3', 'rollout:3/0')

    Raises:
        ValueError: the way to it is none.
    """
    if isinstance(rank, (str, tuple, list)):
        return str(WorkerAddress(group, rank))
    return f"{group}:{rank}"


def worker_address(name: str) -> WorkerAddress | None:
    """The address that a process's name is; None of a driver, or a command.

    >>> worker_address("rollout:3/0"), worker_address("driver")
    (WorkerAddress(group='rollout', path=(3, 0)), None)
    """
    group, _, rank = name.rpartition(":")
    return WorkerAddress(group, rank) if group and is_path(rank) else None


def parent_name(name: str) -> str:
    """The name of the worker below which one of that name joined; "" of a rank, and of any other process.

    >>> parent_name("rollout:3/0/1"), parent_name("rollout:3"), parent_name("outer:0/inner:2")
    ('rollout:3/0', '', '')
    """
    parent, _, last = name.rpartition(_BELOW)
    return parent if last.isdecimal() and worker_address(parent) is not None else ""


def process_order(name: str) -> tuple[str, tuple[int, ...]]:
    """What sorts processes: ranks by group and number, and each worker below one right after it.

    >>> sorted(["rollout:10", "rollout:3/0", "rollout:3", "driver"], key=process_order)
    ['driver', 'rollout:3', 'rollout:3/0', 'rollout:10']
    """
    address = worker_address(name)
    return (name, ()) if address is None else (address.group, address.path)


def siblings_name(name: str) -> str:
    """What the workers have in common that were started side by side: their group, or the worker above them.

    >>> siblings_name("rollout:3"), siblings_name("rollout:3/0"), siblings_name("driver")
    ('rollout', 'rollout:3', '')
    """
    return parent_name(name) or name.rpartition(":")[0]


def root_name(name: str) -> str:
    """The name of the rank below which a worker of that name is; of any other process, its own.

    >>> root_name("rollout:3/0/1"), root_name("outer:0/inner:2"), root_name("driver")
    ('rollout:3', 'outer:0/inner:2', 'driver')
    """
    group, colon, way = name.rpartition(":")
    return f"{group}:{way.partition(_BELOW)[0]}" if colon and is_path(way) else name


def is_below(name: str, above: str) -> bool:
    """Whether a worker of one name is below the one of another.

    >>> is_below("rollout:3/0/1", "rollout:3"), is_below("outer:0/inner:2", "outer:0")
    (True, False)
    """
    return name.startswith(f"{above}{_BELOW}") and is_path(name[len(above) + 1 :])


def is_path(text: str) -> bool:
    """Whether a text is the way to a worker.

    >>> [is_path(text) for text in ("3", "3/0", "3//0", "03", "-1", "", "inner")]
    [True, True, False, False, False, False, False]
    """
    return all(
        part.isascii() and part.isdecimal() and (part == "0" or part[0] != "0") for part in text.split(_BELOW)
    )


def _numbers(rank: SupportsIndex | Sequence[SupportsIndex]) -> tuple[int, ...]:
    """The numbers of a rank that is no text; none if some are no whole numbers from 0."""
    several = rank if isinstance(rank, Sequence) else (rank,)
    try:
        numbers = tuple(-1 if isinstance(each, bool) else operator.index(each) for each in several)
    except TypeError:
        return ()
    return numbers if all(number >= 0 for number in numbers) else ()
