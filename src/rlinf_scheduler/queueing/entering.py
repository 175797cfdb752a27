"""How items enter a queue: the line of puts, and those whose bytes are on their way."""

from __future__ import annotations

from collections import deque

from rlinf_scheduler.queueing.bounded import BoundedQueue
from rlinf_scheduler.queueing.instructions import Grant, Instruction, Reason, Refuse, accepted
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.operations import AnyClient, AnyGetter, AnyPutter


class EnteringQueue(BoundedQueue):
    """Lets puts enter while there is room, in order."""

    __slots__ = ()

    def put(self, putter: AnyPutter, out: list[Instruction]) -> None:
        """Let a put enter, or stand in line."""
        if self.putters or not self.has_room(putter.item.size_bytes):
            self.load_put(putter, has_room=False)
        else:
            self._enter(putter, out)
        self.count()

    def _enter(self, putter: AnyPutter, out: list[Instruction]) -> None:
        """Give a put room: push it, or let it wait for its bytes or those of its client's earlier puts."""
        if putter.complete and putter.client not in self.streams:
            putter.client.operations.pop(putter.ticket, None)
            self.push(putter.client, putter.ticket, putter.item, out)
            return
        self.load_put(putter, has_room=True)
        if not putter.complete:
            out.append(Grant(putter.client.name, putter.ticket))

    def fill(self, putter: AnyPutter, out: list[Instruction]) -> None:
        """The bytes of a reservation are here: it enters, and complete puts right behind it too."""
        putter.complete = True
        stream = self.streams[putter.client]
        while stream and stream[0].complete:
            entering = stream.popleft()
            self._unreserve(entering)
            del entering.client.operations[entering.ticket]
            self.push(entering.client, entering.ticket, entering.item, out)
        if not stream:
            del self.streams[putter.client]

    def load_put(self, putter: AnyPutter, *, has_room: bool) -> None:
        """Have a put that is not over: one with room, or the last in line."""
        self._remember(putter)
        putter.has_room = has_room
        if has_room:
            self.reserve(1, putter.item.size_bytes)
            self.streams.setdefault(putter.client, deque()).append(putter)
        else:
            self.putters[putter] = None

    def withdraw_put(self, putter: AnyPutter) -> None:
        """Forget an unfinished put; its room is free again."""
        del putter.client.operations[putter.ticket]
        self._unuse(putter)
        if not putter.has_room:
            del self.putters[putter]
            return
        self._unreserve(putter)
        stream = self.streams[putter.client]
        stream.remove(putter)
        if not stream:
            del self.streams[putter.client]

    def release_stream(self, client: AnyClient, out: list[Instruction]) -> None:
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
            self._unuse(putter)
            out.append(Refuse(putter.client.name, putter.ticket, Reason.CLOSED, self.describe()))
        self.putters.clear()
        self.streams.clear()

    def reserve(self, num_items: int, size_bytes: int) -> None:
        """So much more is on its way here."""
        self.reserved += num_items
        self.reserved_bytes += size_bytes
        self.tally.reserved_bytes += size_bytes

    def _unreserve(self, putter: AnyPutter) -> None:
        self.reserve(-1, -putter.item.size_bytes)

    def may_push(self, client: AnyClient, size_bytes: int) -> bool:
        """Whether an item of this size, all of which is here, may enter now: nothing stands before it."""
        return not self.putters and client not in self.streams and self.has_room(size_bytes)

    def push(self, client: AnyClient, ticket: int, item: Item, out: list[Instruction]) -> None:
        """The item of a put enters."""
        if self.admission is not None:
            self.admission.enter(item)
        self.fifo.push(item)
        self._note_entered(item)
        if self.taps:
            for tap in self.taps:
                tap.see(item)
            self.touch_taps()
        out.append(accepted((client.name, ticket)))

    def _note_entered(self, item: Item) -> None:
        tally = self.tally
        item.since = tally.clock.now
        tally.num_items += 1
        tally.size_bytes += item.size_bytes
        for watch in tally.watches:
            watch.note(self.name, item)

    def _unuse(self, putter: AnyPutter) -> None:
        if self.admission is not None:
            self.admission.unuse(putter.item.slot)

    def _remember(self, operation: AnyGetter | AnyPutter) -> None:
        operation.client.operations[operation.ticket] = operation

    def _admit(self, out: list[Instruction]) -> bool:
        """Let waiting puts enter while there is room; say whether any item was pushed."""
        before = self.fifo.num_items
        while self.putters and self.has_room(next(iter(self.putters)).item.size_bytes):
            putter, _ = self.putters.popitem(last=False)
            self._enter(putter, out)
        return self.fifo.num_items > before
