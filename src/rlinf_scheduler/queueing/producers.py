"""Who has still something to put into a channel that counts its producers: it ends when all of them are done.

A channel has so many *places*. A producer takes one, and leaves it: done, or failed (an exception, a death). A place
that was left by a failure is vacant: a successor may take it, a process that was started again, say. After a while
without one it counts as done.
"""

from __future__ import annotations

from rlinf_scheduler.queueing.records import ProducersRecord
from rlinf_scheduler.wording import counted


class Producers:
    """The places of one channel; a producer is known by its client and a number of that client's.

    Args:
        num_places: how many producers there are; 0: they are not counted.

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
        self.num_places = num_places
        self._num_done = 0
        self._names: dict[tuple[str, int], str] = {}
        self._vacant: dict[int, str] = {}  # by the number of the vacancy: who was there
        self._last_vacancy = 0
        # Of those that are done, so many were so before a restart: their programs may run once more.
        self._num_done_before = 0

    @property
    def vacancies(self) -> list[int]:
        """The numbers of the places that were left by a failure."""
        return list(self._vacant)

    @property
    def over(self) -> bool:
        """Whether all are done."""
        return 0 < self.num_places == self._num_done

    def join(self, client: str, number: int, name: str) -> bool:
        """Take a place: one left vacant by that name, else a free one, else any vacant one; False if there is none."""
        if (client, number) in self._names:
            return True
        vacancy = next((vacancy for vacancy, its_name in self._vacant.items() if its_name == name), None)
        if vacancy is None and len(self._names) + len(self._vacant) + self._num_done >= self.num_places:
            if self._vacant:
                vacancy = next(iter(self._vacant))
            elif self._num_done_before:
                self._num_done_before -= 1
                self._num_done -= 1
            else:
                return False
        if vacancy is not None:
            del self._vacant[vacancy]
        self._names[client, number] = name
        return True

    def leave(self, client: str, number: int, *, failed: bool) -> int | None:
        """Leave a place, done or `failed`; the number of the vacancy if there is one now."""
        name = self._names.pop((client, number), None)
        if name is None:
            return None
        if not failed:
            self._num_done += 1
            return None
        self._last_vacancy += 1
        self._vacant[self._last_vacancy] = name
        return self._last_vacancy

    def lose(self, client: str) -> list[int]:
        """A client is gone: return the numbers of the vacancies that it leaves."""
        numbers = [number for its_client, number in self._names if its_client == client]
        return [vacancy for number in numbers if (vacancy := self.leave(client, number, failed=True))]

    def give_up(self, vacancy: int) -> None:
        """No successor has come for too long: the one who failed counts as done."""
        if self._vacant.pop(vacancy, None) is not None:
            self._num_done += 1

    def record(self) -> ProducersRecord:
        """Return their state as a record."""
        at_work = [(client, number, name) for (client, number), name in self._names.items()]
        vacant = list(self._vacant.items())
        counts = self._last_vacancy, self._num_done_before
        return ProducersRecord(self.num_places, self._num_done, at_work, vacant, *counts)

    def resume(self, record: ProducersRecord) -> None:
        """Go on where others have stopped, with the same clients."""
        _, self._num_done, at_work, vacant, self._last_vacancy, self._num_done_before = record
        self._names = {(client, number): name for client, number, name in at_work}
        self._vacant = dict(vacant)

    def restore(self, record: ProducersRecord) -> None:
        """Begin again where a job that is no more has stopped: who was done is, and the other places are free.

        Who was done may begin again, as its program may not know that it was.

        Raises:
            ValueError: more are done than there are places.
        """
        if record.num_done > self.num_places > 0:
            was = f"{record.num_done} of its {record.num_places} producers were done"
            message = f"{was}, and it is to have {self.num_places}"
            raise ValueError(message)
        if self.num_places:
            self._num_done = self._num_done_before = record.num_done

    def describe(self) -> str:
        """Describe the producers that are there, in a phrase."""
        are = "is" if self._num_done == 1 else "are"
        parts = [f"{self._num_done} of {counted(self.num_places, 'producer')} {are} done"]
        if self._names:
            parts.append(f"at work: {', '.join(self._names.values())}")
        if self._vacant:
            parts.append(f"failed, without a successor yet: {', '.join(self._vacant.values())}")
        return "; ".join(parts)
