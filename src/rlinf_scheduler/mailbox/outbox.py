"""The sending half of the mailbox: each send is a put to a queue that the receiver's process holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.peer import Reply, Request
from rlinf_scheduler.comm.promise import Promise, Unheard
from rlinf_scheduler.comm.replication import Key, Publisher
from rlinf_scheduler.comm.shm.payloads import SHARED_BYTES
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.comm.transfer import Transfer, Transfers
from rlinf_scheduler.errors import CommError, PeerDied
from rlinf_scheduler.mailbox.records import (
    PUT,
    READ,
    SERVICE,
    WITHDRAW,
    ItemLocation,
    MailPut,
    MailWithdraw,
    PutOutcome,
    Read,
    TensorType,
)
from rlinf_scheduler.queueing.client import ClientInstruction, ClientState, End, Ending, Send, SendWithdraw

# Small items travel with their put. So many bytes of them may be with a receiver that has no room for them.
CREDIT_BYTES = 1 << 20

Done = Callable[[BaseException | None], None]


class Sending(Transfer):
    """One item on its way to one process. Everything but making it is on the I/O thread.

    Args:
        outbox: through which it goes.
        operation: "send" or "broadcast", for messages.
        peer: to whom.
        topic: see `MailPut`.
        payload: the item.
        started: when it began, on the messenger's clock.
        done: called once, with what it failed with; None when the receiver's process holds it.
        tensor: see `MailPut`.
        key: what it is published as already, for several; None for an item of its own.
        wait_for_return: whether it goes to another process that takes the receiver's name when that dies before it
            holds the item.
    """

    def __init__(
        self,
        outbox: Outbox,
        operation: str,
        peer: str,
        topic: str,
        payload: Payload,
        *,
        started: float,
        timeout_s: float,
        done: Done,
        tensor: TensorType | None = None,
        key: Key | None = None,
        wait_for_return: bool = False,
    ) -> None:
        super().__init__(
            outbox.transfers,
            operation,
            peer,
            timeout_s,
            started,
            ticket=outbox.next_ticket(),
            wait_for_return=wait_for_return,
        )
        self.topic = topic
        self.payload: Payload | None = payload
        self.size_bytes = payload.size_bytes
        self.tensor = tensor
        self.shared_key = key
        self.own_key: Key | None = None
        self._outbox = outbox
        self._done = done
        self._recipient: _Recipient | None = None

    def found(self, endpoint: Endpoint) -> None:
        """The peer is there."""
        self._recipient = self._outbox.recipient(endpoint)
        self._recipient.put(self)

    def expire(self) -> None:
        """Ask the receiver, once the deadline has passed, to forget it and to say whether it could."""
        self._waits_for_return = False
        if self._recipient is not None:
            self._recipient.follow(self._recipient.client.expire(self.ticket))
        self.soon(self._give_up)

    def give_up(self) -> None:
        """Give it up, if the receiver does not hold it already; `done` hears a CancelledError, or that it does."""
        self._waits_for_return = False
        if self._recipient is None:
            self.end(error=CancelledError())
        else:
            withdrawn = self._recipient.client.cancel(self.ticket)
            self._recipient.follow(withdrawn)
            if withdrawn:  # else it was at its deadline, which says in the end that it may be held
                self.soon(lambda: self.end(error=CancelledError()))

    def lose(self, error: PeerDied) -> None:
        """The peer is gone: that is the end, or it is looked for again after a moment."""
        self._recipient = None
        super().lose(error)

    def ended(self, value: Any, error: BaseException | None) -> None:
        """It is over: give back what it holds, and tell its caller."""
        del value
        self.payload = None
        if self._recipient is not None:
            self._recipient.sendings.pop(self.ticket, None)
        if self.own_key is not None:
            self._outbox.publisher.release(self.own_key)
        self._done(error)

    def _give_up(self) -> None:
        if self._recipient is not None:
            self._recipient.follow(self._recipient.client.give_up(self.ticket))


class _Recipient:
    """What goes to one process, in order for each topic. `ClientState` decides, this carries it out."""

    def __init__(self, outbox: Outbox, endpoint: Endpoint) -> None:
        self.client = outbox.new_client()
        self.sendings: dict[int, Sending] = {}
        self._outbox = outbox
        self._endpoint = endpoint

    def put(self, sending: Sending) -> None:
        """Begin a put."""
        self.sendings[sending.ticket] = sending
        inline_bytes = sending.size_bytes if sending.size_bytes < SHARED_BYTES else 0
        if self.client.put(sending.ticket, sending.topic, inline_bytes):
            self._begin_sending(sending)

    def follow(self, instructions: list[ClientInstruction]) -> None:
        """Do what the client's state asks for."""
        for instruction in instructions:
            sending = self.sendings.get(instruction.ticket)
            if isinstance(instruction, SendWithdraw):
                self._outbox.messenger.notify(self._endpoint, WITHDRAW, MailWithdraw(instruction.ticket))
            elif sending is not None and isinstance(instruction, Send):
                self._begin_sending(sending)
            elif sending is not None and isinstance(instruction, End):
                sending.end(error=_error_of(sending, instruction))

    def lose(self, reason: str) -> None:
        """The process is gone."""
        for instruction in self.client.lose():
            sending = self.sendings.get(instruction.ticket)
            if sending is not None:
                sending.lose(PeerDied(sending.peer, reason))

    def _begin_sending(self, sending: Sending) -> None:
        ending(partial(self._send, sending), partial(self._refuse, sending.ticket))()

    def _send(self, sending: Sending) -> None:
        payload = sending.payload
        if payload is None:
            return
        put = MailPut(
            self._outbox.own_name,
            sending.peer,
            sending.topic,
            sending.ticket,
            sending.size_bytes,
            sending.tensor,
        )
        frames: Sequence[Buffer] = ()
        if sending.size_bytes >= SHARED_BYTES:
            put.source = self._outbox.publish(sending, payload)
        if put.source is None or payload.goes_as_descriptor(self._endpoint):
            frames = payload.frames_for(self._endpoint)
        answer = self._outbox.messenger.request(
            self._endpoint, PUT, put, frames, snapshot=False, reply_type=PutOutcome
        )
        answer.add_done_callback(lambda done: self._answered(sending.ticket, done))

    def _refuse(self, ticket: int, error: Exception) -> None:
        self.follow(self.client.refused(ticket, error))

    def _answered(self, ticket: int, answer: Promise[Reply]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if isinstance(error, PeerDied):
            self._outbox.forget(self._endpoint.process_id, error.reason)
        elif error is not None:
            self.follow(self.client.refused(ticket, error))
        else:
            outcome: PutOutcome = answer.result().head
            if outcome.held:
                self.follow(self.client.accepted((ticket,)))
            else:
                self.follow(self.client.refused(ticket, outcome.held_bytes, withdrawn=True))


class Outbox:
    """Sends items to named processes, in order for each process and topic. Everything is on the I/O thread.

    Args:
        transfers: where sends are under way.
        own_name: the name that items carry.
        limit_bytes: how much of broadcasts the other machines keep for their members.

    Attributes:
        publisher: what others read here.
        new_client: makes what decides for one receiver.
        unheard: ends what has failed, and tells of the first of which nobody hears.
    """

    def __init__(self, transfers: Transfers, own_name: str, limit_bytes: int) -> None:
        self.transfers = transfers
        self.messenger = messenger = transfers.messenger
        self.own_name = own_name
        self.publisher = Publisher(messenger, SERVICE, limit_bytes=limit_bytes)
        self.next_ticket = itertools.count(1).__next__
        self.new_client: Callable[[], ClientState] = partial(ClientState, CREDIT_BYTES)
        self.unheard = Unheard("a send or broadcast")
        self._recipients: dict[str, _Recipient] = {}
        messenger.serve(READ, self._on_read, Read)
        messenger.stay_while(lambda: any(recipient.sendings for recipient in self._recipients.values()))
        messenger.on_peer_lost(self._on_peer_lost)

    def recipient(self, endpoint: Endpoint) -> _Recipient:
        """Return the recipient of a process: the items on their way to it, in order."""
        recipient = self._recipients.get(endpoint.process_id)
        if recipient is None:
            recipient = self._recipients[endpoint.process_id] = _Recipient(self, endpoint)
        return recipient

    def publish(self, sending: Sending, payload: Payload) -> ItemLocation:
        """Let the receiver read an item here."""
        key = sending.shared_key or sending.own_key
        if key is None:
            key = sending.own_key = Key("", sending.ticket)
            self.publisher.publish(key, payload, replicated=False)
        return ItemLocation(key, self.messenger.endpoint)

    def _on_peer_lost(self, process_id: str) -> None:
        self.forget(process_id, self.messenger.peers.why_lost(process_id))

    def forget(self, process_id: str, reason: str) -> None:
        """A process is gone: what goes to it fails."""
        recipient = self._recipients.pop(process_id, None)
        if recipient is not None:
            recipient.lose(reason)

    def _on_read(self, request: Request) -> None:
        read: Read = request.head

        def gone() -> None:
            request.fail(CommError("what is to be read was given up by its sender"))

        self.publisher.answer(request, read.key, read.want, gone)


def _error_of(sending: Sending, end: End) -> BaseException | None:
    """What a sending ends with."""
    if end.ending is Ending.ACCEPTED:
        return None
    if end.ending is Ending.TIMED_OUT:
        held = f", which holds {end.detail} bytes from here" if isinstance(end.detail, int) else ""
        return sending.timeout(f"room in its mailbox{held}")
    if end.ending is Ending.UNANSWERED:
        return sending.timeout("its acknowledgement")
    if end.ending is Ending.CANCELLED:
        return CancelledError()
    error: BaseException = end.detail
    return error
