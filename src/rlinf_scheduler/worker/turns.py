"""The holders of devices that have them to themselves, and the line behind them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from rlinf_scheduler.observe.process_stats import TurnNote
from rlinf_scheduler.session.membership import GroupMembers, GroupMembership


@dataclass(eq=False, slots=True)
class Turn:
    """One wish to have some devices alone.

    Attributes:
        process_id: whose it is,
        number: which of its wishes.
        who: how that process is called.
        devices: what it wants, all at once.
        since: when it began to wait or, once it has them, to have them; on the caller's clock, in seconds.
        group: the group whose ranks want theirs together, each by a wish of its own; None: it is alone.
        granted: it has them.
    """

    process_id: str
    number: int
    who: str
    devices: frozenset[str]
    since: float
    group: GroupMembership | None = None
    granted: bool = False


_version = attrgetter("version")


@dataclass(eq=False, slots=True)
class _Place:
    """A place in line: the wish of one process, or those of all ranks of a group.

    Attributes:
        members: the wishes, without those of ranks that have left.
        devices: of all of them, until the last one has left.
        granted: they have them.
    """

    members: list[Turn]
    devices: frozenset[str] = frozenset()
    granted: bool = False

    @property
    def missing(self) -> list[str]:
        """Return the ranks of its group that do not wish it yet."""
        if self.members[0].group is None or self.granted:
            return []
        newest = max((each.group.members for each in self.members if each.group), key=_version)
        there = {each.who for each in self.members}
        ranks = (f"{newest.group}:{rank}" for rank in newest.ranks)
        return [name for name in ranks if name not in there]

    def takes(self, turn: Turn) -> bool:
        """Whether a wish is of a rank that is missing here."""
        theirs = self.members[0].group
        if turn.group is None or theirs is None:
            return False
        is_same = (theirs.group, theirs.launched_ns) == (turn.group.group, turn.group.launched_ns)
        return is_same and turn.who in self.missing


class Turns:
    """Devices in turn: a process waits for all who asked before it for any of the same devices.

    Nobody has one device while it waits for another, and nobody is overtaken: so there is no deadlock and no
    starvation. A group stands in line from when the last of its ranks has asked, has its devices from when all of them
    are free, and gives them back when its last rank has left: nobody waits for one that is not ready.

    >>> turns = Turns()
    >>> [turn.who for turn in turns.ask(Turn("p1", 1, "rollout:0", frozenset({"0"}), since=0.0))]
    ['rollout:0']
    >>> turns.ask(Turn("p2", 1, "actor:0", frozenset({"0", "1"}), since=1.0))
    []
    >>> [turn.who for turn in turns.give_back("p1", 1, now=2.0)]
    ['actor:0']
    """

    def __init__(self) -> None:
        # In the order in which they were asked for.
        self._line: list[_Place] = []
        # Of groups whose ranks have not all asked.
        self._gathering: list[_Place] = []

    def ask(self, turn: Turn) -> list[Turn]:
        """Put a wish in line, that of a group with its last rank's; return those that are granted by that."""
        self._join(turn)
        return self._granted(turn.since)

    def _join(self, turn: Turn) -> None:
        place = next((each for each in self._gathering if each.takes(turn)), _Place([]))
        place.members.append(turn)
        place.devices |= turn.devices
        if place in self._gathering:
            self._gathering.remove(place)
        (self._gathering if place.missing else self._line).append(place)

    def before(self, turn: Turn) -> list[Turn]:
        """Those that `turn` waits for; the first of them have their devices."""
        place = next((each for each in self._line if turn in each.members), None)
        if place is None:
            return []
        ahead = self._line[: self._line.index(place)]
        return [member for each in ahead if each.devices & place.devices for member in each.members]

    def missing(self, turn: Turn) -> list[str]:
        """Return the ranks that have not asked for what all ranks of the group of `turn` are to have together."""
        return next((each.missing for each in self._gathering if turn in each.members), [])

    @property
    def gathering(self) -> list[tuple[list[Turn], list[str]]]:
        """The wishes of each group of which some ranks have not asked, and these ranks."""
        return [(list(place.members), place.missing) for place in self._gathering]

    def resize(self, members: GroupMembers, now: float) -> list[Turn]:
        """A group has other ranks, for which those wait that have asked; return the wishes granted by that."""
        for place in list(self._gathering):
            theirs = [turn.group for turn in place.members if turn.group is not None]
            if all(each.members.group == members.group for each in theirs):
                self._gathering.remove(place)
                for turn, group in zip(place.members, theirs, strict=True):
                    turn.group = group._replace(members=max(group.members, members, key=_version))
                    self._join(turn)
        return self._granted(now)

    def give_back(self, process_id: str, number: int, now: float) -> list[Turn]:
        """A process has done with its turn, or wants it no more; those that are granted by that."""
        return self._drop(lambda turn: (turn.process_id, turn.number) == (process_id, number), now)

    def forget(self, process_id: str, now: float) -> list[Turn]:
        """A process is gone; those that are granted by that."""
        return self._drop(lambda turn: turn.process_id == process_id, now)

    def _drop(self, is_over: Callable[[Turn], bool], now: float) -> list[Turn]:
        for place in [*self._line, *self._gathering]:
            left = [turn for turn in place.members if not is_over(turn)]
            if len(left) == len(place.members):
                continue
            if left and place.granted:
                place.members = left
                continue
            (self._line if place in self._line else self._gathering).remove(place)
            for turn in left:  # they wait for that rank again
                self._join(turn)
        return self._granted(now)

    def _granted(self, now: float) -> list[Turn]:
        """Grant what can be had; return that."""
        taken: set[str] = set()
        granted: list[Turn] = []
        for place in self._line:
            if not place.granted and taken.isdisjoint(place.devices):
                place.granted = True
                for turn in place.members:
                    turn.granted, turn.since = True, now
                granted += place.members
            taken |= place.devices
        return granted

    def notes(self, now: float) -> list[TurnNote]:
        """The holders of devices, and the processes that wait for them."""
        return [
            TurnNote(
                turn.who, tuple(sorted(turn.devices)), now - turn.since, turn.granted, tuple(place.missing)
            )
            for place in [*self._line, *self._gathering]
            for turn in place.members
        ]

    def __len__(self) -> int:
        return sum(len(place.members) for place in [*self._line, *self._gathering])
