"""Puts, and gets, in a row: what is alike is decided as a run, as long as that is simple."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice

from rlinf_scheduler.queueing.instructions import Instruction, accepted
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.operations import AnyClient, Getter, Putter
from rlinf_scheduler.queueing.serving import ServingQueue


class RunQueue(ServingQueue):
    """Does for a run what it does for its operations one by one."""

    __slots__ = ()

    @property
    def is_open(self) -> bool:
        """Whether items pass in the order in which they come, and concern nobody but those who put and get them.

        Then a run of puts, or of gets, does what they do one by one.
        """
        if self.ended or self.reserved or self.taps or self.lost:
            return False
        if self.admission is not None or self.sharding is not None or not self.fifo.is_plain:
            return False
        in_line = self.tally.line.places
        return not in_line or (len(in_line) == 1 and self in in_line)

    def put_run(self, client: AnyClient, puts: Sequence[tuple[int, Item]], out: list[Instruction]) -> int:
        """Take items of puts, as long as that is simple, and say how many; it is open."""
        count = 0
        # Who waits for one item has had all that there were; one on lease may take the room of the next.
        if self.getters and not (self.putters or self.fifo.num_items or self.leased_items):
            count = self._hand_over(client, puts, out)
        if not self.getters:
            if not self.putters:
                count += self._push_run(client, islice(puts, count, None), out)
            count += self._line_up(client, islice(puts, count, None))
            self.count()
        return count

    def _hand_over(self, client: AnyClient, puts: Iterable[tuple[int, Item]], out: list[Instruction]) -> int:
        """Give items to gets that wait for one each; nothing is here."""
        getters = self.getters
        count = 0
        for ticket, item in puts:
            getter = next(iter(getters), None)
            if getter is None or getter.wanted is not None or getter.terms is not None or item.is_special:
                break
            del getters[getter]
            self.fifo.pass_by(item)
            self._note_entered(item)
            out.append(accepted((client.name, ticket)))
            self._deliver_one(getter, item, out)
            count += 1
        return count

    def _push_run(self, client: AnyClient, puts: Iterable[tuple[int, Item]], out: list[Instruction]) -> int:
        """Let items enter as long as there is room; nobody waits here."""
        num_free, free_bytes = self._free()
        count = 0
        for ticket, item in puts:
            free_bytes -= item.size_bytes
            if count >= num_free or free_bytes < 0 or item.is_special:
                break
            self.fifo.push(item)
            self._note_entered(item)
            out.append(accepted((client.name, ticket)))
            count += 1
        return count

    def _line_up(self, client: AnyClient, puts: Iterable[tuple[int, Item]]) -> int:
        """Let puts wait for which there is no room, or before which others do; nobody waits for items."""
        count = 0
        for ticket, item in puts:
            if not self.putters and self.has_room(item.size_bytes):
                break
            self.load_put(Putter(client, ticket, self, item, complete=True), has_room=False)
            count += 1
        return count

    def get_run(self, client: AnyClient, tickets: Iterable[int], out: list[Instruction]) -> None:
        """Give an item to each get, as long as there are any, and let the others stand in line; it is open."""
        fifo, getters, tally = self.fifo, self.getters, self.tally
        is_first = not getters
        for ticket in tickets:
            getter = client.operations[ticket] = Getter(client, ticket, self, None)
            tally.num_gets += 1
            getter.number = tally.num_gets
            if is_first and fifo.num_items:
                self._deliver_one(getter, fifo.take(), out)
                if self.putters:  # what enters now may be for the next one: it may have a priority
                    self._admit(out)
            else:
                getters[getter] = None
                if self.putters:
                    self.settle(False, out)
        self.count()

    def _free(self) -> tuple[float, float]:
        """How many items, and how many bytes, find room for certain; nobody waits here."""
        tally, own_bytes = self.tally, self.held_bytes
        free_bytes: float = self.max_bytes - own_bytes if self.max_bytes else math.inf
        if tally.max_bytes:
            others_bytes = tally.held_bytes - self.counted_bytes
            free_bytes = min(free_bytes, tally.max_bytes - others_bytes - own_bytes)
        return self.maxsize - self.num_held if self.maxsize else math.inf, free_bytes
