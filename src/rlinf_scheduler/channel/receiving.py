"""From what a channel's server delivers to items: from its message, or from where they are held, or lie on a device.

Everything is on the I/O thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.batch import Delivery
from rlinf_scheduler.channel.client_parts import ClientParts
from rlinf_scheduler.channel.held import Fetching, HeldAt
from rlinf_scheduler.channel.operation import ChannelOperation
from rlinf_scheduler.channel.placed import PlacedItems, UnderWay
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.loop import run_guarded
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.payload import ReceivedPayload, is_here
from rlinf_scheduler.errors import SharedMemoryUnreadable

logger = Reporter(__name__)

# Items whose producer cannot be reached are asked for again after so long, and longer each time.
ASK_AGAIN_S = 0.05
MAX_ASK_AGAIN_S = 2.0


class Receiving:
    """Receives the items of one channel.

    Args:
        client: this process's of that channel.
        on_devices: of a channel whose items may lie on devices.
    """

    def __init__(
        self, client: ClientParts, messenger: Messenger, on_devices: PlacedItems | None = None
    ) -> None:
        self._client = client
        self._messenger = messenger
        self._on_devices = on_devices
        self._fetches: dict[int, UnderWay] = {}
        # For how long those have waited the last time that are to be asked for again.
        self._pauses_s: dict[int, float] = {}

    def receive_run(self, answer: wire.Handed, frames: Iterator[Buffer]) -> None:
        """Receive what was delivered to several operations, one item each."""
        told = wire.Delivered(0, [answer.num_frames], by=answer.by)  # the same of each of them
        for ticket, *part in zip(answer.tickets, *[frames] * answer.num_frames, strict=False):
            self._receive(ticket, told, [part])

    def receive(self, ticket: int, answer: wire.Delivered, frames: Iterator[Buffer]) -> None:
        """Receive what was delivered to an operation."""
        # All that is the delivery's, before anything can go wrong: the rest belongs to others.
        self._receive(ticket, answer, [list(islice(frames, count)) for count in answer.num_frames])

    def _receive(self, ticket: int, answer: wire.Delivered, parts: list[list[Buffer]]) -> None:
        client = self._client
        operation = client.operations.get(ticket)
        if operation is None:
            # Nobody has asked for it any more; an answer to a withdrawal that was on its way does no harm.
            client.outbox.append((wire.Withdraw(ticket), []))
            return
        try:
            items = self._items(operation, answer, parts)
        except Exception as error:  # the other answers in this message are not to wait in vain
            logger.exception("channel '%s': a delivery cannot be received", client.name)
            client.refuse(ticket, repr(error))
            return
        if items is not None:
            # Its caller may have them before anything goes wrong here: then they are not given to another one.
            run_guarded(client.on_items, ticket, items)

    def _items(
        self, operation: ChannelOperation, answer: wire.Delivered, parts: list[list[Buffer]]
    ) -> Delivery | None:
        """Return what was delivered to an operation; None if it comes later. Whatever is raised, it cannot be had.

        What is told of several deliveries alike has no ticket.
        """
        if len(parts) == 1 and is_here(parts[0]) and self._on_devices is None:  # as mostly
            items = Delivery((ReceivedPayload(parts[0]),))
            items.told = answer
            return items
        if all(map(is_here, parts)):
            return self._landed(operation, Delivery.of(answer, map(ReceivedPayload, parts)))
        try:
            held = [HeldAt.from_frames(part) or part for part in parts]
            if held != parts:  # an element that is the same object is not looked into
                self._fetch(operation, answer, held)
                return None
            return self._landed(operation, Delivery.of(answer, map(self._messenger.payloads.receive, parts)))
        except SharedMemoryUnreadable as error:
            logger.warning("channel '%s': %s; its items are asked for as bytes", self._client.name, error)
            self._resend(operation.ticket)
            return None

    @property
    def is_fetching(self) -> bool:
        """Whether items are on their way from where they are held."""
        return bool(self._fetches)

    def stop(self, ticket: int) -> UnderWay | None:
        """Nobody wants the items of an operation any more, or they are here; what was fetched of them until now."""
        self._pauses_s.pop(ticket, None)
        return self._stop_fetch(ticket)

    def _stop_fetch(self, ticket: int) -> UnderWay | None:
        fetch = self._fetches.pop(ticket, None)
        if fetch is not None:
            fetch.cancel()
            operation = self._client.operations.get(ticket)
            if operation is not None and operation.has_hooks:
                operation.over(self._client)
        return fetch

    def clear(self) -> None:
        """Forget everything."""
        for fetch in self._fetches.values():
            fetch.cancel()
        self._fetches.clear()
        self._pauses_s.clear()

    def _fetch(
        self, operation: ChannelOperation, answer: wire.Delivered, parts: list[list[Buffer] | HeldAt]
    ) -> None:
        """Items of a delivery are still where their producers wrote them."""
        fetching = Fetching(self._messenger, parts, partial(self._on_fetched, operation, answer))
        self._begin(operation, answer, fetching)

    def _landed(self, operation: ChannelOperation, items: Delivery) -> Delivery | None:
        """The items, if none of them lies on a device; the others come later."""
        there = self._on_devices
        if there is None or not any(there.has(item.frames()) for item in items):
            return items
        done = partial(self._on_landed, operation.ticket, items.told)
        self._begin(operation, items.told, there.landing(items, done))
        return None

    def _begin(self, operation: ChannelOperation, answer: wire.Delivered, fetching: UnderWay) -> None:
        self._stop_fetch(operation.ticket)
        self._fetches[operation.ticket] = fetching
        if operation.has_hooks:
            operation.arriving(self._client, answer)
        fetching.begin()

    def _on_fetched(
        self,
        operation: ChannelOperation,
        answer: wire.Delivered,
        items: list[ReceivedPayload] | None,
        error: Exception | None,
    ) -> None:
        if items is None:
            logger.warning(
                "channel '%s': %s; its items are asked for by way of the channel", self._client.name, error
            )
            self._resend(operation.ticket)
        else:
            delivery = self._landed(operation, Delivery.of(answer, items))
            if delivery is not None:
                self._client.on_items(operation.ticket, delivery)
        self._client.flush()

    def _on_landed(
        self,
        ticket: int,
        answer: wire.Delivered,
        items: list[ReceivedPayload] | None,
        error: BaseException | None,
    ) -> None:
        if items is not None:
            self._client.on_items(ticket, Delivery.of(answer, items))
            self._client.flush()
            return
        # The channel's process knows, or will soon, whether the producer is gone: then it says that they are lost.
        logger.warning("channel '%s': items on a device cannot be had now: %s", self._client.name, error)
        pause_s = self._pauses_s[ticket] = min(
            2 * self._pauses_s.get(ticket, ASK_AGAIN_S / 2), MAX_ASK_AGAIN_S
        )
        self._messenger.call_later(pause_s, partial(self._ask_again, ticket))

    def _resend(self, ticket: int) -> None:
        self._client.outbox.append((wire.Resend(ticket), []))

    def _ask_again(self, ticket: int) -> None:
        if ticket in self._fetches:
            self._resend(ticket)
            self._client.flush()
