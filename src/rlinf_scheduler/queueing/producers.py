"""Who has still something to put into a channel that counts its producers: it ends when all of them are done.

A channel has so many *places*. A producer takes one, and leaves it: done, or failed (an exception, a death). A place
that was left by a failure is vacant: a successor may take it, a process that was started again, say. After a while
without one it counts as done. Where the producers are the ranks of a group each of them has its own place, and those
that leave the group are not waited for once they have left theirs.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from rlinf_scheduler.queueing.members import GroupRanks
from rlinf_scheduler.wording import counted


class ProducerPlaces(Struct, eq=False, array_like=True):
    """The places of producers; 0: they are not counted.

    Attributes:
        at_work: the names of those that are at work.
        vacant: the names of those that have failed and have no successor, by the numbers of the vacancies.
        num_done_before: of those that are done, so many were so before a restart: their programs may run once more.
        members: the ranks that are the producers, as far as anybody has said; done: the names of those that are done.
    """

    num_places: int
    num_done: int = 0
    at_work: dict[tuple[str, int], str] = {}
    vacant: dict[int, str] = {}
    last_vacancy: int = 0
    num_done_before: int = 0
    members: GroupRanks | None = None
    done: list[str] = []


class Producers:
    """The producers of one channel; each is known by its client and a number of that client's.

    Args:
        num_places: how many there are; 0: they are not counted.

    Attributes:
        places: what there is to know of them.

    >>> producers = Producers(2)
    >>> producers.join("a", 1, "env:0"), producers.join("b", 1, "env:1")
    (True, True)
    >>> producers.leave("a", 1, failed=False), producers.over
    (None, False)
    >>> producers.lose("b")
    [1]
    >>> producers.give_up(1), producers.over
    ('env:1', True)
    """

    def __init__(self, num_places: int) -> None:
        self.places = ProducerPlaces(num_places)

    @property
    def vacancies(self) -> list[int]:
        """The numbers of the places that were left by a failure."""
        return list(self.places.vacant)

    @property
    def over(self) -> bool:
        """Whether all are done."""
        return 0 < self.places.num_places == self.places.num_done

    def join(self, client: str, number: int, name: str, members: GroupRanks | None = None) -> bool:
        """Take a place: one left vacant by that name, else a free one, else any vacant one; False if there is none."""
        del members
        places = self.places
        if (client, number) in places.at_work:
            return True
        vacancy = next((vacancy for vacancy, its_name in places.vacant.items() if its_name == name), None)
        if (
            vacancy is None
            and len(places.at_work) + len(places.vacant) + places.num_done >= places.num_places
        ):
            if places.vacant:
                vacancy = next(iter(places.vacant))
            elif places.num_done_before:
                places.num_done_before -= 1
                places.num_done -= 1
            else:
                return False
        if vacancy is not None:
            del places.vacant[vacancy]
        places.at_work[client, number] = name
        return True

    def leave(self, client: str, number: int, *, failed: bool) -> int | None:
        """Leave a place, done or `failed`; the number of the vacancy if there is one now."""
        name = self.places.at_work.pop((client, number), None)
        if name is None:
            return None
        if not failed:
            self._finish(name)
            return None
        return self._vacate(name)

    def _vacate(self, name: str) -> int:
        self.places.last_vacancy += 1
        self.places.vacant[self.places.last_vacancy] = name
        return self.places.last_vacancy

    def lose(self, client: str) -> list[int]:
        """A client is gone: return the numbers of the vacancies that it leaves."""
        numbers = [number for its_client, number in self.places.at_work if its_client == client]
        return [vacancy for number in numbers if (vacancy := self.leave(client, number, failed=True))]

    def give_up(self, vacancy: int) -> str | None:
        """No successor has come for too long: the one who failed counts as done; its name, None if one has come."""
        name = self.places.vacant.pop(vacancy, None)
        if name is not None:
            self._finish(name)
        return name

    def resize(self, members: GroupRanks) -> list[int]:
        """Hear which ranks a group has now; these are no group's."""
        del members
        return []

    def _finish(self, _name: str) -> None:
        """Note that somebody is done."""
        self.places.num_done += 1

    def copy(self) -> ProducerPlaces:
        """Return the places as they are now, which do not change."""
        places = self.places
        return replace(places, at_work={**places.at_work}, vacant={**places.vacant}, done=[*places.done])

    def resume(self, saved: ProducerPlaces) -> None:
        """Go on where others have stopped, with the same clients."""
        num_places = self.places.num_places
        self.places = saved
        self.places = self.copy()
        self.places.num_places = num_places

    def restore(self, saved: ProducerPlaces) -> None:
        """Begin again where a job that is no more has stopped: who was done is, and the other places are free.

        Who was done may begin again, as its program may not know that it was. There may be fewer or more places now.
        """
        num_done = min(saved.num_done or len(saved.done), self.places.num_places)
        self.places.num_done = self.places.num_done_before = num_done

    def _counts(self) -> tuple[int, int]:
        """How many are done, of how many."""
        return self.places.num_done, self.places.num_places

    def describe(self) -> str:
        """Describe the producers that are there, in a phrase."""
        num_done, num_places = self._counts()
        are = "is" if num_done == 1 else "are"
        parts = [f"{num_done} of {counted(num_places, 'producer')} {are} done"]
        if self.places.at_work:
            parts.append(f"at work: {', '.join(self.places.at_work.values())}")
        if self.places.vacant:
            parts.append(f"failed, without a successor yet: {', '.join(self.places.vacant.values())}")
        return "; ".join(parts)


