"""The ranks of a group, as those know them who divide a queue among them, or count them as producers."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct


class GroupRanks(NamedTuple):
    """The ranks that a group has, or had.

    Attributes:
        group: its name.
        ranks: their numbers, ascending.
        version: greater the newer they are: when the group was launched, and how often it was resized since.
    """

    group: str
    ranks: tuple[int, ...]
    version: tuple[int, int] = (0, 0)

    def check(self) -> None:
        """Raise ValueError unless it makes sense."""
        if not self.ranks or list(self.ranks) != sorted(set(self.ranks)) or self.ranks[0] < 0:
            message = f"the ranks of '{self.group}' are ascending numbers, not {list(self.ranks)}"
            raise ValueError(message)

    def is_another_version_of(self, other: GroupRanks) -> bool:
        """Return whether they are older or newer ones of the same group."""
        return self.group == other.group and self.version != other.version

    def replaces(self, other: GroupRanks) -> bool:
        """Return whether they are newer ones of the same group."""
        return self.group == other.group and self.version > other.version


class Resize(Struct, tag=52, array_like=True):
    """A group has other ranks now -> `Done`."""

    members: GroupRanks
