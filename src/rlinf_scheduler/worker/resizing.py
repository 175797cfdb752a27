"""Which resize of a group goes on, which numbers its new ranks get, and who leaves. Pure: it does nothing about it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count as numbers_from
from itertools import islice

from msgspec.structs import replace

from rlinf_scheduler.errors import PlacementError, ResizeError
from rlinf_scheduler.session.membership import GroupMembers
from rlinf_scheduler.wording import counted


class Resizing:
    """The members of a group, and its resizes: one at a time, in the order in which they were asked for.

    That the ranks which leave finish what they have is no part of that.

    One thread tells it of events.

    Args:
        members: the ranks that it begins with.

    Attributes:
        members: those of now.
        leaving: ranks that are no members any more, and whose processes have not ended yet.

    >>> resizing = Resizing(GroupMembers("rollout", (0, 1)))
    >>> resizing.ask("first"), resizing.ask("second")
    (True, False)
    >>> numbers = resizing.numbers(2)
    >>> resizing.begin_start(numbers)
    >>> resizing.commit(resizing.with_ranks(numbers)).ranks
    (0, 1, 2, 3)
    >>> resizing.end("first")
    'second'
    >>> gone = resizing.leavers(1)
    >>> resizing.commit(resizing.without_ranks(gone)).ranks, resizing.leaving
    ((0, 1, 2), {3})
    >>> resizing.numbers(1), resizing.numbers(1, reuse=True)
    ((4,), (4,))
    >>> resizing.on_gone(3)
    >>> resizing.numbers(1), resizing.numbers(1, reuse=True)
    ((4,), (3,))
    """

    def __init__(self, members: GroupMembers) -> None:
        self.members = members
        self.leaving: set[int] = set()
        self._highest = max(members.ranks)
        self._line: list[object] = []

    # -- whose turn it is ------------------------------------------------------------------------

    def ask(self, resize: object) -> bool:
        """Somebody wants a resize; whether it may begin now."""
        self._line.append(resize)
        return self._line[0] is resize

    def end(self, resize: object) -> object | None:
        """A resize has ended, or nobody wants it any more; the one that may begin now."""
        was_first = bool(self._line) and self._line[0] is resize
        self._line = [each for each in self._line if each is not resize]
        return self._line[0] if was_first and self._line else None

    @property
    def current(self) -> object | None:
        """The resize that goes on."""
        return self._line[0] if self._line else None

    # -- who there will be -----------------------------------------------------------------------

    def numbers(self, count: int, *, reuse: bool = False) -> tuple[int, ...]:
        """The numbers of so many new ranks: those after the highest that ever was; or the lowest that are free."""
        if not reuse:
            return tuple(range(self._highest + 1, self._highest + 1 + count))
        taken = {*self.members.ranks, *self.leaving}
        return tuple(islice((number for number in numbers_from() if number not in taken), count))

    def begin_start(self, numbers: Sequence[int]) -> None:
        """Processes of these numbers are being started: whatever becomes of them, the numbers are used."""
        self._highest = max(self._highest, *numbers)

    def leavers(self, count: int | None = None, ranks: Sequence[int] | None = None) -> tuple[int, ...]:
        """Which ranks leave: these, or so many of the highest.

        Raises:
            PlacementError: the group has no such rank, or one is named twice.
            ResizeError: none would be left.
        """
        members = self.members
        wanted = members.ranks[-(count or 0) :] if ranks is None else tuple(ranks)
        for rank in wanted:
            if rank not in members:
                there = ", ".join(map(str, members.ranks))
                raise PlacementError(
                    f"group '{members.group}' has no rank {rank!r} to let go: it has {there}"
                )
        if len(set(wanted)) < len(wanted):
            raise PlacementError(f"shrink(ranks={list(wanted)}): name each rank once")
        if (count or len(wanted)) >= members.world_size:
            asked = f"of its {counted(members.world_size, 'rank')} {count or len(wanted)} would leave"
            raise ResizeError(
                members.group, f"{asked}, and one at least stays: `shutdown()` ends all of them"
            )
        return tuple(sorted(wanted))

    def with_ranks(self, numbers: Sequence[int]) -> GroupMembers:
        """The members as they are when these ranks have come."""
        ranks = tuple(sorted((*self.members.ranks, *numbers)))
        return replace(self.members, ranks=ranks, epoch=self.members.epoch + 1)

    def without_ranks(self, numbers: Sequence[int]) -> GroupMembers:
        """The members as they are when these ranks have left."""
        ranks = tuple(rank for rank in self.members.ranks if rank not in numbers)
        return replace(self.members, ranks=ranks, epoch=self.members.epoch + 1)

    # -- what happens ----------------------------------------------------------------------------

    def commit(self, after: GroupMembers) -> GroupMembers:
        """From now on these are the members; those that were are leaving."""
        self.leaving.update(set(self.members.ranks) - set(after.ranks))
        self.members = after
        return after

    def on_gone(self, rank: int) -> None:
        """The process of a rank that leaves has ended."""
        self.leaving.discard(rank)
