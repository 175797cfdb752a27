"""One queue of a channel: its items, the line of getters, the line of puts, and the bound between them.

Rules:

- Getters are served in order of arrival, `get` and `get_batch` in one line; a waiting getter holds nothing.
- Puts enter in order of arrival. Those that find no room wait in line.
- A put may announce its item and send the bytes once it has room (a *reservation*). Later puts of the same
  client enter behind it, other clients' pass it: a slow producer holds up nobody else.
- A queue that has ended takes no further put. Those that came before still enter; then a batch gets what is left,
  and who asks after that is told that the queue has ended.
- A flush says that a batch need not wait for more than what came before it.
- A queue that admits (see `Admission`) takes an item only with a slot, which has room for it, and gives the oldest
  version first, none that would keep another from being taken in time.
- Items in delivery (taken, not yet confirmed) do not count against the bound, unless they are on lease. Otherwise
  every put to a full queue would wait for a consumer's confirmation. Giving back never waits: it may exceed the
  bound, and no put enters until the queue is below it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rlinf_scheduler.queueing.admission import Admission
from rlinf_scheduler.queueing.instructions import Instruction
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.lanes import LanedFifo
from rlinf_scheduler.queueing.operations import AnyGetter
from rlinf_scheduler.queueing.running import RunQueue
from rlinf_scheduler.queueing.wanted import WantedGroup


class NamedQueue(RunQueue):
    """The state of one queue. Every method appends what is to be done to `out`."""

    __slots__ = ()

    def waits_for(self, getter: AnyGetter, closed: bool) -> bool:
        """Whether this queue has ended, and waits for the items of a delivery to arrive."""
        is_on_the_way = not (
            getter.items is None or getter.arrived or getter.is_shard or getter.lease is not None
        )
        return is_on_the_way and (closed or self.ended)

    def arrive(self, getter: AnyGetter) -> None:
        """The delivered items are in the client's process, where nobody has taken them yet."""
        if not getter.arrived and not getter.is_shard and getter.lease is None:
            self.on_the_way -= 1
        getter.arrived = True

    def confirm(self, getter: AnyGetter) -> None:
        """The delivered items were taken: they are the consumer's now."""
        if self.admission is not None and not getter.is_shard:
            self.admission.settle(getter.items or ())
        self._end_delivery(getter)

    def _end_delivery(self, getter: AnyGetter) -> None:
        del getter.client.operations[getter.ticket]
        if not getter.is_shard:
            self.delivering -= 1
            if not getter.arrived and getter.lease is None:
                self.on_the_way -= 1
        getter.arrived = True

    def give_back(self, getters: Iterable[AnyGetter]) -> None:
        """Put items in delivery back to the head, in their original order."""
        returned: list[Item] = []
        for getter in getters:
            self._end_delivery(getter)
            # A part is kept for its shard anyhow.
            if not getter.is_shard:
                returned.extend(getter.items or ())
        self.restore(returned)

    def restore(self, items: Collection[Item]) -> None:
        """Put items that were taken back to the head, each at its old place."""
        if self.admission is not None:
            self.admission.come_back(items)
        self.fifo.restore(items)

    def reopen(self, item: Item) -> None:
        """Put an item that was a dead letter back to its old place.

        Raises:
            ValueError: it would be taken too late.
        """
        if self.admission is not None:
            self.admission.reopen(item)
        self.fifo.restore((item,))

    def fail(self, getter: AnyGetter, out: list[Instruction]) -> None:
        """Items of a delivery did not arrive, and are lost: the others go back, and the getter is told."""
        self.give_back((getter,))
        self.drop_lost(getter)
        self.tell_of_lost(getter, out)

    def begin_admission(self) -> Admission:
        """Give slots from now on.

        Raises:
            ValueError: what is here has none, or somebody waits for a group.
        """
        if self.admission is None:
            if any(isinstance(getter.wanted, WantedGroup) for getter in (*self.getters, *self.parked)):
                message = (
                    f"somebody waits for a group of queue {self.name!r}: collect groups in another queue"
                )
                raise ValueError(message)
            if self.fifo.num_items or self.putters or self.reserved or self.num_leases or self.delivering:
                message = f"queue {self.name!r} holds what was put without a slot: {self.describe()}"
                raise ValueError(message)
            self.admission, fifo = Admission(self.tally.leases.next_number), LanedFifo(self.tally.clock)
            fifo.num_entered, self.fifo = self.fifo.num_entered, fifo
        return self.admission
