"""How leases go: the gets that ask for them, what is said to the server of them, and how they are kept alive.

A process keeps its leases alive as long as its I/O thread lives, and for as long as they may be worked at. The server
ends a lease that it has not heard of for `ttl_s`: its process hangs, is stopped, or cannot be reached. What lives, and
does not come to an end, is given back here, when its `work_deadline_s` is over.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.batch import BatchOperation
from rlinf_scheduler.channel.client_parts import ClientParts
from rlinf_scheduler.channel.copies import Ends
from rlinf_scheduler.channel.operation import ANSWER_S
from rlinf_scheduler.channel.taking import NOT_DRAINING, TakesWork
from rlinf_scheduler.comm.loop import Timer, ending
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.errors import ChannelError, LeaseExpired, SchedulerError
from rlinf_scheduler.queueing.dead_letters import MoveDead
from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.queueing.leases import Extend, LeaseTerms, OnLease, Settle
from rlinf_scheduler.queueing.messages import Reason

if TYPE_CHECKING:
    from rlinf_scheduler.channel.connection import ChannelConnection

# Of the time that a lease lasts, how much passes before it is kept alive again: two such messages may be late.
SHARE = 3
OVERDUE = "its consumer did not come to an end in {:g} s"


class LeaseOperation(TakesWork, BatchOperation):
    """A get on lease, of an item, a batch or a group.

    Attributes:
        terms: how long it lasts without a sign of life, and whose it is.
        keep_s: for how long this process keeps it alive.
        copies: what is to be said when an item is done with, of the slots in it, by the item's place.
        settlements: what became of its items, until the server is told: what is to be sent, whether they are the last
            ones, and the reply to come.
    """

    __slots__ = ("copies", "draining", "keep_s", "settlements", "terms")
    terms: LeaseTerms
    keep_s: float

    def __init__(
        self,
        kind: str,
        queue_name: QueueName,
        timeout_s: float | None,
        now: Callable[[], float],
        *,
        wait: bool = True,
    ) -> None:
        super().__init__(kind, queue_name, timeout_s, now, wait=wait)
        self.draining = NOT_DRAINING
        self.copies: Ends = {}
        self.settlements: deque[tuple[Settle, bool, Promise[Any]]] = deque()

    def opening(self, _num_frames: int = 0, _size_bytes: int | None = None) -> wire.AnyGet:
        """How it begins at the server."""
        get = super().opening()
        get.grant = self.terms
        return get

    def refusal(self, channel: str, reason: str, state: str) -> SchedulerError | None:
        """Return the error of a lease that was over before its items were here."""
        if reason == Reason.CANCELLED.value:
            return LeaseExpired(channel, self.queue_name, state)
        return None

    def arriving(self, client: ClientParts, told: wire.Delivered) -> None:
        """Keep alive what is on its way, which nobody works at yet."""
        client.feature(LeaseRenewal).begin(self, told, math.inf)

    def delivered(self, client: ClientParts, told: wire.Delivered) -> None:
        """Keep it alive: its server keeps the items, wherever they are, until they are settled."""
        client.feature(LeaseRenewal).begin(self, told, self.keep_s)
        client.deliveries.look_later()

    def unwanted(self, client: ClientParts) -> None:
        """Say first what became of items."""
        client.feature(LeaseRenewal).settle(self)

    def over(self, client: ClientParts) -> None:
        """Keep it alive no more."""
        client.feature(LeaseRenewal).end(self.ticket)


def settle(
    connection: ChannelConnection, operation: LeaseOperation, message: Settle, is_last: bool
) -> Promise[Any]:
    """Say what became of items on lease, the last ones perhaps; the reply is to come."""
    answer: Promise[Any] = Promise()
    # Not in the inbox: what comes before it there may find that the rest of the lease was dropped.
    operation.settlements.append((message, is_last, answer))
    return connection.requests.request(_settle, operation, answer)


def _settle(client: ClientParts, operation: LeaseOperation, _answer: Promise[Any]) -> None:
    client.feature(LeaseRenewal).settle(operation)


def extend(connection: ChannelConnection, operation: LeaseOperation, message: Extend) -> Promise[Any]:
    """Let items be on lease for longer; the reply is to come."""
    return connection.requests.request(partial(_extend, message=message), operation, Promise())


def _extend(client: ClientParts, operation: LeaseOperation, answer: Promise[Any], message: Extend) -> None:
    client.feature(LeaseRenewal).extend(operation.ticket, message.for_s or 0.0)
    client.requests.send_at_once(message, control_wire.Done, "extend", ANSWER_S, answer)


class _Kept:
    __slots__ = ("began", "generation", "next_sign", "timer", "ttl_s", "until")

    def __init__(self, now: float, generation: int, ttl_s: float, keep_s: float) -> None:
        self.generation = generation
        self.ttl_s = ttl_s
        self.began = now
        self.until = self.began + keep_s
        self.next_sign = self.began + ttl_s / SHARE
        self.timer: Timer | None = None


class LeaseRenewal:
    """The leases that users of this process have of one channel. On the I/O thread only.

    Args:
        client: this process's of that channel.
    """

    def __init__(self, client: ClientParts) -> None:
        self._client = client
        self._messenger = client.messenger
        self._kept: dict[int, _Kept] = {}
        client.on_lost.append(self.close)

    def begin(self, operation: LeaseOperation, told: wire.Delivered, keep_s: float) -> None:
        """Keep alive for so long what comes on lease."""
        if told.grant is not None:
            lease = OnLease(*told.grant)
            kept = _Kept(self._messenger.now(), lease.generation, operation.terms.ttl_s, keep_s)
            self._kept[operation.ticket] = kept
            self._plan(operation.ticket)

    def end(self, ticket: int) -> None:
        """A lease is over."""
        kept = self._kept.pop(ticket, None)
        if kept is not None and kept.timer is not None:
            kept.timer.cancel()

    def extend(self, ticket: int, for_s: float) -> None:
        """Let a lease be worked at for so long from now, at least."""
        kept = self._kept.get(ticket)
        if kept is not None:
            kept.until = max(kept.until, self._messenger.now() + for_s)
            self._plan(ticket)

    def settle(self, operation: LeaseOperation) -> None:
        """Say what became of items on lease, unless that is said; after the last ones nothing is to follow."""
        while operation.settlements:
            message, is_last, answer = operation.settlements.popleft()
            ending(partial(self._settle, operation, message, is_last, answer), answer.set_exception)()

    def _settle(
        self, operation: LeaseOperation, message: Settle, is_last: bool, answer: Promise[Any]
    ) -> None:
        if is_last:
            self._client.settled(operation)
        self._client.requests.send_at_once(
            message, control_wire.Done, "ack" if message.done else "nack", ANSWER_S, answer
        )

    def close(self) -> None:
        """Keep nothing alive any more."""
        for ticket in list(self._kept):
            self.end(ticket)

    def _plan(self, ticket: int) -> None:
        kept = self._kept[ticket]
        if kept.timer is not None:
            kept.timer.cancel()
        after_s = max(0.0, min(kept.next_sign, kept.until) - self._messenger.now())
        kept.timer = self._messenger.call_later(after_s, partial(self._on_time, ticket))

    def _on_time(self, ticket: int) -> None:
        kept = self._kept[ticket]
        now = self._messenger.now()
        if now < kept.until:
            kept.next_sign = now + kept.ttl_s / SHARE
            # Before: what is said goes with what has become of leases meanwhile, and this one may be over by then.
            self._plan(ticket)
            self._client.requests.send_untold(Extend(kept.generation))
        else:
            self.end(ticket)
            reason = OVERDUE.format(kept.until - kept.began)
            self._client.requests.send_untold(Settle(kept.generation, None, False, 0, reason))


class DeadLetter:
    """An item that was given out `max_attempts` times and never acknowledged. The channel keeps it, read or not.

    Attributes:
        queue_name: where it came from.
        size_bytes: how large the item is.
        attempts: how often it was given out.
        reason: why the last attempt came to nothing.
        last_consumer: who made it, as `rollout:3`.
    """

    def __init__(self, connection: ChannelConnection, letter: control_wire.DeadNote) -> None:
        self.queue_name: QueueName = wire.as_name(letter.queue)
        self.size_bytes = letter.size_bytes
        self.attempts = letter.attempts
        self.reason = letter.reason
        self.last_consumer = letter.consumer
        self._connection = connection
        self._number = letter.number

    @cached_property
    def item(self) -> Any:
        """The item, fetched when it is looked at first.

        Raises:
            ChannelError: it was put back, or discarded; or the node that has it did not answer within a minute.
            ChannelUnanswered: the channel's process did not answer.
            CodecError: it cannot be read here.
            CommError: it lies on a device, whose process cannot be reached.
        """
        reply = self._connection.requests.read(control_wire.ReadDead(self._number), "dead_letters")
        self._check(reply.head)
        return ReceivedPayload(reply.frames).load()

    def put_back(self) -> None:
        """Put the item to the head of its queue, to be given out as often as in the beginning.

        Raises:
            ChannelError, ChannelUnanswered: as of `item`; or it would be older than it may be.
        """
        self._check(self._connection.requests.ask(MoveDead(self._number, True), control_wire.Done))

    def discard(self) -> None:
        """Drop the item for good.

        Raises:
            ChannelError, ChannelUnanswered: as of `item`.
        """
        self._check(self._connection.requests.ask(MoveDead(self._number, False), control_wire.Done))

    def _check(self, done: control_wire.Done) -> None:
        if done.problem:
            name = self._connection.ref.spec.name
            raise ChannelError(name, f"a dead letter of queue {self.queue_name!r}: {done.problem}")

    def __repr__(self) -> str:
        return (
            f"<DeadLetter of queue {self.queue_name!r}: {self.attempts} attempts, the last by "
            f"{self.last_consumer}: {self.reason}>"
        )
