"""Items of a channel that stay on their producers' devices: in buckets, with the channel's process between.

Every process puts and gets; some have another device. The channel's process holds the block that stands for an item, a
getter copies it out of its bucket, or asks its producer, and then confirms. Around the real `ChannelState`, and the
machines of `buckets.py`. In the end each accepted item was taken by one, or named as lost, and all buckets are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from simulator.buckets import MAX_COPY_US, MIB, Block, BucketOwner, BucketReader, Retire
from simulator.cluster import Cluster, Part
from simulator.device_item_server import ItemBook, ItemServer
from simulator.device_item_wire import (
    DEVICE_ITEMS,
    PUTS_FROM,
    Confirm,
    Get,
    GetOver,
    Here,
    ItemAt,
    Opened,
    Put,
    PutOver,
    Read,
    ReadOut,
    Resend,
    Withdraw,
)
from simulator.host import Host
from simulator.script import Script
from simulator.world import Violation

EVERY, WHICH = 16, 9
"""Of so many stories this one is about such items: what is said there shifts all else."""
NUM_PUTS, NUM_GETS = 10, 9
TELLING_US = 3_000_000
MAX_WAIT_US, MAX_KEEP_US = 1_000_000, 600_000
ASK_AGAIN_US = 50_000
# Who cannot reach a producer for so long, and whom the channel's process does not hold for gone, gives its item back.
MAX_ASKED_AGAIN = 200


class ItemUser:
    """A process that puts items and takes them."""

    def __init__(
        self, host: Host, place: int, server: Host, owner: BucketOwner, reader: BucketReader, book: ItemBook
    ) -> None:
        self.host = host
        self.owner = owner
        self.reader = reader
        self._server = server
        self._book = book
        self._draw = draw = host.world.randomness(DEVICE_ITEMS, host.name)
        self._device = draw.choice(("one", "one", "another"))
        self._first = PUTS_FROM + place * NUM_PUTS
        # The blocks of all items that it put, and of those that are on their way.
        self._blocks: dict[int, Block] = {}
        self._puts: dict[int, Block] = {}
        # The gets that are not over, each with what it got.
        self._gets: dict[int, ItemAt | None] = {}
        self._asked: dict[int, str] = {}
        self._asked_again = 0
        self._lost_peers: set[str] = set()
        host.serve(DEVICE_ITEMS, self)
        for number in range(NUM_PUTS):
            host.later(draw.randrange(TELLING_US), self._put, self._first + number)
        for ticket in range(NUM_GETS):
            host.later(draw.randrange(TELLING_US), self._get, ticket)

    def receive(self, sender: str, message: Any) -> None:
        """A message came."""
        match message:
            case PutOver(number) if number in self._puts:
                self.owner.drop(self._puts.pop(number))
            case Here(ticket, item) if ticket in self._gets:
                self._land(ticket, item)
            case GetOver(ticket):
                self._over(ticket)
            case Opened(bucket):
                self.owner.opened(bucket, sender)
            case Read(ticket, item):
                self._read_out(sender, ticket, item)
            case ReadOut(ticket, is_there):
                self._on_read(ticket, is_there=is_there)
            case Retire(key):
                self.reader.retire(key)

    def lost(self, peer: str) -> None:
        """The session with `peer` has ended: nothing more comes from it, nothing more arrives there."""
        self._lost_peers.add(peer)
        self.owner.lost_peers.add(peer)
        self.reader.lose(peer)
        for ticket in [ticket for ticket, asked in self._asked.items() if asked == peer]:
            del self._asked[ticket]
            self._ask_again(ticket)
        if peer == self._server.name:
            for number in list(self._puts):
                self.owner.drop(self._puts.pop(number))
            for ticket in list(self._gets):
                self._over(ticket)

    def check_rest(self) -> None:
        """Check, when the world is at rest and the channel is closed, that nobody waits."""
        if self.host.alive and (self._gets or self._puts):
            waits = f"gets {sorted(self._gets)} and puts {sorted(self._puts)}"
            raise Violation(f"{self.host.name} waits with {waits} of items on devices", (self.host.name,))

    # -- putting -----------------------------------------------------------------------------------

    def _put(self, number: int) -> None:
        bucket = self.owner.take(self._draw.choice((2, 4, 7)) * MIB)
        if bucket is not None:  # else it would go through host memory
            self.host.later(self._draw.randrange(MAX_COPY_US), self._filled, number, bucket)

    def _filled(self, number: int, bucket: int) -> None:
        if self._draw.random() < 0.1 or self._server.name in self._lost_peers:
            self.owner.give_back(bucket)
            return
        block = self._puts[number] = self._blocks[number] = self.owner.filled(bucket, number)
        at = (block.index, block.generation, bucket, self.owner.key(bucket))
        item = ItemAt(number, self.host.name, self._device, *at)
        self.host.send(self._server.name, DEVICE_ITEMS, Put(item))

    def _read_out(self, reader: str, ticket: int, item: ItemAt) -> None:
        # Who asked may have given up, and another one taken it, before this process comes to it.
        is_lent = self.owner.is_lent(self._blocks[item.number])
        if not is_lent or self.owner.memory[item.bucket].content != item.number:
            self.host.send(reader, DEVICE_ITEMS, ReadOut(ticket, is_there=False))
            return
        answer = partial(self.host.send, reader, DEVICE_ITEMS, ReadOut(ticket, is_there=True))
        self._copy_own(item, answer)

    def _copy_own(self, item: ItemAt, then: Callable[[], None]) -> None:
        """Copy what lies in a bucket of this process's; nothing else is put there meanwhile."""
        memory, block = self.owner.memory[item.bucket], self._blocks[item.number]
        memory.reading.append(self.host.name)
        block.uses += 1

        def copied() -> None:
            memory.reading.remove(self.host.name)
            self.owner.drop(block)
            then()

        self.host.later(self._draw.randrange(MAX_COPY_US), copied)

    # -- getting -----------------------------------------------------------------------------------

    def _get(self, ticket: int) -> None:
        if self._server.name in self._lost_peers:
            return
        self._gets[ticket] = None
        self.host.send(self._server.name, DEVICE_ITEMS, Get(ticket))
        if self._draw.random() < 0.4:
            self.host.later(self._draw.randrange(MAX_WAIT_US), self._withdraw, ticket)

    def _withdraw(self, ticket: int) -> None:
        """Its user was interrupted, or its time is over; what came is given back."""
        if ticket in self._gets:
            self.host.send(self._server.name, DEVICE_ITEMS, Withdraw(ticket))
            self._over(ticket)

    def _land(self, ticket: int, item: ItemAt) -> None:
        if self._gets[ticket] is None:
            self._gets[ticket] = item
            is_there = self.reader.hold(item.producer, item.block, item.generation)
            if not is_there and self._server.alive and self.host.name not in self._book.given_up:
                raise Violation(
                    f"{self.host.name} is given item {item.number}, which is gone", (item.number,)
                )
            if not is_there:  # this process will hear of its own end, or of the channel's
                self.reader.release(item.producer, item.block)
                self._gets[ticket] = None
                return
        if item.producer == self.host.name:
            self._copy_own(item, partial(self._take, ticket, item))
            return
        if item.device != self._device or not self._opens(item):
            self._ask(ticket, item)
            return
        self.reader.buckets.begin(item.key)
        # The bucket is in use, and the item held, until it was copied, whatever becomes of the get.
        self.reader.hold(item.producer, item.block, item.generation)
        waits_us = self._draw.choice((1_000, MAX_COPY_US, MAX_KEEP_US))
        self.host.later(self._draw.randrange(waits_us), self._begin, ticket, item)

    def _opens(self, item: ItemAt) -> bool:
        """Open its bucket; whether that can be."""
        # Sessions do not begin anew here: whoever has lost a producer would not hear that it gives the bucket up.
        is_there = item.producer not in self._lost_peers and self.reader.owner(item.producer).host.alive
        if item.key not in self.reader.buckets and not is_there:
            return False
        if self.reader.open(item.key, item.bucket):
            self.host.send(item.producer, DEVICE_ITEMS, Opened(item.bucket))
        return True

    def _begin(self, ticket: int, item: ItemAt) -> None:
        self.reader.begin(item.number, item.key)
        self.host.later(self._draw.randrange(MAX_COPY_US), self._end, ticket, item)

    def _end(self, ticket: int, item: ItemAt) -> None:
        self.reader.end(item.number, item.key)
        self.reader.release(item.producer, item.block)
        self._take(ticket, item)

    def _ask(self, ticket: int, item: ItemAt) -> None:
        if item.producer in self._lost_peers:
            self._ask_again(ticket)
        else:
            self._asked[ticket] = item.producer
            self.host.send(item.producer, DEVICE_ITEMS, Read(ticket, item))

    def _on_read(self, ticket: int, *, is_there: bool) -> None:
        self._asked.pop(ticket, None)
        item = self._gets.get(ticket)
        if item is None:
            return
        if not is_there:
            raise Violation(f"item {item.number} is not where its holder reads it", (item.number,))
        self._take(ticket, item)

    def _ask_again(self, ticket: int) -> None:
        """The channel's process knows, or will soon, whether the producer is gone."""
        self._asked_again += 1
        if self._asked_again > MAX_ASKED_AGAIN:
            self._withdraw(ticket)
        elif ticket in self._gets:
            self.host.later(ASK_AGAIN_US, self._resend, ticket)

    def _resend(self, ticket: int) -> None:
        if ticket in self._gets:
            self.host.send(self._server.name, DEVICE_ITEMS, Resend(ticket))

    def _take(self, ticket: int, item: ItemAt) -> None:
        if self._gets.get(ticket) != item:
            return
        if self._draw.random() < 0.1:
            self._withdraw(ticket)
            return
        self._book.take(item.number, self.host.name)
        self.host.world.note(self.host.name, "takes", item.number)
        # It says so with what it says next; what is marked until then counts as taken.
        said_us = self._draw.choice((0, 2_000, 200_000))
        self.host.later(said_us, self.host.send, self._server.name, DEVICE_ITEMS, Confirm(ticket))
        self._over(ticket)

    def _over(self, ticket: int) -> None:
        """A get has ended."""
        item = self._gets.pop(ticket, None)
        self._asked.pop(ticket, None)
        if item is not None:
            self.reader.release(item.producer, item.block)