class GroupProducers(Producers):
    """The producers of a channel that are the ranks of a group, each under its own name.

    Args:
        group: its name.

    >>> producers = GroupProducers("env")
    >>> producers.join("a", 1, "env:0", GroupRanks("env", (0, 1)))
    True
    >>> producers.leave("a", 1, failed=False), producers.over
    (None, False)
    >>> producers.resize(GroupRanks("env", (0,), (0, 1)))  # env:1 has left, and has put nothing
    []
    >>> producers.over
    True
    """

    def __init__(self, group: str) -> None:
        super().__init__(0)
        self.group = group

    @property
    def over(self) -> bool:
        """Whether all ranks that there are now are done, and nobody else is at work."""
        places = self.places
        return bool(self._members) and not places.at_work and set(self._members) <= {*places.done}

    @property
    def _members(self) -> list[str]:
        members = self.places.members
        return [] if members is None else [f"{self.group}:{rank}" for rank in members.ranks]

    def join(self, client: str, number: int, name: str, members: GroupRanks | None = None) -> bool:
        """Take the place of a rank, also from a process before it; False if its own one has it, or it is no rank."""
        if members is None or members.group != self.group:
            return False
        self.resize(members)
        places = self.places
        holder = next((who for who, its_name in places.at_work.items() if its_name == name), None)
        if holder is not None and holder[0] == client:
            return holder[1] == number
        if holder is not None:
            del places.at_work[holder]
        places.vacant = {vacancy: its_name for vacancy, its_name in places.vacant.items() if its_name != name}
        places.done = [its_name for its_name in places.done if its_name != name]
        places.at_work[client, number] = name
        return True

    def leave(self, client: str, number: int, *, failed: bool) -> int | None:
        """Leave a place; that of a rank which is none any more is nobody's."""
        name = self.places.at_work.get((client, number))
        return super().leave(client, number, failed=failed and name in self._members)

    def _finish(self, name: str) -> None:
        if name in self._members:
            self.places.done.append(name)

    def resize(self, members: GroupRanks) -> list[int]:
        """Let others be the producers; those who have left are waited for as long as they are at work.

        Returns: the numbers of new vacancies: who was done before all of the group was launched anew has a successor.
        """
        places, before = self.places, self.places.members
        if members.group != self.group or (before is not None and not members.replaces(before)):
            return []
        places.members, names = members, {f"{self.group}:{rank}" for rank in members.ranks}
        places.done = [name for name in places.done if name in names]
        places.vacant = {vacancy: name for vacancy, name in places.vacant.items() if name in names}
        if before is None or before.version[0] == members.version[0]:
            return []
        done, places.done = places.done, []
        return [self._vacate(name) for name in done]

    def restore(self, saved: ProducerPlaces) -> None:
        """Begin again where a job that is no more has stopped: the ranks that were done are, if they are there."""
        self.places.done = [*saved.done]

    def _counts(self) -> tuple[int, int]:
        return len(self.places.done), len(self._members)

    def describe(self) -> str:
        """Describe the producers that are there, in a phrase."""
        if self.places.members is None:
            return f"no rank of '{self.group}' has begun yet"
        return super().describe()
