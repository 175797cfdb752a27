"""What a channel's server does with an operation, as it came: an event for the state machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.byte_bound import ByteBound
from rlinf_scheduler.channel.held import HeldAt
from rlinf_scheduler.channel.known_client import KnownClient
from rlinf_scheduler.channel.news_desk import NewsDesk
from rlinf_scheduler.channel.record_desk import RecordDesk
from rlinf_scheduler.channel.remote_items import RemoteItem, RemoteItems
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.runtime import Runtime
from rlinf_scheduler.comm.shm.parcel import Arrived, is_here
from rlinf_scheduler.errors import SharedMemoryUnreadable
from rlinf_scheduler.queueing import (
    NO_LIMITS,
    ChannelState,
    Deliver,
    Instruction,
    LeaseTerms,
    Limits,
    ShardPlan,
)


class OperationDesk:
    """Takes the operations of one channel's clients.

    Args:
        messenger: receives what lies in shared memory.
        state: what the operations are done on.
        clients: all clients that are known.
        bound: of the channel.
        remote: items that lie elsewhere.
        records: notes who asks at which step.
        news: tells a client what it has to do first.
        carry_out: does what follows from an event.
        read_all: reads what came by a client's shortcuts.
    """

    def __init__(
        self,
        messenger: Runtime,
        state: ChannelState,
        clients: Mapping[str, KnownClient],
        bound: ByteBound,
        remote: RemoteItems,
        records: RecordDesk,
        news: NewsDesk,
        carry_out: Callable[[list[Instruction]], None],
        read_all: Callable[[str], None],
    ) -> None:
        self._messenger = messenger
        self._state = state
        self._clients = clients
        self._bound = bound
        self._remote = remote
        self._records = records
        self._news = news
        self._carry_out = carry_out
        self._read_all = read_all
        self._events: dict[type, Callable[[str, Any, Iterator[Buffer]], list[Instruction]]] = {
            wire.Put: self._put,
            wire.Fill: self._fill,
            wire.Get: self._get,
            wire.Admit: self._admit,
            wire.SetVersion: self._set_version,
            wire.Resend: self._resend,
            wire.Withdraw: lambda client, operation, _: self._state.withdraw(client, operation.ticket),
            wire.Recall: self._recall,
        }

    def take(
        self, client: str, operation: wire.OperationMessage, frames: Iterator[Buffer]
    ) -> list[Instruction]:
        """Apply an operation, whose frames are the next ones, and return what follows.

        Raises:
            ValueError: there is no such operation.
        """
        return self._events[type(operation)](client, operation, frames)

    def _put(self, client: str, put: wire.Put, frames: Iterator[Buffer]) -> list[Instruction]:
        if put.size_bytes is not None:
            return self._reserve(client, put, put.size_bytes)
        its_frames = list(islice(frames, put.num_frames))
        try:
            item = self._receive(client, its_frames)
        except SharedMemoryUnreadable as error:
            known = self._clients[client]
            end = known.direct.end(put.ticket)
            if end is not None:
                end.answer(wire.DirectAnswer(wire.Again(put.ticket, str(error)), []))
                return []
            # It keeps its place, and comes as bytes.
            known.unreadable[put.ticket] = str(error)
            return self._reserve(client, put, 0)
        return self._enter(client, put, item, item.size_bytes)

    def _reserve(self, client: str, put: wire.Put, size_bytes: int) -> list[Instruction]:
        return self._enter(client, put, None, size_bytes)

    def _enter(
        self, client: str, put: wire.Put, item: Arrived | RemoteItem | None, size_bytes: int
    ) -> list[Instruction]:
        """An item is put, or (None) announced."""
        out = self._state.put(
            client,
            put.ticket,
            wire.as_name(put.queue),
            item,
            put.weight,
            size_bytes,
            priority=put.priority,
            question=put.question,
            group=wire.as_group(put.group),
            version=put.version,
            slot=put.slot,
            origin=(self._clients[client].who, put.ticket, put.trace),
            wait=put.wait,
            complete=item is not None,
        )
        return out or self._bound.note(self._state)

    def _receive(self, client: str, frames: list[Buffer]) -> Arrived | RemoteItem:
        """The item of a put; its bytes may stay where they are."""
        if is_here(frames):
            return Arrived(frames)
        at = HeldAt.from_frames(frames)
        if at is None:
            return self._messenger.parcels.receive(frames, to_load=False)
        return self._remote.receive(at, self._clients[client].name)

    def _fill(self, client: str, fill: wire.Fill, frames: Iterator[Buffer]) -> list[Instruction]:
        its_frames = list(islice(frames, fill.num_frames))
        try:
            item = self._receive(client, its_frames)
        except SharedMemoryUnreadable as error:
            self._news.tell(self._clients[client], wire.Granted(fill.ticket, str(error)))
            return []
        return self._state.fill(client, fill.ticket, item, item.size_bytes)

    def _resend(self, client: str, resend: wire.Resend, _frames: Iterator[Buffer]) -> list[Instruction]:
        self._records.repeat(client, resend.ticket)
        self._clients[client].send_bytes(self._messenger.now())
        out = self._state.deliver_again(client, resend.ticket)
        items = [item for each in out if isinstance(each, Deliver) for item in each.items]
        if not any(isinstance(item.payload, RemoteItem) for item in items):
            return out
        # What this client cannot fetch comes by way of this process.
        self._remote.bring(items, lambda: self._carry_out(self._state.deliver_again(client, resend.ticket)))
        return []

    def _recall(self, client: str, recall: wire.Recall, _frames: Iterator[Buffer]) -> list[Instruction]:
        """Say what became of an operation that came by a shortcut; nobody listens there any more."""
        return self._clients[client].direct.recall(client, recall.ticket, self._state, self._read_all)

    def _get(self, client: str, get: wire.Get, _frames: Iterator[Buffer]) -> list[Instruction]:
        self._records.expect(client, get)
        queue = wire.as_name(get.queue)
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

    def _admit(self, client: str, admit: wire.Admit, _frames: Iterator[Buffer]) -> list[Instruction]:
        queue = wire.as_name(admit.queue)
        return self._state.admit(client, admit.ticket, queue, admit.max_lag, wait=admit.wait)

    def _set_version(
        self, client: str, said: wire.SetVersion, _frames: Iterator[Buffer]
    ) -> list[Instruction]:
        about = said.version, said.batch_items
        queue = wire.as_name(said.queue)
        return self._state.set_version(client, said.ticket, queue, *about, begins=said.begins, wait=said.wait)