class DeviceItemsPart(Part):
    """The server holds a channel, and all others put items that stay on their devices."""

    def __init__(self, cluster: Cluster, script: Script) -> None:
        del script
        self._cluster = cluster
        self._book = ItemBook()
        self._owners: dict[str, BucketOwner] = {}
        self._users: dict[str, ItemUser] = {}
        self._server: ItemServer | None = None
        if cluster.world.seed % EVERY == WHICH:
            self._server = ItemServer(cluster.server, self._reader(cluster.server, 0), cluster, self._book)

    def start(self, host: Host, number: int) -> None:
        """A process has started."""
        server = self._server
        if server is not None and number >= 0:
            owner = self._owners[host.name] = BucketOwner(host, DEVICE_ITEMS, self._cluster.machines)
            place = len(self._users)
            reader = self._reader(host, 1 + place)
            self._users[host.name] = ItemUser(host, place, server.host, owner, reader, self._book)

    def died(self, host: Host) -> None:
        """A process has died."""
        if host.name in self._users:
            self._users[host.name].reader.died()
        elif self._server is not None and host is self._server.host:
            self._server.reader.died()

    def finish(self) -> Iterator[None]:
        """End the story and check it; the world comes to rest before the first step, and after each."""
        server = self._server
        if server is None:
            return
        if server.host.alive:
            server.close()
            yield
        for user in self._users.values():
            user.check_rest()
        if server.host.alive:
            server.drain()
            self._book.check_end()
        living = [user for user in self._users.values() if user.host.alive]
        for user in living:
            user.reader.check_closed()
            user.owner.retire_all()
        yield
        for user in living:
            user.owner.check_empty()

    def _reader(self, host: Host, slot: int) -> BucketReader:
        return BucketReader(host, slot, self._owners, self._cluster.machines)
