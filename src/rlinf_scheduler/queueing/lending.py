"""What becomes of what a channel has given out on lease."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rlinf_scheduler.queueing.instructions import Deliver, Instruction, Reason, Refuse, StartClock
from rlinf_scheduler.queueing.leases import HeldItems
from rlinf_scheduler.queueing.named_queue import NamedQueue
from rlinf_scheduler.queueing.operations import Getter
from rlinf_scheduler.queueing.queue_set import QueueSet


class Lending(QueueSet):
    """Ends leases and what follows from that; see `Leases`."""

    def acknowledge(
        self, client: str, generation: int, places: Collection[int] | None = None
    ) -> list[Instruction] | None:
        """A consumer is done with items of its lease, or with all that are left; None if that is over."""
        return self._settle_lease(
            client, generation, lambda lease, out: self.leases.acknowledge(lease, places, out)
        )

    def give_back(
        self,
        client: str,
        generation: int,
        places: Collection[int] | None = None,
        *,
        delay_s: float = 0,
        reason: str = "",
    ) -> list[Instruction] | None:
        """Items of a client's lease, or all that are left, come back after a while; None if it is over."""

        def give_back(lease: HeldItems, out: list[Instruction]) -> None:
            self.leases.give_back(lease, places, out, reason=reason, delay_s=delay_s)

        return self._settle_lease(client, generation, give_back)

    def extend(self, client: str, generation: int, for_s: float | None = None) -> list[Instruction] | None:
        """A client's lease lasts so long from now, by default as long as in the beginning; None if it is over."""
        lease = self.leases.find(client, generation)
        if lease is None:
            return None
        return [StartClock(*lease.owner, generation, lease.terms.ttl_s if for_s is None else for_s)]

    def lapse(self, generation: int) -> list[Instruction]:
        """The time of a lease, or of a delay, is over."""
        out: list[Instruction] = []
        lease = self.leases.lapse(generation, out)
        if lease is not None:
            self._after_lease(lease, out)
        return out

    def put_back(self, number: int) -> list[Instruction] | None:
        """A dead letter goes to its queue again, as if it had never been given out; None if it is gone.

        Raises:
            ValueError: it would be taken too late (see `Admission`).
        """
        letter = self.leases.put_back(number)
        return None if letter is None else self._settled((letter.queue,))

    def discard(self, number: int) -> list[Instruction] | None:
        """Drop a dead letter; None if it is gone."""
        letter = self.leases.discard(number)
        return None if letter is None else self._settled((letter.queue,))

    def deliver_again(self, client: str, ticket: int) -> list[Instruction]:
        """Deliver once more what was delivered to a getter and is not confirmed."""
        getter = self._delivery(client, ticket)
        if getter is None or getter.items is None:
            return []
        if any(item.lost for item in getter.items):
            return self._fail(getter)
        about = (getter.items, getter.complete, getter.part, getter.lease, getter.group)
        return [Deliver(client, ticket, *about, queue=getter.queue.name)]

    def _fail(self, getter: Getter[NamedQueue]) -> list[Instruction]:
        """Items of a delivery are lost."""
        out: list[Instruction] = []
        lease = self.leases.of(getter)
        if lease is None:
            getter.queue.fail(getter, out)
            self._settle((getter.queue,), out)
            return out
        self.leases.withdraw(lease, out)
        getter.queue.tell_of_lost(getter, out)
        self._after_lease(lease, out)
        return out

    def _settle_lease(
        self, client: str, generation: int, settle: Callable[[HeldItems, list[Instruction]], None]
    ) -> list[Instruction] | None:
        lease = self.leases.find(client, generation)
        if lease is None:
            return None
        out: list[Instruction] = []
        settle(lease, out)
        self._after_lease(lease, out)
        return out

    def _withdraw_lease(self, getter: Getter[NamedQueue], lease: HeldItems) -> list[Instruction]:
        out: list[Instruction] = []
        self.leases.withdraw(lease, out)
        out.append(Refuse(getter.client.name, getter.ticket, Reason.CANCELLED, getter.queue.describe()))
        self._after_lease(lease, out)
        return out

    def _after_lease(self, lease: HeldItems, out: list[Instruction]) -> None:
        """Its queue has room, or items again, and its client may have more of any queue."""
        queues = {lease.queue: None}
        if lease.getter is not None and lease.getter.client.parked:
            client = lease.getter.client
            if not self.leases.is_at_bound(client):
                waiting = dict.fromkeys(getter.queue for getter in client.parked)
                for queue in waiting:
                    queue.unpark(client)
                queues |= waiting
        self._settle(queues, out)
