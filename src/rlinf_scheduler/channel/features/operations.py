"""Puts and gets, as they came, alone and in runs: events for the state machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.clients import KnownClient
from rlinf_scheduler.channel.held import HeldAt
from rlinf_scheduler.channel.remote_items import RemoteItem
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.payload import ReceivedPayload, is_here
from rlinf_scheduler.comm.shm.sent_payload import described_bytes
from rlinf_scheduler.errors import SharedMemoryUnreadable
from rlinf_scheduler.queueing.item import Item, rounded
from rlinf_scheduler.queueing.messages import Bury, Deliver, Instruction
from rlinf_scheduler.queueing.taps import Vacate

logger = Reporter(__name__)


class OperationsFeature:
    """The handlers of puts and gets at one server."""

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self._runtime = server.runtime
        self._state = server.state
        # Nobody asked for the bound: the first put that waits for it is reported.
        self._reports_bound = server.spec.max_bytes is None
        server.handlers |= {
            wire.Put: self._put,
            wire.Puts: self._puts,
            wire.Fill: self._fill,
            wire.Gets: self._gets,
            wire.Resend: self._resend,
        }

    # -- puts --------------------------------------------------------------------------------------

    def _put(self, known: KnownClient, put: wire.Put, frames: Iterator[Buffer]) -> list[Instruction]:
        if put.size_bytes is not None:
            return self._enter(known, put, None, put.size_bytes)
        its_frames = list(islice(frames, put.num_frames))
        try:
            item = self._receive(known, its_frames)
        except SharedMemoryUnreadable as error:
            end = known.direct.end(put.ticket)
            if end is not None:
                end.answer(wire.DirectAnswer(wire.Again(put.ticket, str(error)), []))
                return []
            # It keeps its place, and comes as bytes, once there is room for them.
            known.unreadable[put.ticket] = str(error)
            return self._enter(known, put, None, described_bytes(its_frames))
        return self._enter(known, put, item, item.size_bytes)

    def _enter(
        self, known: KnownClient, put: wire.Put, payload: ReceivedPayload | RemoteItem | None, size_bytes: int
    ) -> list[Instruction]:
        """Put an item, or (None) announce it."""
        item = Item(payload, put.weight, size_bytes, put.priority)
        if put.group is not None:
            item.group = wire.as_name(put.group)
        if put.question:
            item.question = known.client, put.question
        item.version, item.slot, item.origin = put.version, put.slot, (known.who, put.ticket)
        if payload is None:
            put.size_bytes = size_bytes
        out = self._state.apply(put, known.client, item)
        if not out:
            self._report_bound()
        return out

    def _receive(self, known: KnownClient, frames: list[Buffer]) -> ReceivedPayload | RemoteItem:
        """Return the item of a put; its bytes may stay where they are."""
        if is_here(frames):
            return ReceivedPayload(frames)
        at = HeldAt.from_frames(frames)
        if at is None:
            return self._runtime.payloads.receive(frames, to_load=False)
        return self._server.remote_items().receive(at, known.name)

    def _fill(self, known: KnownClient, fill: wire.Fill, frames: Iterator[Buffer]) -> list[Instruction]:
        try:
            item = self._receive(known, list(islice(frames, fill.num_frames)))
        except SharedMemoryUnreadable as error:
            self._server.outbox.respond(known, wire.Granted(fill.ticket, str(error)))
            return []
        fill.size_bytes = item.size_bytes
        return self._state.apply(fill, known.client, item)

    def _puts(self, known: KnownClient, run: wire.Puts, frames: Iterator[Buffer]) -> list[Instruction]:
        puts: list[tuple[int, Item]] = []
        # The tickets first: when there are no more, no frame is taken.
        parts: Iterator[Any] = zip(run.tickets, run.weights, *[frames] * run.num_frames, strict=False)
        num_here = 0
        for ticket, weight, *part in parts:
            num_here += 1
            try:
                arrived = ReceivedPayload(part)
                item = Item(arrived, weight, arrived.size_bytes)
                item.origin = (known.who, ticket)
                puts.append((ticket, item))
            except Exception as error:
                logger.exception("channel '%s': an item cannot be received", self._server.spec.name)
                self._server.refuse(known, (ticket,), error)
        left = self._run_together(
            known,
            [ticket for ticket, _ in puts],
            lambda out: self._state.put_run(known.client, wire.as_name(run.queue), puts, out),
        )
        for ticket, item in islice(puts, len(puts) - len(left), None):
            put = wire.Put(ticket, run.queue, rounded(item.weight), True, run.num_frames)
            self._server.run(known, put, iter(item.payload.frames()))
        if num_here < len(run.tickets):
            self._server.refuse(known, run.tickets[num_here:], ValueError("its bytes are missing"))
        self._report_bound()
        return []

    def _report_bound(self) -> None:
        """Report once that the channel is full of bytes, if a put waits for that."""
        if self._reports_bound and self._state.queues.is_crowded:
            self._reports_bound = False
            logger.warning(
                "channel '%s': puts wait, for it holds %d MiB, which is a share of this machine's memory; take items "
                "from it, or say how much it may hold (max_bytes=)",
                self._server.spec.name,
                self._server.max_bytes >> 20,
            )

    # -- gets --------------------------------------------------------------------------------------

    def _gets(self, known: KnownClient, run: wire.Gets, frames: Iterator[Buffer]) -> list[Instruction]:
        left = self._run_together(
            known,
            run.tickets,
            lambda out: self._state.get_run(known.client, wire.as_name(run.queue), run.tickets, out),
        )
        for ticket in left:
            self._server.run(known, wire.Get(ticket, run.queue, True, None), frames)
        return []

    def _resend(
        self, known: KnownClient, resend: wire.Resend, _frames: Iterator[Buffer]
    ) -> list[Instruction]:
        known.send_bytes(self._runtime.now())
        out = self._state.apply(resend, known.client)
        # Where some of them are lost the others go to somebody else, who may fetch them, or asks in turn.
        whose = known.client, resend.ticket
        delivers = [each for each in out if isinstance(each, Deliver) and (each.client, each.ticket) == whose]
        items = [item for each in delivers for item in each.items]
        if not any(isinstance(item.payload, RemoteItem) for item in items):
            return out
        # What this client cannot fetch comes by way of this process, and is asked for as long as it is wanted.
        server = self._server
        server.bring(items, lambda _late: server.carry_out(self._resend(known, resend, iter(()))))
        return []

    # -- runs --------------------------------------------------------------------------------------

    def _run_together(
        self, known: KnownClient, tickets: Sequence[int], run: Callable[[list[Instruction]], int]
    ) -> Sequence[int]:
        """Carry out what follows from a run; return those of its operations that are still to be done, one by one."""
        server, client = self._server, known.client
        out: list[Instruction] = []
        try:
            left = tickets[run(out) :]
        except Exception as error:
            # It fails alone: those before it are done, and those behind it are not tried yet.
            logger.exception("channel '%s': an operation failed", server.spec.name)
            told = {
                each.ticket for each in out if not isinstance(each, Bury | Vacate) and each.client == client
            }
            left = [
                each for each in tickets if each not in told and not self._state.queues.knows(client, each)
            ]
            server.refuse(known, left[:1], error)
            left = left[1:]
        server.carry_out(out)
        return left
