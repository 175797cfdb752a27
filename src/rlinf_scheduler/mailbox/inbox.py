"""The receiving half of the mailbox: a queue for each sender and topic, and the recvs that wait at it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from rlinf_scheduler.comm.directory import Entry
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.operation import Deliveries, OperationPromise
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.replication import Key, ReaderAnswer, Reading, Replicas
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.transfer import Transfer, Transfers, end
from rlinf_scheduler.errors import CommError, PeerDied, SharedMemoryUnreadable
from rlinf_scheduler.mailbox.records import (
    PUT,
    READ,
    SERVICE,
    WITHDRAW,
    MailPut,
    MailWithdraw,
    PutOutcome,
    Read,
    TensorType,
)
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import (
    Accept,
    Deliver,
    Fill,
    Get,
    Grant,
    Instruction,
    Lose,
    Put,
    Withdraw,
)
from rlinf_scheduler.queueing.state import ChannelState

# Says why an item is not what a recv wants; None if it is.
Check = Callable[[TensorType | None], CommError | None]
OWN = ""  # this process, among the clients of its queues

_TAKEN = ReceivedPayload([])
Of = TypeVar("Of")


@dataclass(slots=True, eq=False)
class Letter:
    """An item that is here.

    Attributes:
        tensor: what it is, if it is a tensor.
        arrived: its bytes.
    """

    tensor: TensorType | None
    arrived: ReceivedPayload


class _Coming:
    """A put whose item the queue does not hold yet."""

    __slots__ = ("put", "reading", "request", "unreadable")

    def __init__(self, request: Request) -> None:
        self.put: MailPut = request.head
        self.request = request
        self.reading: Reading | None = None
        self.unreadable = ""


class _Receiving(Transfer):
    """A recv, until its item was taken or given back."""

    def __init__(
        self,
        inbox: Inbox,
        operation: str,
        peer: str,
        topic: str,
        timeout_s: float,
        check: Check | None,
        waiting_for: str,
        wait_for_return: bool,
    ) -> None:
        super().__init__(
            inbox.transfers,
            operation,
            peer,
            timeout_s,
            ticket=inbox.next_ticket(),
            wait_for_return=wait_for_return,
        )
        self.queue = (peer, topic)
        self.check = check
        self.letter: Letter | None = None
        self._inbox = inbox
        self._waiting_for = waiting_for

    def new_promise(self) -> OperationPromise:
        """The promise of the item, for the caller to keep; when it is dropped, no item is wanted."""
        promise = OperationPromise(self, is_watched=True)
        promise.by = self.peer
        self.promise_to(promise, self._inbox.dropped)
        return promise

    def give_up(self) -> None:
        """End it: nobody wants an item."""
        self._inbox.end(self, CancelledError())

    def gone(self) -> None:
        """Let the I/O thread look, if the item goes back; else its memory is free at once."""
        if not self.is_taken:
            self._inbox.wake()
        elif self.letter is not None:
            # Its delivery is confirmed when there is something else to do.
            self.letter.arrived = _TAKEN

    def found(self, endpoint: Endpoint) -> None:
        """The peer is there."""
        self._inbox.note_found(self)

    def expire(self) -> None:
        """The deadline has passed, and the peer is there, or was gone before it was found."""
        gone = None if self._waits_for_return else self._inbox.messenger.peers.lost.get(self.process_id)
        error = self.timeout(self._waiting_for) if gone is None else PeerDied(self.peer, gone.reason)
        self._inbox.end(self, error)

    def ended(self, value: Any, error: BaseException | None) -> None:
        """It is over: give back what it holds, and tell its caller."""
        self._inbox.leave(self)
        promise = self.find_promise()
        if promise is not None:
            end(promise, value, error)


class Inbox:
    """Holds what others sent to this process until somebody receives it.

    All but the beginning and the end of a recv is on the I/O thread.

    Args:
        transfers: where recvs are under way.
        own_name: the name that items for this process carry.
        limit_bytes: how much is held of each sender and topic; one item may exceed it.
    """

    def __init__(self, transfers: Transfers, own_name: str, limit_bytes: int) -> None:
        self.transfers = transfers
        self.messenger = messenger = transfers.messenger
        self.next_ticket = itertools.count(1).__next__
        self._own_name = own_name
        self._state = ChannelState(max_bytes=limit_bytes)
        self.replicas = Replicas(messenger, SERVICE, private=True)
        # Who sends under a name that was not looked up here, until its process is gone.
        self._owners: dict[str, str] = {}
        self._names_of: dict[str, set[str]] = {}  # the same, by process
        # Puts of a sender that is not known to have its name, until the directory has answered.
        self._claims: dict[str, list[Request]] = {}
        # By process and ticket.
        self._coming: dict[str, dict[int, _Coming]] = {}
        self._receiving: dict[int, _Receiving] = {}
        # The same, by the sender's process once that is known, and by ticket.
        self._receiving_from: dict[str, dict[int, _Receiving]] = {}
        # Recvs that nobody has a promise of any more, and those whose items are here.
        self.dropped: deque[Any] = deque()
        self._deliveries = Deliveries(self, messenger.call_later)
        self._to_do: deque[Instruction] = deque()
        self._following = False
        messenger.serve(PUT, self._on_put, MailPut)
        messenger.serve(WITHDRAW, self._on_withdraw, MailWithdraw)
        messenger.on_peer_lost(self._forget_process)

    def recv(
        self,
        peer: str,
        *,
        timeout_s: float,
        check: Check | None = None,
        topic: str = "",
        operation: str = "recv",
        waiting_for: str = "an item",
        wait_for_return: bool = False,
    ) -> OperationPromise:
        """The next item from `peer`; one that `check` refuses stays where it is.

        Args:
            peer: from whom.
            timeout_s: how long to wait for it.
            check: see above.
            topic: of which topic.
            operation: what this is part of, for messages.
            waiting_for: what would end the wait, for messages.
            wait_for_return: whether it goes on with another process that takes the sender's name when that dies.

        Returns:
            The promise of the `Letter`: once it is dropped, an item that was not taken goes back to the head.
        """
        receiving = _Receiving(self, operation, peer, topic, timeout_s, check, waiting_for, wait_for_return)
        promise = receiving.new_promise()
        self.transfers.hand_over(partial(self._start, receiving), partial(self.end, receiving))
        return promise

    def held_bytes(self, peer: str, topic: str = "") -> int:
        """How many bytes from `peer` wait for a recv."""
        queue = self._state.queues.find((peer, topic))
        return queue.held_bytes if queue else 0

    # -- recvs -----------------------------------------------------------------------------------

    def _start(self, receiving: _Receiving) -> None:
        self.catch_up()
        if not receiving.is_awaited:
            return
        self._receiving[receiving.ticket] = receiving
        self._follow(self._state.apply(Get(receiving.ticket, receiving.queue), OWN))
        if not receiving.over:
            receiving.start()

    def end(self, receiving: _Receiving, error: BaseException) -> None:
        """End a recv that waits with an error."""
        if self._receiving.get(receiving.ticket) is receiving:
            receiving.end(error=error)

    def note_found(self, receiving: _Receiving) -> None:
        """A recv waits for a process."""
        self._receiving_from.setdefault(receiving.process_id, {})[receiving.ticket] = receiving

    def leave(self, receiving: _Receiving) -> None:
        """A recv does not wait any more; without an item it leaves its line, or what it was about to get goes back."""
        self._receiving.pop(receiving.ticket, None)
        _pop(self._receiving_from, receiving.process_id, receiving.ticket)
        if receiving.letter is None:
            self._follow(self._state.apply(Withdraw(receiving.ticket), OWN))

    def wake(self) -> None:
        """Have it be looked at what was dropped; from any thread."""
        self.messenger.submit(self.catch_up)

    def catch_up(self) -> None:
        """End the recvs that nobody has the promise of; what came for them goes back, unless it was taken."""
        while self.dropped:
            ticket = self.dropped.popleft().ticket
            receiving = self._receiving.get(ticket) or self._deliveries.find(ticket)
            if receiving is not None:
                self._finish_one(receiving)

    def _finish_one(self, receiving: _Receiving) -> None:
        receiving.end(error=CancelledError())
        self._deliveries.forget(receiving.ticket)
        if receiving.is_taken and receiving.letter is not None:
            receiving.letter.arrived = _TAKEN
            self._follow(self._state.confirm(OWN, (receiving.ticket,)))
        else:
            self._follow(self._state.apply(Withdraw(receiving.ticket), OWN))

    def look_at(self, receiving: _Receiving) -> None:
        """Notice what was taken by somebody who keeps the handle, and what nobody wants."""
        if receiving.is_taken or not receiving.is_awaited:
            self._finish_one(receiving)

    def note_arrived(self, tickets: list[int]) -> None:
        """Nobody else is to know."""

    def flush(self) -> None:
        """What follows is sent at once."""

    def _deliver(self, ticket: int, letter: Letter) -> None:
        receiving = self._receiving.get(ticket)
        if receiving is None or not receiving.is_awaited:
            self._follow(self._state.apply(Withdraw(ticket), OWN))
            return
        refused = None if receiving.check is None else receiving.check(letter.tensor)
        if refused is not None:
            receiving.end(error=refused)
            return
        receiving.letter = letter
        self._deliveries.add(receiving)
        receiving.end(letter)
        self._deliveries.look_later()

    # -- puts of other processes -----------------------------------------------------------------

    def _on_put(self, request: Request) -> None:
        put: MailPut = request.head
        if put.receiver != self._own_name:
            raise CommError(f"this is '{self._own_name}', not '{put.receiver}'")
        owner = self._owner_of(put.sender, request.peer_id)
        if owner == request.peer_id and put.sender not in self._claims:
            self._take(request)
        else:
            self._look_up_claim(request)

    def _owner_of(self, name: str, process_id: str) -> str:
        """The process that has a name: where it is not known, the one that sends under it, or that if none does yet."""
        known = self.transfers.finder.known(name)
        if known is not None:
            return known.process_id
        owner = self._owners.setdefault(name, process_id)
        self._names_of.setdefault(owner, set()).add(name)
        return owner

    def _look_up_claim(self, request: Request) -> None:
        """Ask the directory whose name a sender has: it may be another's since that was last heard of here."""
        name = request.head.sender
        claims = self._claims.setdefault(name, [])
        claims.append(request)
        if len(claims) == 1:  # those that come meanwhile are taken after it
            lookup = self.transfers.finder.look_up(name)
            lookup.add_done_callback(partial(self._on_looked_up, name))

    def _on_looked_up(self, name: str, lookup: Promise[Entry]) -> None:
        claims = self._claims.pop(name, [])
        failure = CancelledError() if lookup.cancelled() else lookup.exception(0)
        if failure is None:
            endpoint = lookup.result(0).endpoint
            self._names_of.get(self._owners.pop(name, ""), set()).discard(name)
            self.transfers.finder.learn(name, endpoint)
        for request in claims:
            if request.is_cancelled:  # its sender is gone
                continue
            try:
                self._check_claim(request, failure)
                self._take(request)
            except Exception as error:  # noqa: BLE001 - its sender's, as of every request; the next ones are answered
                request.fail(error)

    def _check_claim(self, request: Request, failure: BaseException | None) -> None:
        """Raise a CommError unless a sender has its name, as its look-up says, or what is known here if that failed."""
        name = request.head.sender
        owner = self._owner_of(name, request.peer_id)
        if failure is not None and owner != request.peer_id:  # that may be gone, which was not noticed here
            who = f"'{request.peer_name}' says that it is '{name}'"
            raise CommError(f"{who}, which could not be looked up: {failure}") from failure
        request.check_claim(owner, f"it is '{name}'")

    def _take(self, request: Request) -> None:
        put: MailPut = request.head
        self.catch_up()
        client = request.peer_id
        coming = self._coming.setdefault(client, {})[put.ticket] = _Coming(request)
        arrived = self._receive(coming)
        letter = None if arrived is None else Letter(put.tensor, arrived)
        announced = put.size_bytes if letter is None else None
        entering = Put(put.ticket, (put.sender, put.topic), size_bytes=announced)
        self._follow(self._state.apply(entering, client, Item(letter, size_bytes=put.size_bytes)))

    def _on_withdraw(self, notice: Request) -> None:
        for claims in self._claims.values():
            for request in claims:
                if (request.peer_id, request.head.ticket) == (notice.peer_id, notice.head.ticket):
                    claims.remove(request)
                    request.reply(PutOutcome(False, 0))
                    return
        self._follow(self._state.apply(Withdraw(notice.head.ticket), notice.peer_id))

    def _receive(self, coming: _Coming) -> ReceivedPayload | None:
        """What came with a put; None if it has to be asked for."""
        if not coming.request.frames:
            return None
        try:
            return self.messenger.payloads.receive(coming.request.frames)
        except SharedMemoryUnreadable as error:
            coming.unreadable = error.reason
            return None

    def _read(self, coming: _Coming) -> None:
        """There is room for an item whose bytes are elsewhere."""
        source = coming.put.source
        if source is None:
            self._give_up(coming, CommError("an item came without bytes, and without a place to read them"))
            return

        def done(_key: Key | None, arrived: ReceivedPayload | None, error: BaseException | None) -> None:
            if arrived is None:
                self._give_up(coming, error or CommError("nothing was read"))
            else:
                letter = Letter(coming.put.tensor, arrived)
                self._follow(self._state.apply(Fill(coming.put.ticket), coming.request.peer_id, letter))

        coming.reading = Reading(
            self.messenger,
            self.replicas,
            source.origin,
            ask=lambda want: self.messenger.request(
                source.origin, READ, Read(source.key, want), reply_type=ReaderAnswer
            ),
            done=done,
            unreadable=coming.unreadable,
        )
        coming.reading.start()

    def _give_up(self, coming: _Coming, error: BaseException) -> None:
        _pop(self._coming, coming.request.peer_id, coming.put.ticket)
        coming.request.fail(error)
        self._follow(self._state.apply(Withdraw(coming.put.ticket), coming.request.peer_id))

    def _outcome(self, client: str, ticket: int, *, held: bool) -> None:
        coming = _pop(self._coming, client, ticket)
        if coming is None:
            return
        if coming.reading is not None:
            coming.reading.stop()
        held_bytes = 0 if held else self.held_bytes(coming.put.sender, coming.put.topic)
        coming.request.reply(PutOutcome(held, held_bytes))

    def _forget_process(self, process_id: str) -> None:
        for name in self._names_of.pop(process_id, ()):
            del self._owners[name]
        for coming in self._coming.pop(process_id, {}).values():
            if coming.reading is not None:
                coming.reading.stop()
        self._follow(self._state.apply(Lose(), process_id))
        for receiving in self._receiving_from.pop(process_id, {}).values():
            receiving.process_id = ""
            receiving.lose(PeerDied(receiving.peer, self.messenger.peers.why_lost(process_id)))

    def _follow(self, instructions: list[Instruction]) -> None:
        """Do what the queues' state asks for, in order, however much follows from it."""
        self._to_do.extend(instructions)
        if self._following:
            return
        self._following = True
        try:
            while self._to_do:
                self._carry_out(self._to_do.popleft())
        finally:
            self._following = False

    def _carry_out(self, instruction: Instruction) -> None:
        client, ticket = instruction.client, instruction.ticket
        if isinstance(instruction, Deliver):
            self._deliver(ticket, instruction.items[0].payload)
        elif isinstance(instruction, Grant):
            coming = self._coming.get(client, {}).get(ticket)
            if coming is not None:
                self._read(coming)
        elif client != OWN:
            self._outcome(client, ticket, held=isinstance(instruction, Accept))


def _pop(of_processes: dict[str, dict[int, Of]], process_id: str, ticket: int) -> Of | None:
    """Take out what a process has under a ticket; None without it."""
    of_process = of_processes.get(process_id, {})
    found = of_process.pop(ticket, None)
    if not of_process:
        of_processes.pop(process_id, None)
    return found
