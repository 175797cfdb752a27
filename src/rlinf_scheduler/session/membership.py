"""Which rank of which group a process is; a fact of its session, where it is one."""

from __future__ import annotations

from typing import NamedTuple


class GroupMembership(NamedTuple):
    """A process's place in a group.

    Attributes:
        group: its name.
        launched_ns: when it was launched, in nanoseconds: another launch of that name is later.
        rank: the number of the process in it.
    """

    group: str
    launched_ns: int
    rank: int
    world_size: int
