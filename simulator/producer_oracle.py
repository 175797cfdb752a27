"""The places of a channel's producers as they must be."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf_scheduler.queueing.members import GroupRanks
from simulator.world import Violation


@dataclass(slots=True, eq=False)
class _Place:
    """One place: `free`, `taken`, `vacant` since somebody failed, or `done`."""

    state: str = "free"
    holder: tuple[str, int] | None = None
    name: str = ""
    since_us: int = 0


class ProducerOracle:
    """Who has something to put, and whether the channel may end, or has to.

    Args:
        num_places: how many producers there are; 0: they are not counted.
        successor_us: how long a vacant place waits for a successor.
    """

    def __init__(self, num_places: int, successor_us: int) -> None:
        self._places = [_Place() for _ in range(num_places)]
        self._successor_us = successor_us

    def join(self, client: str, number: int, name: str, now_us: int, *, admitted: bool) -> None:
        """Somebody asks for a place, and is told whether there is one."""
        place = self._place_for(name)
        if not admitted and place is not None and self._is_overdue(place, now_us):
            return  # it counts as done by now
        if admitted != (place is not None):
            raise Violation(f"{client} asks for a place, and is told {admitted}: {self._places}", (number,))
        if place is not None:
            place.state, place.holder, place.name = "taken", (client, number), name

    def leave(self, client: str, number: int, now_us: int, *, failed: bool) -> None:
        """Somebody leaves a place, if it has one."""
        for place in self._places:
            if place.holder == (client, number):
                place.state, place.holder, place.since_us = "vacant" if failed else "done", None, now_us

    def resize(self, members: GroupRanks) -> None:
        """A group has other ranks; these are no group's."""

    def lose(self, client: str, now_us: int) -> None:
        """A client has gone."""
        for place in self._places:
            if place.holder is not None and place.holder[0] == client:
                self.leave(*place.holder, now_us, failed=True)

    def ends(self, now_us: int) -> None:
        """The channel ends."""
        if not self._is_over(now_us):
            raise Violation(f"the channel ends, and there are producers: {self._places}")

    def check_rest(self, now_us: int, *, ended: bool) -> None:
        """Check, when the world is at rest, that a channel without producers has ended."""
        if self._places and self._is_over(now_us) and not ended:
            raise Violation("all producers are done, and the channel has not ended")

    def given_up(self, now_us: int) -> None:
        """Nobody waits any more for successors that should have come by now."""
        for place in self._places:
            if place.state == "vacant" and self._is_overdue(place, now_us):
                place.state = "done"

    def _place_for(self, name: str) -> _Place | None:
        """The one that somebody of this name left, else a free one, else any vacant one."""
        vacant = sorted((each for each in self._places if each.state == "vacant"), key=_since)
        free = [place for place in self._places if place.state == "free"]
        own = [place for place in vacant if place.name == name]
        return next(iter([*own, *free, *vacant]), None)

    def _is_over(self, now_us: int) -> bool:
        return all(
            place.state == "done" or (place.state == "vacant" and self._is_overdue(place, now_us))
            for place in self._places
        )

    def _is_overdue(self, place: _Place, now_us: int) -> bool:
        return now_us >= place.since_us + self._successor_us


class GroupProducerOracle:
    """The same where the producers are the ranks of a group, which comes and goes.

    Args:
        group: its name.
        successor_us: how long the place of a rank that failed waits for its successor.
    """

    def __init__(self, group: str, successor_us: int) -> None:
        self._group = group
        self._successor_us = successor_us
        self._members: GroupRanks | None = None
        self._at_work: dict[str, tuple[str, int]] = {}
        self._failed_us: dict[str, int] = {}
        self._done: set[str] = set()

    def join(self, client: str, number: int, name: str, now_us: int, *, admitted: bool) -> None:
        """Somebody asks for the place of a rank, and is told whether it has it."""
        del now_us
        holder = self._at_work.get(name)
        may = name.startswith(f"{self._group}:") and (
            holder is None or holder[0] != client or holder[1] == number
        )
        if admitted != may:
            raise Violation(
                f"{client} asks for the place of {name}, and is told {admitted}: {self}", (number,)
            )
        if may:
            self._at_work[name] = client, number
            self._failed_us.pop(name, None)
            self._done.discard(name)

    def leave(self, client: str, number: int, now_us: int, *, failed: bool) -> None:
        """Somebody leaves a place, if it has one; that of a rank that there is no more waits for nobody."""
        name = next((each for each, holder in self._at_work.items() if holder == (client, number)), None)
        if name is None:
            return
        del self._at_work[name]
        if name in self._ranks and failed:
            self._failed_us[name] = now_us
        elif name in self._ranks:
            self._done.add(name)

    def lose(self, client: str, now_us: int) -> None:
        """A client has gone."""
        for holder in [holder for holder in self._at_work.values() if holder[0] == client]:
            self.leave(*holder, now_us, failed=True)

    def resize(self, members: GroupRanks) -> None:
        """The group has other ranks, unless they are older ones."""
        if members.group != self._group or (self._members and members.version <= self._members.version):
            return
        self._members = members
        self._done &= self._ranks
        self._failed_us = {name: at_us for name, at_us in self._failed_us.items() if name in self._ranks}

    def ends(self, now_us: int) -> None:
        """The channel ends."""
        if not self._is_over(now_us):
            raise Violation(f"the channel ends, and there are producers: {self}")

    def check_rest(self, now_us: int, *, ended: bool) -> None:
        """Check, when the world is at rest, that a channel without producers has ended."""
        if self._is_over(now_us) and not ended:
            raise Violation(f"all ranks are done, and the channel has not ended: {self}")

    def given_up(self, now_us: int) -> None:
        """Nobody waits any more for successors that should have come by now."""
        for name in [name for name in self._failed_us if self._is_overdue(name, now_us)]:
            del self._failed_us[name]
            self._done.add(name)

    @property
    def _ranks(self) -> set[str]:
        return {f"{self._group}:{rank}" for rank in self._members.ranks} if self._members else set()

    def _is_over(self, now_us: int) -> bool:
        overdue = {name for name in self._failed_us if self._is_overdue(name, now_us)}
        return self._members is not None and not self._at_work and self._ranks <= self._done | overdue

    def _is_overdue(self, name: str, now_us: int) -> bool:
        return now_us >= self._failed_us[name] + self._successor_us

    def __str__(self) -> str:
        return f"ranks {self._ranks}, at work {self._at_work}, failed {self._failed_us}, done {self._done}"


def _since(place: _Place) -> int:
    return place.since_us
