"""The lines of getters, and who is told what: items, parts, slots, or that there is nothing to come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import takewhile

from rlinf_scheduler.queueing.admission import Admission
from rlinf_scheduler.queueing.instructions import Bury, Deliver, Instruction, Reason, Refuse, Ripen, delivered
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.matching import MatchingQueue
from rlinf_scheduler.queueing.operations import AnyClient, AnyGetter
from rlinf_scheduler.queueing.sharding import Sharding, ShardPlan
from rlinf_scheduler.queueing.wanted import Wanted
from rlinf_scheduler.queueing.weights import rounded
from rlinf_scheduler.wording import counted

# The part, the lease, the group and the slot of a delivery that has none of them.
NOTHING = (None, None, None, None)


class ServingQueue(MatchingQueue):
    """Serves those who wait for items, from the head of their line."""

    __slots__ = ()

    def get(self, getter: AnyGetter) -> None:
        """Stand in line; `settle` serves the line."""
        getter.client.operations[getter.ticket] = getter
        tally = self.tally
        tally.num_gets += 1
        getter.number = tally.num_gets
        self.getters[getter] = None
        if getter.terms is not None:
            getter.client.lines_up(getter)

    def get_part(
        self, getter: AnyGetter, plan: ShardPlan, index: int, done_step: int, out: list[Instruction]
    ) -> None:
        """Wait for a shard's next part; `settle` hands it out."""
        if self.sharding is None:
            self.sharding = Sharding(plan)
        getter.is_shard = True
        self._remember(getter)
        earlier = self.sharding.ask(getter, index, done_step)
        if earlier is not None:
            del earlier.client.operations[earlier.ticket]
            out.append(Refuse(earlier.client.name, earlier.ticket, Reason.SUCCEEDED, self.describe()))
        if self.tally.has_losses:  # a part that its shard had comes back
            self.fifo.lost += self.sharding.drop_lost()

    def withdraw_get(self, getter: AnyGetter) -> None:
        """Forget a waiting getter."""
        del getter.client.operations[getter.ticket]
        if self.sharding is not None and getter.is_shard:
            self.sharding.forget(getter)
        elif getter in self.parked:
            del self.parked[getter], getter.client.parked[getter]
        else:
            del self.getters[getter]
            if getter.terms is not None:
                getter.client.leaves(getter)

    def unpark(self, client: AnyClient) -> None:
        """Getters of a client that were passed over stand in line again, each at its old place."""
        unparked = [getter for getter in client.parked if getter.queue is self]
        for getter in unparked:
            del self.parked[getter], client.parked[getter]
        last = unparked[-1].number
        before = takewhile(lambda getter: getter.number < last, self.getters)
        for getter in sorted([*before, *unparked], key=_number_of, reverse=True):
            self.getters[getter] = None
            self.getters.move_to_end(getter, last=False)
        for getter in unparked:
            client.lines_up(getter)

    def settle(self, closed: bool, out: list[Instruction]) -> None:
        """Serve getters and let puts enter until neither line can move."""
        if self.fifo.lost:
            self._note_lost(out)
        if self.lost and self.awaited:
            self._tell_of_lost(out)
        if self.admission is not None:
            self._give_slots(self.admission, out)
        self._serve(closed, out)
        if self.sharding is not None:
            self._serve_shards(self.sharding, closed, out)
        while self.putters and self._admit(out):
            self._serve(closed, out)
            if self.sharding is not None:
                self._serve_shards(self.sharding, closed, out)
        if self.parked:
            self._refuse_parked(closed, out)
        if self.admission is not None:
            self._give_slots(self.admission, out)
        self.count()

    def _serve(self, closed: bool, out: list[Instruction]) -> None:
        """Serve the line of getters from its head while it can be."""
        getters = self.getters
        while getters:
            getter = next(iter(getters))
            if getter.terms is not None and self.tally.leases.is_at_bound(getter.client):
                self._park(getter)
                continue
            items = self._match(getter, closed)
            if items is None:
                reason = self._hopeless(getter, closed)
                if reason is None:
                    self._let_ripen(getter, out)
                    break
                self.withdraw_get(getter)
                state = self._describe_head() if reason is Reason.OVERSIZE else self.describe()
                out.append(Refuse(getter.client.name, getter.ticket, reason, state))
                continue
            del getters[getter]
            if self.admission is not None:
                self.admission.give(items)
            if getter.terms is not None:
                getter.client.leaves(getter)
                self.tally.leases.begin(getter, getter.terms, items, out)
                self._make_way(getter.client)
                continue
            getter.items = items
            self.delivering += 1
            self.on_the_way += 1
            about = getter.client.name, getter.ticket, items, getter.complete
            out.append(Deliver(*about, None, None, getter.group, None, self.name))

    def _deliver_one(self, getter: AnyGetter, item: Item, out: list[Instruction]) -> None:
        """Give an item to a get that takes one."""
        getter.items = items = [item]
        self.delivering += 1
        self.on_the_way += 1
        out.append(delivered((getter.client.name, getter.ticket, items, True, *NOTHING, self.name)))

    def _let_ripen(self, getter: AnyGetter, out: list[Instruction]) -> None:
        """Let the time run that a batch waits for more than the least of it."""
        if not isinstance(getter.wanted, Wanted) or getter.ripens:
            return
        limits = getter.wanted.limits
        if limits.max_wait_s is not None and self.fifo.num_items >= limits.min_items:
            getter.ripens = True
            out.append(Ripen(getter.client.name, getter.ticket, limits.max_wait_s))

    def _park(self, getter: AnyGetter) -> None:
        """Pass over a getter whose client has enough on lease; the others do not wait for it."""
        del self.getters[getter]
        getter.client.leaves(getter)
        self.parked[getter] = getter.client.parked[getter] = None

    def _make_way(self, client: AnyClient) -> None:
        """Other queues pass over a client that has enough on lease now, too, where it is first in line."""
        if not self.tally.leases.is_at_bound(client):
            return
        first = (next(iter(queue.getters)) for queue in client.leasing if queue is not self)
        in_the_way = [getter for getter in first if getter.client is client and getter.terms is not None]
        for getter in sorted(in_the_way, key=_number_of):
            self.tally.touched[getter.queue] = None

    def _refuse_parked(self, closed: bool, out: list[Instruction]) -> None:
        """Tell those who were passed over that nothing more comes, and the first of them what is lost."""
        if not self._is_last(closed) or self.fifo.num_items or self._may_come_back():
            return
        for getter in list(self.parked):
            self.withdraw_get(getter)
            if self.lost:
                out.append(self._told_of_lost(getter))
                continue
            out.append(Refuse(getter.client.name, getter.ticket, self.why_over(closed), self.describe()))

    def _serve_shards(self, sharding: Sharding[AnyGetter], closed: bool, out: list[Instruction]) -> None:
        """Hand parts out, and cut steps while somebody waits for one."""
        while True:
            for getter, part in sharding.hand_out():
                getter.items, getter.part, getter.complete = part.items, part, part.complete
                about = getter.client.name, getter.ticket, part.items, part.complete
                out.append(Deliver(*about, part, queue=self.name))
            if not sharding.getters or not self._cut(sharding, closed):
                break
        reason = self._why_no_part(sharding, closed)
        for getter in sharding.getters if reason is not None else ():
            self.withdraw_get(getter)
            out.append(Refuse(getter.client.name, getter.ticket, reason or Reason.CLOSED, self.describe()))

    def _cut(self, sharding: Sharding[AnyGetter], closed: bool) -> bool:
        """Cut the next step if it is there, or if this is all that comes."""
        if not self.fifo.num_items or not sharding.may_cut:
            return False
        batch = self._take_batch(sharding.wanted, closed, waited=False)
        if batch is None:
            return False
        sharding.cut(*batch)
        if self.admission is not None:
            # A step of all ranks is one consumption: a part never comes back to the queue.
            self.admission.give(batch[0])
            self.admission.settle(batch[0])
        return True

    def _why_no_part(self, sharding: Sharding[AnyGetter], closed: bool) -> Reason | None:
        if self._is_last(closed):
            return None if self._may_come_back() or self.fifo.num_items else self.why_over(closed)
        return Reason.IMPOSSIBLE if sharding.may_cut and self._is_stuck() else None

    def _give_slots(self, admission: Admission, out: list[Instruction]) -> None:
        room = None
        if self.maxsize:  # a slot has room for its item
            room = self.maxsize - self.fifo.num_items - self.leased_items - len(admission.making)
        admission.serve(room, self.tally.clock.now, out)

    def _describe_head(self) -> str:
        head = self.fifo.head()
        if head is None:
            return "nothing"
        return f"an item of weight {rounded(head.weight):g} and {head.size_bytes} bytes"

    def drop_lost(self, failed: AnyGetter | None = None) -> None:
        """Take out what is lost; also of a delivery that did not arrive."""
        self.fifo.drop_lost()
        if self.sharding is not None:
            self.fifo.lost += self.sharding.drop_lost(None if failed is None else failed.part)

    def tell_of_lost(self, getter: AnyGetter, out: list[Instruction]) -> None:
        """Refuse a getter, and tell it of the items that are lost."""
        self._note_lost(out)
        out.append(self._told_of_lost(getter))

    def forget(self, items: Iterable[Item]) -> None:
        """Items were given for good, or are lost."""
        if self.admission is not None:
            self.admission.settle(items)

    def _note_lost(self, out: list[Instruction]) -> None:
        lost, self.fifo.lost = self.fifo.lost, []
        self.lost += lost
        self.forget(lost)
        self._count_lost(lost)
        for item in lost:
            item.payload = None
            if item.question is not None:
                out.append(Bury(*item.question, item.attempts, "", item.lost))

    def _count_lost(self, lost: list[Item]) -> None:
        self.tally.num_lost += len(lost)
        self.tally.lost_bytes += sum(item.size_bytes for item in lost)

    def _tell_of_lost(self, out: list[Instruction]) -> None:
        """Refuse the first getter in line: nobody else will hear of these items."""
        sharding = self.sharding
        getter = next(iter(self.getters), None) or next(iter(sharding.getters if sharding else ()))
        self.withdraw_get(getter)
        out.append(self._told_of_lost(getter))

    def _told_of_lost(self, getter: AnyGetter) -> Refuse:
        counts = Counter(item.lost for item in self.lost)
        self.lost = []
        state = "; ".join(f"{counted(count, 'item')} {why}" for why, count in counts.items())
        return Refuse(getter.client.name, getter.ticket, Reason.LOST, state)


def _number_of(getter: AnyGetter) -> int:
    return getter.number
