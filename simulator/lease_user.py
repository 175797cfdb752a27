"""What a process does with the items that it has on lease: keeps them, and says what became of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf_scheduler.queueing import OnLease
from simulator.channel_wire import Extend, Settle
from simulator.host import Host
from simulator.users import UserCall

# How long a user works, and what becomes of it: done, failed, failed and to be tried later, left without a word,
# or so late that its own process has given the items back before.
WORK_US = (0, 2_000, 100_000, 2_000_000)
FATES = ("done", "failed", "failed, later", "left", "late")
SHARES = (60, 15, 10, 10, 5)
DELAYS_S = (0.002, 1.0)
SHARE = 3


class LeaseUser:
    """The leases of one process.

    Args:
        host: the process.
        send: sends something to the server.
        leave: a lease is left without a word.
        forget: the server hears what became of a lease.
    """

    def __init__(
        self,
        host: Host,
        send: Callable[[Any], None],
        leave: Callable[[UserCall], None],
        forget: Callable[[int], None],
    ) -> None:
        self._host = host
        self._send = send
        self._leave = leave
        self._forget = forget
        self._draw = host.world.randomness("leases", host.name)
        self._notes: dict[int, OnLease] = {}
        self._kept: set[int] = set()

    def note(self, ticket: int, lease: OnLease) -> None:
        """Items that come are on lease."""
        self._notes[ticket] = lease

    def came(self, call: UserCall) -> None:
        """Items came, and if they are on lease, they are kept from now on."""
        if call.step.kind == "lease":
            self._kept.add(call.ticket)
            self._host.later(call.step.ttl_us // SHARE, self._keep, call)

    def ended(self, ticket: int) -> None:
        """A lease is over."""
        self._kept.discard(ticket)

    def taken(self, call: UserCall) -> None:
        """A user has the items: some time it says what became of them."""
        lease = self._notes[call.ticket]
        work_us = self._draw.choice(WORK_US)
        fate = self._draw.choices(FATES, SHARES)[0]
        if fate == "late":
            self._host.later(work_us // 2, self._settle, call, Settle(lease.generation, False))
        if len(call.items or ()) > 1 and self._draw.random() < 0.5:
            # The first one is settled by itself.
            done = self._draw.random() < 0.7
            self._host.later(
                work_us // 3, self._settle_first, call, Settle(lease.generation, done, 0.0, (0,))
            )
        if fate == "left":
            self._host.later(work_us, self._drop, call)
        else:
            delay_s = self._draw.choice(DELAYS_S) if fate == "failed, later" else 0.0
            settle = Settle(lease.generation, fate in ("done", "late"), delay_s)
            self._host.later(work_us, self._settle, call, settle)

    def _keep(self, call: UserCall) -> None:
        if call.ticket in self._kept:
            self._send(Extend(self._notes[call.ticket].generation))
            self._host.later(call.step.ttl_us // SHARE, self._keep, call)

    def _settle(self, call: UserCall, settle: Settle) -> None:
        """Also when it is too late: then the server is to refuse it."""
        self._host.world.note(self._host.name, "settles", *settle, *(call.items or ()))
        self.ended(call.ticket)
        self._forget(call.ticket)
        self._send(settle)

    def _settle_first(self, call: UserCall, settle: Settle) -> None:
        if call.ticket in self._kept:
            self._host.world.note(self._host.name, "settles", *settle, *(call.items or ())[:1])
            self._send(settle)

    def _drop(self, call: UserCall) -> None:
        if call.ticket in self._kept:
            self.ended(call.ticket)
            self._leave(call)
