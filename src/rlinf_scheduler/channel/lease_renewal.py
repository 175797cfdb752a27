"""Keeps the leases of this process alive, as long as its I/O thread lives and for as long as they may be worked at.

The server ends a lease that it has not heard of for `ttl_s`: its process hangs, is stopped, or cannot be reached. What
lives, and does not come to an end, is given back here, when its `work_deadline_s` is over.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.batch import Delivery
from rlinf_scheduler.channel.operation import ANSWER_S, Operation
from rlinf_scheduler.comm.loop import Timer, ending
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.promise import Promise

# Of the time that a lease lasts, how much passes before it is kept alive again: two such messages may be late.
SHARE = 3
OVERDUE = "its consumer did not come to an end in {:g} s"


class TellsServer(Protocol):
    """A `ChannelClient`, as its leases see it."""

    def ask_at_once(
        self, message: control_wire.Control, kind: Any, what: str, timeout_s: float, answer: Promise[Any]
    ) -> None:
        """Send a request before what was dropped since it was handed over."""

    def settled(self, operation: Operation) -> None:
        """Expect nothing more of items on lease."""

    def tell(self, message: control_wire.Control) -> None:
        """Send what nobody waits for the answer of."""


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
        messenger: this process's messenger.
    """

    def __init__(self, client: TellsServer, messenger: Messenger) -> None:
        self._client = client
        self._messenger = messenger
        self._kept: dict[int, _Kept] = {}

    def begin(self, operation: Operation, items: Delivery) -> None:
        """Items came on lease."""
        if operation.lease is not None and items.told.lease is not None:
            generation, ttl_s = items.told.lease.generation, operation.lease.ttl_s
            kept = _Kept(self._messenger.now(), generation, ttl_s, operation.keep_s)
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

    def ask_for_more(self, what: tuple[Operation, control_wire.Extend, Promise[Any]]) -> None:
        """Let items be on lease for longer."""
        operation, message, answer = what
        self.extend(operation.ticket, message.for_s or 0.0)
        self._client.ask_at_once(message, control_wire.Done, "extend", ANSWER_S, answer)

    def settle(self, operation: Operation) -> None:
        """Say what became of items on lease, unless that is said; after the last ones nothing is to follow."""
        while operation.settlements:
            message, is_last, answer = operation.settlements.popleft()
            ending(partial(self._settle, operation, message, is_last, answer), answer.set_exception)()

    def _settle(
        self, operation: Operation, message: control_wire.Settle, is_last: bool, answer: Promise[Any]
    ) -> None:
        if is_last:
            self._client.settled(operation)
        self._client.ask_at_once(
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
            self._client.tell(control_wire.Extend(kept.generation))
        else:
            self.end(ticket)
            reason = OVERDUE.format(kept.until - kept.began)
            self._client.tell(control_wire.Settle(kept.generation, None, False, 0, reason))
