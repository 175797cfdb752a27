"""One queue of a channel: its items, the line of getters, the line of puts, and what follows when one of them changes.

Rules:

- Getters are served in order of arrival, `get` and `get_batch` in one line; a waiting getter holds nothing.
- Puts enter in order of arrival. Those that find no room wait in line.
- A put may announce its item and send the bytes once it has room (a *reservation*). Later puts of the same
  client enter behind it, other clients' pass it: a slow producer holds up nobody else.
- A queue that has ended takes no further put. Those that came before still enter; then a batch gets what is left,
  and who asks after that is told that the queue has ended.
- A flush says that a batch need not wait for more than what came before it.
- Items in delivery (taken, not yet confirmed) do not count against the bound, unless they are lent. Otherwise
  every put to a full queue would wait for a consumer's confirmation. Giving back never waits: it may exceed the
  bound, and no put enters until the queue is below it again.

What may enter is for its gate to say, and how items leave for its getters and its parts. Every method appends what is
to be done to `out`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, islice

from rlinf_scheduler.queueing.contents import Contents
from rlinf_scheduler.queueing.item import Item, SubscriptionName, rounded
from rlinf_scheduler.queueing.messages import (
    Bury,
    Grant,
    Instruction,
    Reason,
    Refuse,
    Ripen,
    accepted,
    delivered,
)
from rlinf_scheduler.queueing.operations import Client, Getter, Putter
from rlinf_scheduler.queueing.wanted import Wanted, WantedGroup
from rlinf_scheduler.wording import counted, number_text

# Of a delivery of one item: how it was given, and its group.
NOTHING = (None, None)


class Queue(Contents):
    """The lines of one queue, and what moves them."""

    __slots__ = ()

    # -- puts ------------------------------------------------------------------------------------

    def has_room(self, size_bytes: int) -> bool:
        """Return whether an item of this size may enter."""
        return self.gate.has_room(self, size_bytes)

    def may_push(self, client: Client, size_bytes: int) -> bool:
        """Return whether an item of this size, all of which is here, may enter now: nothing stands before it."""
        return not self.putters and client not in self.streams and self.has_room(size_bytes)

    def push(self, client: Client, ticket: int, item: Item, out: list[Instruction]) -> None:
        """Let the item of a put enter."""
        self.gate.enter(item)
        self.fifo.push(item)
        self._note_entered(item)
        for follower in self.followers:
            follower.see(item)
        self.touch_followers()
        out.append(accepted((client.name, ticket)))

    def put(self, putter: Putter, out: list[Instruction]) -> None:
        """Let a put enter, or stand in line."""
        if self.putters or not self.has_room(putter.item.size_bytes):
            self.load_put(putter, has_room=False)
        else:
            self._enter(putter, out)
        self.count()

    def fill(self, putter: Putter, out: list[Instruction]) -> None:
        """Let a reservation enter, whose bytes are here, and complete puts right behind it."""
        putter.complete = True
        stream = self.streams[putter.client]
        while stream and stream[0].complete:
            entering = stream.popleft()
            self._unreserve(entering)
            del entering.client.operations[entering.ticket]
            self.push(entering.client, entering.ticket, entering.item, out)
        if not stream:
            del self.streams[putter.client]

    def load_put(self, putter: Putter, *, has_room: bool) -> None:
        """Have a put that is not over: one with room, or the last in line."""
        putter.client.operations[putter.ticket] = putter
        putter.has_room = has_room
        if has_room:
            self.reserve(1, putter.item.size_bytes)
            self.streams.setdefault(putter.client, deque()).append(putter)
        else:
            self.putters[putter] = None

    def withdraw_put(self, putter: Putter) -> None:
        """Forget an unfinished put; its room is free again."""
        del putter.client.operations[putter.ticket]
        self.gate.drop_put(putter.item)
        if not putter.has_room:
            del self.putters[putter]
            return
        self._unreserve(putter)
        stream = self.streams[putter.client]
        stream.remove(putter)
        if not stream:
            del self.streams[putter.client]

    def release_stream(self, client: Client, out: list[Instruction]) -> None:
        """Push the complete puts that a withdrawn reservation of `client` was holding back."""
        stream = self.streams.get(client)
        if stream and stream[0].complete:
            self.fill(stream[0], out)

    def refuse_puts(self, out: list[Instruction]) -> None:
        """Fail every unfinished put: the channel is closed."""
        waiting = [putter for stream in self.streams.values() for putter in stream]
        for putter in waiting:
            self._unreserve(putter)
        for putter in (*waiting, *self.putters):
            del putter.client.operations[putter.ticket]
            self.gate.drop_put(putter.item)
            out.append(Refuse(putter.client.name, putter.ticket, Reason.CLOSED, self.describe()))
        self.putters.clear()
        self.streams.clear()

    def reserve(self, num_items: int, size_bytes: int) -> None:
        """Count so much more as on its way here."""
        self.reserved += num_items
        self.reserved_bytes += size_bytes
        self.tally.reserved_bytes += size_bytes

    def _unreserve(self, putter: Putter) -> None:
        self.reserve(-1, -putter.item.size_bytes)

    def _enter(self, putter: Putter, out: list[Instruction]) -> None:
        """Give a put room: push it, or let it wait for its bytes or those of its client's earlier puts."""
        if putter.complete and putter.client not in self.streams:
            putter.client.operations.pop(putter.ticket, None)
            self.push(putter.client, putter.ticket, putter.item, out)
            return
        self.load_put(putter, has_room=True)
        if not putter.complete:
            out.append(Grant(putter.client.name, putter.ticket))

    def _note_entered(self, item: Item) -> None:
        tally = self.tally
        item.since = tally.clock.now
        tally.num_items += 1
        tally.size_bytes += item.size_bytes
        for watch in tally.watches:
            watch.note(self.name, item)

    def _let_enter(self, out: list[Instruction]) -> bool:
        """Let waiting puts enter while there is room; say whether any item was pushed."""
        before = self.fifo.num_items
        while self.putters and self.has_room(next(iter(self.putters)).item.size_bytes):
            putter, _ = self.putters.popitem(last=False)
            self._enter(putter, out)
        return self.fifo.num_items > before

    # -- gets ------------------------------------------------------------------------------------

    def get(self, getter: Getter) -> None:
        """Let a getter stand in line; `settle` serves the line."""
        getter.client.operations[getter.ticket] = getter
        tally = self.tally
        tally.num_gets += 1
        getter.number = tally.num_gets
        getter.line_up()

    def withdraw_get(self, getter: Getter) -> None:
        """Forget a waiting getter."""
        del getter.client.operations[getter.ticket]
        getter.leave()

    def settle(self, closed: bool, out: list[Instruction]) -> None:
        """Serve getters and let puts enter until neither line can move."""
        if self.fifo.lost:
            self._note_lost(out)
        if self.lost and self.awaited:
            self._tell_first_of_lost(out)
        self.gate.serve(out)
        self._serve(closed, out)
        self.parts.serve(self, closed, out)
        while self.putters and self._let_enter(out):
            self._serve(closed, out)
            self.parts.serve(self, closed, out)
        if self.skipped:
            self._refuse_skipped(closed, out)
        self.gate.serve(out)
        self.count()

    def _serve(self, closed: bool, out: list[Instruction]) -> None:
        """Serve the line of getters from its head while it can be."""
        getters = self.getters
        while getters:
            getter = next(iter(getters)).stand_in()
            if not getter.may_have_more:
                getter.skip()
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
            getter.leave()
            self.gate.give(items)
            getter.give(items, out)

    def _match(self, getter: Getter, closed: bool) -> list[Item] | None:
        """Take what the first getter in line asked for; None when it is not all there."""
        if not self.fifo.num_items:
            return None
        wanted = getter.wanted
        if wanted is None:
            return [getter.take_one()] if self.gate.num_free(self) > 0 else None
        if isinstance(wanted, WantedGroup):
            return self._match_group(getter, wanted, closed)
        return self._match_batch(getter, wanted, closed)

    def _match_batch(self, getter: Getter, wanted: Wanted, closed: bool) -> list[Item] | None:
        return wanted.match(self, getter, closed)

    def _match_group(self, getter: Getter, wanted: WantedGroup, closed: bool) -> list[Item] | None:
        return wanted.match(self, getter, closed)

    def _hopeless(self, getter: Getter, closed: bool) -> Reason | None:
        """Return why the first getter in line can never be served; None while it may.

        A closed channel, and an ended queue, waits for the items on their way: each arrives or comes back. It waits for
        those that are lent, too.
        """
        if isinstance(getter.wanted, Wanted) and getter.wanted.refuses(self.fifo):
            return Reason.OVERSIZE
        if self.is_last(closed):
            if self.gate.keeps_rest and self.fifo.num_items:
                return None
            return None if self.may_come_back() else self.why_over(closed)
        return Reason.IMPOSSIBLE if getter.wanted is not None and self.is_stuck() else None

    def is_stuck(self) -> bool:
        """Return whether nothing can enter before something is taken.

        Only the items at hand count. Waiting puts cannot enter before the first getter is served, and items in
        delivery come back only when their consumer is lost.
        """
        if self.gate.num_free(self) < self.fifo.num_items:
            return False  # it waits for what is not here
        if 0 < self.gate.maxsize <= len(self.fifo) or 0 < self.gate.max_bytes <= self.fifo.size_bytes:
            return True
        if not self.putters or self.reserved or self.num_lent:
            return False
        return not self.has_room(next(iter(self.putters)).item.size_bytes)

    def is_last(self, closed: bool) -> bool:
        """Return whether nothing will be put any more."""
        return (closed or self.ended) and not (self.putters or self.reserved)

    def may_come_back(self) -> bool:
        """Return whether items that were taken may come back."""
        return self.on_the_way > 0 or self.num_lent > 0

    def is_flushed(self) -> bool:
        """Return whether something is here that is not to wait for more."""
        return self.flushed > 0 and self.fifo.oldest() < self.flushed

    def flush(self) -> None:
        """Let batches take what came until now, whether it reaches their weight or not."""
        self.flushed = self.fifo.num_entered

    @staticmethod
    def why_over(closed: bool) -> Reason:
        """Return why nothing can be put any more."""
        return Reason.CLOSED if closed else Reason.ENDED

    def _let_ripen(self, getter: Getter, out: list[Instruction]) -> None:
        """Let the time run that a batch waits for more than the least of it."""
        if not isinstance(getter.wanted, Wanted) or getter.ripens:
            return
        limits = getter.wanted.limits
        if limits.max_wait_s is not None and self.fifo.num_items >= limits.min_items:
            getter.ripens = True
            out.append(Ripen(getter.client.name, getter.ticket, limits.max_wait_s))

    def _refuse_skipped(self, closed: bool, out: list[Instruction]) -> None:
        """Tell those who were skipped that nothing more comes, and the first of them what is lost."""
        if not self.is_last(closed) or self.fifo.num_items or self.may_come_back():
            return
        for getter in list(self.skipped):
            self.withdraw_get(getter)
            if self.lost:
                out.append(self._refused_for_lost(getter))
                continue
            out.append(Refuse(getter.client.name, getter.ticket, self.why_over(closed), self.describe()))

    def _describe_head(self) -> str:
        head = self.fifo.head()
        if head is None:
            return "nothing"
        return f"an item of weight {number_text(rounded(head.weight))} and {counted(head.size_bytes, 'byte')}"

    # -- losses ----------------------------------------------------------------------------------

    def drop_lost(self, failed: Getter | None = None) -> None:
        """Take out what is lost; also of a delivery that did not arrive."""
        self.fifo.drop_lost()
        self.fifo.lost += self.parts.drop_lost(failed)

    def tell_of_lost(self, getter: Getter, out: list[Instruction]) -> None:
        """Refuse a getter, and tell it of the items that are lost."""
        self._note_lost(out)
        out.append(self._refused_for_lost(getter))

    def _note_lost(self, out: list[Instruction]) -> None:
        """Note what was taken out since: getters are to be told, and who has asked."""
        lost, self.fifo.lost = self.fifo.lost, []
        self.lost += lost
        self.gate.forget(lost)
        if type(self.name) is not SubscriptionName:  # what one sees is counted where it was put
            self.tally.num_lost += len(lost)
            self.tally.lost_bytes += sum(item.size_bytes for item in lost)
        for item in lost:
            item.payload = None
            if item.question is not None:
                out.append(Bury(*item.question, item.attempts, "", item.lost))

    def _tell_first_of_lost(self, out: list[Instruction]) -> None:
        """Refuse the first getter in line: nobody else will hear of these items."""
        getter = next(chain(self.getters, self.parts.getters))
        self.withdraw_get(getter)
        out.append(self._refused_for_lost(getter))

    def _refused_for_lost(self, getter: Getter) -> Refuse:
        counts = Counter(item.lost for item in self.lost)
        self.lost = []
        state = "; ".join(f"{counted(count, 'item')} {why}" for why, count in counts.items())
        return Refuse(getter.client.name, getter.ticket, Reason.LOST, state)

    # -- deliveries ------------------------------------------------------------------------------

    def waits_for(self, getter: Getter, closed: bool) -> bool:
        """Return whether this queue has ended, and waits for the items of a delivery to arrive."""
        is_on_the_way = getter.counts and getter.items is not None and not getter.arrived
        return is_on_the_way and (closed or self.ended)

    def arrive(self, getter: Getter) -> None:
        """Note that the delivered items are in the client's process, where nobody has taken them yet."""
        if getter.counts and not getter.arrived:
            self.on_the_way -= 1
        getter.arrived = True

    def confirm(self, getter: Getter) -> None:
        """Note that the delivered items were taken: they are the consumer's now."""
        self._end_delivery(getter)
        if getter.counts and not self.gate.is_plain:
            self.gate.forget(getter.items or ())

    def _end_delivery(self, getter: Getter) -> None:
        del getter.client.operations[getter.ticket]
        if getter.counts:
            self.delivering -= 1
            if not getter.arrived:
                self.on_the_way -= 1
        getter.arrived = True

    def give_back(self, getters: Iterable[Getter]) -> None:
        """Put items in delivery back to the head, in their original order."""
        returned: list[Item] = []
        for getter in getters:
            self._end_delivery(getter)
            # What does not count is kept elsewhere anyhow.
            if getter.counts:
                returned.extend(getter.items or ())
                getter.items = None  # who has looked at this delivery sees that it came to nothing
        self.restore(returned)

    def restore(self, items: Collection[Item]) -> None:
        """Put items that were taken back to the head, each at its old place."""
        self.gate.take_back(items)
        self.fifo.restore(items)

    def reopen(self, item: Item) -> None:
        """Put an item that was given for good back to its old place.

        Raises:
            ValueError: it would be taken too late.
        """
        self.gate.reopen(item)
        self.fifo.restore((item,))

    def describe_readers(self, names: Mapping[str, str]) -> str:
        """Return what it sees of others and who reads it, by the names of clients; empty if it sees none."""
        return ""

    # -- runs ------------------------------------------------------------------------------------

    def put_run(self, client: Client, puts: Sequence[tuple[int, Item]], out: list[Instruction]) -> int:
        """Take items of puts, as long as that is simple, and say how many; it is open."""
        count = 0
        # Who waits for one item has had all that there were; one that is lent may take the room of the next.
        if self.getters and not (self.putters or self.fifo.num_items or self.lent_items):
            count = self._hand_over(client, puts, out)
        if not self.getters:
            if not self.putters:
                count += self._push_run(client, islice(puts, count, None), out)
            count += self._line_up(client, islice(puts, count, None))
            self.count()
        return count

    def _hand_over(self, client: Client, puts: Iterable[tuple[int, Item]], out: list[Instruction]) -> int:
        """Give items to gets that wait for one each; nothing is here."""
        getters = self.getters
        count = 0
        for ticket, item in puts:
            getter = next(iter(getters), None)
            if getter is None or getter.wanted is not None or not getter.counts or item.is_special:
                break
            del getters[getter]
            self.fifo.pass_by(item)
            self._note_entered(item)
            out.append(accepted((client.name, ticket)))
            self._deliver_one(getter, item, out)
            count += 1
        return count

    def _push_run(self, client: Client, puts: Iterable[tuple[int, Item]], out: list[Instruction]) -> int:
        """Let items enter as long as there is room; nobody waits here."""
        num_free, free_bytes = self.gate.free(self)
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

    def _line_up(self, client: Client, puts: Iterable[tuple[int, Item]]) -> int:
        """Let puts wait for which there is no room, or before which others do; nobody waits for items."""
        count = 0
        for ticket, item in puts:
            if not self.putters and self.has_room(item.size_bytes):
                break
            putter = Putter(client, ticket, self, item, complete=True, since=self.tally.clock.now)
            self.load_put(putter, has_room=False)
            count += 1
        return count

    def get_run(self, client: Client, tickets: Iterable[int], out: list[Instruction]) -> None:
        """Give an item to each get, as long as there are any, and let the others stand in line; it is open."""
        fifo, getters, tally = self.fifo, self.getters, self.tally
        is_first, now = not getters, tally.clock.now
        for ticket in tickets:
            tally.num_gets += 1
            getter = Getter(client, ticket, self, None, now, tally.num_gets)
            client.operations[ticket] = getter
            if is_first and fifo.num_items:
                self._deliver_one(getter, fifo.take(), out)
                if self.putters:  # what enters now may be for the next one: it may have a priority
                    self._let_enter(out)
            else:
                getters[getter] = None
                if self.putters:
                    self.settle(False, out)
        self.count()

    def _deliver_one(self, getter: Getter, item: Item, out: list[Instruction]) -> None:
        """Give an item to a get that takes one."""
        getter.items = items = [item]
        self.delivering += 1
        self.on_the_way += 1
        out.append(delivered((getter.client.name, getter.ticket, items, True, *NOTHING, self.name)))
