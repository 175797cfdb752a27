"""Who has still something to put into a channel that counts its producers: it ends when all of them are done.

A channel has so many *places*. A producer takes one, and leaves it: done, or failed (an exception, a death). A place
that was left by a failure is vacant: a successor may take it, a process that was started again, say. After a while
without one it counts as done.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from rlinf_scheduler.wording import counted


class ProducerPlaces(Struct, eq=False, array_like=True):
    """The places of producers; 0: they are not counted.

    Attributes:
        at_work: the names of those that are at work.
        vacant: the names of those that have failed and have no successor, by the numbers of the vacancies.
        num_done_before: of those that are done, so many were so before a restart: their programs may run once more.
    """

    num_places: int
    num_done: int = 0
    at_work: dict[tuple[str, int], str] = {}
    vacant: dict[int, str] = {}
    last_vacancy: int = 0
    num_done_before: int = 0


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
    (None, True)
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

    def join(self, client: str, number: int, name: str) -> bool:
        """Take a place: one left vacant by that name, else a free one, else any vacant one; False if there is none."""
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
            self.places.num_done += 1
            return None
        self.places.last_vacancy += 1
        self.places.vacant[self.places.last_vacancy] = name
        return self.places.last_vacancy

    def lose(self, client: str) -> list[int]:
        """A client is gone: return the numbers of the vacancies that it leaves."""
        numbers = [number for its_client, number in self.places.at_work if its_client == client]
        return [vacancy for number in numbers if (vacancy := self.leave(client, number, failed=True))]

    def give_up(self, vacancy: int) -> None:
        """No successor has come for too long: the one who failed counts as done."""
        if self.places.vacant.pop(vacancy, None) is not None:
            self.places.num_done += 1

    def copy(self) -> ProducerPlaces:
        """Return the places as they are now, which do not change."""
        return replace(self.places, at_work=dict(self.places.at_work), vacant=dict(self.places.vacant))

    def resume(self, saved: ProducerPlaces) -> None:
        """Go on where others have stopped, with the same clients."""
        at_work, vacant = dict(saved.at_work), dict(saved.vacant)
        self.places = replace(saved, num_places=self.places.num_places, at_work=at_work, vacant=vacant)

    def restore(self, saved: ProducerPlaces) -> None:
        """Begin again where a job that is no more has stopped: who was done is, and the other places are free.

        Who was done may begin again, as its program may not know that it was.

        Raises:
            ValueError: more are done than there are places.
        """
        if saved.num_done > self.places.num_places > 0:
            was = f"{saved.num_done} of its {saved.num_places} producers were done"
            message = f"{was}, and it is to have {self.places.num_places}"
            raise ValueError(message)
        if self.places.num_places:
            self.places.num_done = self.places.num_done_before = saved.num_done

    def describe(self) -> str:
        """Describe the producers that are there, in a phrase."""
        are = "is" if self.places.num_done == 1 else "are"
        parts = [f"{self.places.num_done} of {counted(self.places.num_places, 'producer')} {are} done"]
        if self.places.at_work:
            parts.append(f"at work: {', '.join(self.places.at_work.values())}")
        if self.places.vacant:
            parts.append(f"failed, without a successor yet: {', '.join(self.places.vacant.values())}")
        return "; ".join(parts)
