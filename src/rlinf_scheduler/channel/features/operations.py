"""Puts and gets, as they came, alone and in runs: events for the state machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

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
from rlinf_scheduler.queueing import (
    NO_LIMITS,
    Bury,
    Deliver,
    Instruction,
    Item,
    LeaseTerms,
    Limits,
    ShardPlan,
    rounded,
)

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
            wire.Get: self._get,
            wire.Gets: self._gets,
            wire.Resend: self._resend,
            wire.Withdraw: self._withdraw,
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
        self, known: KnownClient, put: wire.Put, item: ReceivedPayload | RemoteItem | None, size_bytes: int
    ) -> list[Instruction]:
        """Put an item, or (None) announce it."""
        out = self._state.put(
            known.client,
            put.ticket,
            wire.as_name(put.queue),
            item,
            put.weight,
            size_bytes,
            priority=put.priority,
            question=put.question,
            group=None if put.group is None else wire.as_group(put.group),
            version=put.version,
            slot=put.slot,
            origin=(known.who, put.ticket, put.trace),
            wait=put.wait,
            complete=item is not None,
        )
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
        return self._state.fill(known.client, fill.ticket, item, item.size_bytes)

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
                item.origin = (known.who, ticket, None)
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

    def _get(self, known: KnownClient, get: wire.Get, _frames: Iterator[Buffer]) -> list[Instruction]:
        client, queue = known.client, wire.as_name(get.queue)
        if get.shard is not None:
            index, done_step, *plan = msgspec.structs.astuple(get.shard)
            return self._state.get_part(
                client, get.ticket, queue, ShardPlan(*plan), index, done_step, wait=get.wait
            )
        if get.lease is not None:
            return self._lease(client, get, get.lease)
        if get.group_size:
            return self._state.get_group(client, get.ticket, queue, get.group_size, wait=get.wait)
        if get.batch_weight is None and get.limits is None:
            return self._state.get(client, get.ticket, queue, wait=get.wait)
        limits = NO_LIMITS if get.limits is None else Limits(*msgspec.structs.astuple(get.limits))
        return self._state.get_batch(client, get.ticket, queue, get.batch_weight, limits, wait=get.wait)

    def _lease(self, client: str, get: wire.Get, lease: wire.LeaseRequest) -> list[Instruction]:
        terms = LeaseTerms(lease.ttl_s, lease.consumer)
        limits = None if get.limits is None else Limits(*msgspec.structs.astuple(get.limits))
        queue = wire.as_name(get.queue)
        size = get.group_size
        return self._state.lease(
            client, get.ticket, queue, terms, get.batch_weight, limits, group_size=size, wait=get.wait
        )

    def _gets(self, known: KnownClient, run: wire.Gets, frames: Iterator[Buffer]) -> list[Instruction]:
        left = self._run_together(
            known,
            run.tickets,
            lambda out: self._state.get_run(known.client, wire.as_name(run.queue), run.tickets, out),
        )
        for ticket in left:
            self._server.run(known, wire.Get(ticket, run.queue, True, None), frames)
        return []

    def _withdraw(
        self, known: KnownClient, withdraw: wire.Withdraw, _frames: Iterator[Buffer]
    ) -> list[Instruction]:
        return self._state.withdraw(known.client, withdraw.ticket)

    def _resend(
        self, known: KnownClient, resend: wire.Resend, _frames: Iterator[Buffer]
    ) -> list[Instruction]:
        known.send_bytes(self._runtime.now())
        out = self._state.deliver_again(known.client, resend.ticket)
        items = [item for each in out if isinstance(each, Deliver) for item in each.items]
        if not any(isinstance(item.payload, RemoteItem) for item in items):
            return out
        # What this client cannot fetch comes by way of this process.
        server, ticket = self._server, resend.ticket
        server.bring(items, lambda: server.carry_out(self._state.deliver_again(known.client, ticket)))
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
            told = {each.ticket for each in out if not isinstance(each, Bury) and each.client == client}
            left = [
                each for each in tickets if each not in told and not self._state.queues.knows(client, each)
            ]
            server.refuse(known, left[:1], error)
            left = left[1:]
        server.carry_out(out)
        return left
