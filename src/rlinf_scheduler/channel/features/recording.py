"""Recordings. Without them nobody knows later which items went to whom, and at which step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.clients import KnownClient
from rlinf_scheduler.channel.remote_items import RemoteItem
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.queueing import Deliver, Instruction, Refuse, SubscriptionName, rounded
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.sharding import Part
from rlinf_scheduler.tape.deliveries import DeliveryLog, RecordedChannel

logger = Reporter(__name__)

# Larger items are recorded without their bytes: they would be copied here, where all others wait.
PAYLOAD_BYTES = 64 << 10
CLOSE_S = 1.0
# What an item takes in memory until it is written.
_ITEM_BYTES = 256

Handler = Callable[..., list[Instruction]]


def end_recording(server: ChannelServer, then: Callable[[], None]) -> None:
    """Record no more at a server, and have `then` called once all is written, or that takes long."""
    recording = server.find(RecordingFeature)
    if recording is None:
        then()
    else:
        recording.close(then)


def is_behind(server: ChannelServer) -> bool:
    """Say whether something is recorded and not written yet: its process stays until it is."""
    recording = server.find(RecordingFeature)
    return recording is not None and recording.is_behind


class RecordingFeature:
    """The recordings of one channel. On the I/O thread, which opens and writes nothing itself."""

    def __init__(self, server: ChannelServer) -> None:
        self._channel = server.spec.name
        self._server = server
        # No part of what happens to the channel.
        self._call_later = server.beside.call_later
        self._submit = server.beside.submit
        self._is_closed = False
        self._log: DeliveryLog | None = None
        # The last one, of which something is to be written yet, perhaps.
        self._ending: DeliveryLog | None = None
        self._has_payload = False
        # At which step they work who asked and said so; by client and ticket.
        self._steps: dict[tuple[str, int], int] = {}
        # What is to be sent once more.
        self._again: set[tuple[str, int]] = set()
        # The handlers that stand in the server's table otherwise.
        self._replaced: dict[type, Callable[..., Any]] = {}
        server.handlers[control_wire.Record] = self.answer
        server.on_lost.append(self.lose)
        server.on_stop.append(partial(self.close, _nothing))

    def answer(self, request: Request) -> None:
        """Begin to record, or end it: then the answer comes when all is written."""
        wanted: control_wire.Record = request.head
        if not wanted.path:
            self._take(request, None)
            return
        try:
            log = DeliveryLog(wanted.path, RecordedChannel(self._channel, time.time()), wanted.max_bytes)
        except RuntimeError as error:  # there is no thread for it
            request.reply(control_wire.Done(str(error)))
            return
        log.opened.add_done_callback(lambda _: self._submit(partial(self._on_opened, request, log)))

    def _on_opened(self, request: Request, log: DeliveryLog) -> None:
        error = log.opened.exception(0)
        if error is not None:
            request.reply(control_wire.Done(str(error)))
        elif self._is_closed or request.is_cancelled:
            log.close()
            request.reply(control_wire.Done(f"channel '{self._channel}' was deleted"))
        else:
            self._take(request, log)

    def _take(self, request: Request, log: DeliveryLog | None) -> None:
        """Record into that from now on; the answer comes when what there was before is written."""
        before = self._log
        self._watch(log)
        self._has_payload = request.head.payload
        if before is None:
            request.reply(control_wire.Done(""))
        else:
            before.close()
            before.ended.add_done_callback(lambda _: request.reply(control_wire.Done("")))

    def _watch(self, log: DeliveryLog | None) -> None:
        """Hear of gets and deliveries as long as there is a log, and of none without."""
        handlers, observers = self._server.handlers, self._server.on_delivery
        if self._log is None and log is not None:
            watched: dict[type, Callable[..., Any]] = {
                wire.Get: self._expect,
                wire.Gets: self._expect,
                wire.Resend: self._repeat,
                Refuse: self._forget,
            }
            self._replaced = {kind: handlers[kind] for kind in watched}
            handlers |= {kind: partial(watch, handlers[kind]) for kind, watch in watched.items()}
            observers.append(self.note)
        elif self._log is not None and log is None:
            handlers |= self._replaced
            observers.remove(self.note)
            self._steps.clear()
        self._log = log
        self._again.clear()

    def _expect(
        self, handle: Handler, known: KnownClient, get: wire.AnyGet | wire.Gets, frames: Iterator[Buffer]
    ) -> list[Instruction]:
        """Note at which step somebody works who asks for items."""
        keys = [] if get.step is None else [(known.client, ticket) for ticket in wire.tickets_of(get)]
        self._steps |= dict.fromkeys(keys, get.step or 0)
        try:
            return handle(known, get, frames)
        except Exception:
            for key in keys:
                self._steps.pop(key, None)
            raise

    def _forget(self, handle: Callable[[Refuse], None], refused: Refuse) -> None:
        """Forget somebody who gets nothing."""
        self._steps.pop((refused.client, refused.ticket), None)
        handle(refused)

    def _repeat(
        self, handle: Handler, known: KnownClient, resend: wire.Resend, frames: Iterator[Buffer]
    ) -> list[Instruction]:
        """Note that a delivery is sent once more: it is recorded already."""
        self._again.add((known.client, resend.ticket))
        return handle(known, resend, frames)

    def lose(self, client: str) -> None:
        """A client is gone."""
        for key in [key for key in self._steps if key[0] == client]:
            del self._steps[key]
        self._again = {key for key in self._again if key[0] != client}

    def note(self, delivery: Deliver, consumer: KnownClient) -> list[Any] | None:
        """Record a delivery, and return the ids of its items, for the consumer to name them."""
        step = self._steps.pop((delivery.client, delivery.ticket), None)
        if self._log is None or not delivery.items or type(delivery.queue) is SubscriptionName:
            return None  # a slot, or what a subscription reads
        if step is None and isinstance(delivery.grant, Part):
            step = delivery.grant.step
        if self._again and (delivery.client, delivery.ticket) in self._again:
            self._again.remove((delivery.client, delivery.ticket))
        else:
            frames: list[Buffer] = []
            items = [self._item(item, frames) for item in delivery.items]
            queue = delivery.queue if isinstance(delivery.queue, str) else repr(delivery.queue)
            size_bytes = _ITEM_BYTES * len(items) + sum(len(frame) for frame in frames)
            self._log.add((time.time(), queue, consumer.name, step, items), frames, size_bytes)
        return [_id(item) or ("", "", 0) for item in delivery.items]

    @property
    def is_behind(self) -> bool:
        """Whether something is recorded and not written yet."""
        return any(log is not None and log.is_behind for log in (self._log, self._ending))

    def close(self, then: Callable[[], None]) -> None:
        """Record no more; have `then` called once all is written, or that takes long: it is still written then."""
        self._is_closed = True
        if self._log is not None:
            self._log.close()
            self._ending = self._log
            self._watch(None)
        ending = self._ending
        if ending is None or ending.ended.done():
            then()
            return
        told: Promise[None] = Promise()
        told.add_done_callback(lambda _: self._submit(then))
        ending.ended.add_done_callback(lambda _: told.set_result(None))
        self._call_later(CLOSE_S, partial(self._on_late, ending, told))

    def _on_late(self, ending: DeliveryLog, told: Promise[None]) -> None:
        if not told.done():
            logger.warning(
                "channel '%s': its recording '%s' is not all on disk after %g s, and is still being written; if this "
                "process ends before that, the last deliveries are missing there",
                self._channel,
                ending.path,
                CLOSE_S,
            )
            told.set_result(None)

    def _item(self, item: Item, frames: list[Buffer]) -> tuple[Any, ...]:
        its: list[bytes] = []
        payload = item.payload
        if self._has_payload and item.size_bytes <= PAYLOAD_BYTES and not isinstance(payload, RemoteItem):
            # Its consumer may write into what it gets.
            its = [bytes(frame) for frame in payload.frames()]
            frames.extend(its)
        trace = None if item.origin is None else item.origin[2]
        return _id(item), trace, item.version, rounded(item.weight), item.size_bytes, len(its)


def _nothing() -> None:
    """Nobody waits for it."""


def _id(item: Item) -> tuple[str, str, int] | None:
    """Who put it, by name and process, and that one's number of it; None where that is not known."""
    if item.origin is None:
        return None
    (name, client), ticket, _ = item.origin
    return name, client, ticket
