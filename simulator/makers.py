"""Makers and trainers of a queue that admits: they ask, work, take, announce, and leave at every step.

Each is a loop of one process, around the real `ClientState`; what it was doing when its process dies is lost with it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from rlinf_scheduler.queueing import Accept, Deliver, OnLease, Reason, Refuse
from rlinf_scheduler.queueing.client import (
    ClientInstruction,
    ClientState,
    Confirm,
    End,
    Ending,
    Send,
    SendWithdraw,
)
from simulator.host import Host

ADMISSION, SERVER, FRESH = "admission", "server", "fresh"
MAX_PAUSE_US = 20_000
# How often a trainer that may not go on tries again.
MAX_TRIES = 6


class Admit(NamedTuple):
    """Ask for a slot."""

    ticket: int
    max_lag: int


class Make(NamedTuple):
    """Put an item with a slot."""

    ticket: int
    item: int
    slot: int


class Take(NamedTuple):
    """Ask for so many items, on lease for a while if `ttl_us` is more than 0."""

    ticket: int
    num_items: int
    ttl_us: int


class Say(NamedTuple):
    """Say a version."""

    ticket: int
    version: int
    batch_items: int
    begins: bool


class Withdraw(NamedTuple):
    """Nobody wants an operation any more, or its slot."""

    ticket: int


class Taken(NamedTuple):
    """The items of a delivery were taken."""

    ticket: int


class Settle(NamedTuple):
    """Items on lease are done with, or go back."""

    ticket: int
    generation: int
    done: bool


class HoldSlot(NamedTuple):
    """The process holds a copy of a slot, which it calls `ticket`; or one was `sent`, and is nobody's yet."""

    ticket: int
    slot: int
    sent: bool


class LetGoOfSlot(NamedTuple):
    """It holds that copy no more; nor is the one that was sent as `source`."""

    ticket: int
    slot: int
    source: int


Message = Admit | Make | Take | Say | Withdraw | Taken | Settle | HoldSlot | LetGoOfSlot
Outcome = Callable[[Ending, Any], None]


class AdmissionClient:
    """One process's side of a queue that admits.

    Args:
        host: the process.
        state: the machine under test.
        next_number: gives tickets and items their numbers.
    """

    def __init__(self, host: Host, state: ClientState, next_number: Callable[[], int]) -> None:
        self.host = host
        self.state = state
        self.next_number = next_number
        self.cut_off = False
        self._begun: dict[int, tuple[Message, Outcome]] = {}
        host.serve(ADMISSION, self)

    def begin(self, message: Admit | Make | Take | Say, outcome: Outcome) -> int:
        """Begin an operation; `outcome` hears how it ends."""
        ticket = message.ticket
        self._begun[ticket] = message, outcome
        if self.cut_off:
            self.host.later(1, outcome, Ending.LOST, None)
            return ticket
        state = self.state
        begin = state.get if isinstance(message, Admit | Take) else state.say
        self._carry_out(begin(ticket, FRESH))
        return ticket

    def drop(self, ticket: int) -> None:
        """Nobody waits for an operation, or wants what it brought."""
        self._carry_out(self.state.drop(ticket))

    def expire(self, ticket: int) -> None:
        """The deadline of an operation has passed."""
        self._carry_out(self.state.expire(ticket))

    def take(self, ticket: int) -> None:
        """What it brought is its user's."""
        self._carry_out(self.state.taken(ticket))

    def tell(self, message: HoldSlot | LetGoOfSlot) -> None:
        """Say what became of a copy of a slot."""
        if not self.cut_off:
            self.host.send(SERVER, ADMISSION, [message])

    def settle(self, ticket: int, generation: int, *, done: bool) -> None:
        """Say what became of a lease."""
        self.state.settled(ticket)
        if not self.cut_off:
            self.host.send(SERVER, ADMISSION, [Settle(ticket, generation, done)])

    def receive(self, _sender: str, news: list[Accept | Deliver | Refuse]) -> None:
        """News from the server."""
        for each in news:
            match each:
                case Accept(_, ticket):
                    self._carry_out(self.state.accepted(ticket))
                case Deliver(_, ticket):
                    self._carry_out(self.state.delivered(ticket, each))
                case Refuse(_, ticket, reason):
                    withdrawn = reason is Reason.CANCELLED
                    self._carry_out(self.state.refused(ticket, reason, withdrawn=withdrawn))

    def lost(self, peer: str) -> None:
        """The server has gone, or holds this process for dead."""
        if peer == SERVER:
            self.cut_off = True
            self._carry_out(self.state.lose())

    def _carry_out(self, instructions: list[ClientInstruction]) -> None:
        out: list[Message] = []
        for each in instructions:
            match each:
                case Send(ticket):
                    out.append(self._begun[ticket][0])
                case SendWithdraw(ticket):
                    out.append(Withdraw(ticket))
                case Confirm(ticket):
                    out.append(Taken(ticket))
                case End(ticket, ending, detail):
                    # Its user finds it a little later.
                    self.host.later(1, self._begun[ticket][1], ending, detail)
        if out and not self.cut_off:
            self.host.send(SERVER, ADMISSION, out)


class _Agent:
    """A loop in one process, which waits for one operation at a time.

    Attributes:
        waiting: the ticket of that.
        over: it has ended.
    """

    def __init__(self, client: AdmissionClient, num_left: int, draw: Random) -> None:
        self._client = client
        self._num_left = num_left
        self._draw = draw
        self.waiting: int | None = None
        self.over = False

    def stop(self) -> None:
        """Wait for nothing any more."""
        self._num_left = 0
        if self.waiting is not None:
            self._client.drop(self.waiting)
            self.waiting, self.over = None, True

    def _later(self, action: Callable[..., None], *args: Any, within_us: int = MAX_PAUSE_US) -> None:
        self._client.host.later(1 + self._draw.randrange(within_us), action, *args)


class Maker(_Agent):
    """A loop around `admit` and `put`; some makers drop slots, and leave calls.

    Args:
        client: its process's side.
        name: of its dice.
        num_items: so many it makes.
        mean_us: how long one takes, about; some much longer.
        max_lags: it chooses among them.
        sent: copies of slots that makers have sent, for others to put with: of which slot, and their keys.
    """

    def __init__(
        self,
        client: AdmissionClient,
        name: object,
        num_items: int,
        mean_us: int,
        max_lags: tuple[int, ...],
        sent: list[tuple[int, int]],
    ) -> None:
        self._sent = sent
        super().__init__(client, num_items, client.host.world.randomness("maker", client.host.name, name))
        self._mean_us = mean_us
        self._max_lags = max_lags
        self._later(self._ask)

    def _ask(self) -> None:
        if self._num_left <= 0:
            self.over = True
            return
        self._num_left -= 1
        ticket = self._client.next_number()

        def ended(ending: Ending, detail: Any) -> None:
            if self.waiting != ticket:
                return  # it was left
            self.waiting = None
            if ending is Ending.DELIVERED:
                duration_us = int(self._mean_us * min(50.0, self._draw.paretovariate(1.1)))
                self._client.host.later(duration_us, self._made, ticket, detail.slot.number)
            elif ending in (Ending.LOST, Ending.REFUSED):
                self.over = True
            else:
                self._later(self._ask)

        self.waiting = self._client.begin(Admit(ticket, self._draw.choice(self._max_lags)), ended)
        if self._draw.random() < 0.1:
            self._later(self._leave, ticket)

    def _leave(self, ticket: int) -> None:
        if self.waiting == ticket and self._draw.random() < 0.5:
            self._client.expire(ticket)
        elif self.waiting == ticket:
            self.waiting = None
            self._client.drop(ticket)
            self._later(self._ask)

    def _made(self, slot_ticket: int, slot: int) -> None:
        if self._draw.random() < 0.15:
            self._client.drop(slot_ticket)
            self._later(self._ask)
            return
        if self._draw.random() < 0.3:
            self._send(slot_ticket, slot)
            return

        def ended(ending: Ending, _detail: Any) -> None:
            if ending is Ending.ACCEPTED:
                self._client.take(slot_ticket)
            self._later(self._ask)

        ticket = self._client.next_number()
        self._client.begin(Make(ticket, ticket, slot), ended)
        if self._draw.random() < 0.05:  # interrupted, and its slot with it
            self._client.drop(ticket)
            self._client.drop(slot_ticket)
            self._later(self._ask)

    def _send(self, slot_ticket: int, slot: int) -> None:
        """Send the slot to whoever comes next, and keep nothing; take one that was sent, perhaps this."""
        key = self._client.next_number()
        self._client.tell(HoldSlot(key, slot, True))
        self._sent.append((slot, key))
        self._client.drop(slot_ticket)
        self._later(self._open, *self._draw.choice(self._sent))

    def _open(self, slot: int, source: int) -> None:
        key = self._client.next_number()
        self._client.tell(HoldSlot(key, slot, False))
        duration_us = int(self._mean_us * min(50.0, self._draw.paretovariate(1.1)))
        self._client.host.later(1 + duration_us, self._use_copy, slot, key, source)

    def _use_copy(self, slot: int, key: int, source: int) -> None:
        if self._draw.random() < 0.3:
            self._client.tell(LetGoOfSlot(key, slot, source))
        else:
            ticket = self._client.next_number()
            self._client.begin(Make(ticket, ticket, slot), lambda *_end: None)
        self._later(self._ask)


class Taker(_Agent):
    """A loop around `get_batch` and leases; a trainer says which version it is at.

    Args:
        client: its process's side.
        batch_items: how many items a version takes.
        num_steps: so many it makes.
        begins_at: with which version; None for one that is no trainer.
    """

    def __init__(
        self, client: AdmissionClient, batch_items: int, num_steps: int, begins_at: int | None = None
    ) -> None:
        self._is_trainer = begins_at is not None
        draw = client.host.world.randomness("taker", client.host.name, not self._is_trainer)
        super().__init__(client, num_steps, draw)
        self._batch_items = batch_items
        self._num_got = self._num_tries = 0
        self._version = -1 if begins_at is None else begins_at - 1
        self._later(self._say if self._is_trainer else self._take, within_us=1_000)

    def _begin(self, message: Take | Say, outcome: Outcome) -> None:
        ticket = message.ticket

        def ended(ending: Ending, detail: Any) -> None:
            if self.waiting == ticket:
                self.waiting = None
                outcome(ending, detail)

        self.waiting = self._client.begin(message, ended)
        if self._draw.random() < 0.3:
            self._later(self._expire, ticket)

    def _expire(self, ticket: int) -> None:
        if self.waiting == ticket:
            self._client.expire(ticket)

    def _take(self) -> None:
        if self._num_left <= 0:
            self.over = True
            return
        if not self._is_trainer:
            self._num_left -= 1
        left = self._batch_items - self._num_got if self._is_trainer else 1
        num_items = self._draw.choice((max(1, left), 1))
        ttl_us = self._draw.choice((0, 0, 5_000, 1_000_000))

        def ended(ending: Ending, detail: Any) -> None:
            if ending is Ending.DELIVERED:
                self._later(self._use, detail)
            elif ending in (Ending.LOST, Ending.REFUSED):
                self.over = True
            else:
                self._later(self._go_on)

        self._begin(Take(self._client.next_number(), num_items, ttl_us), ended)

    def _use(self, delivery: Deliver) -> None:
        done = self._draw.random() < 0.85
        if isinstance(delivery.grant, OnLease):
            self._client.settle(delivery.ticket, delivery.grant.generation, done=done)
        elif done:
            self._client.take(delivery.ticket)
        else:
            self._client.drop(delivery.ticket)
        self._num_got += len(delivery.items) if done else 0
        self._later(self._go_on)

    def _go_on(self) -> None:
        if self._is_trainer and self._num_got >= self._batch_items:
            self._say()
        else:
            self._take()

    def _say(self) -> None:
        if self._num_left <= 0:
            self.over = True
            return
        begins = self._num_tries == 0 and self._num_got == 0
        version = self._version + 1

        def ended(ending: Ending, _detail: Any) -> None:
            if ending is Ending.ACCEPTED:
                self._version, self._num_got = version, 0
                self._num_tries, self._num_left = 1, self._num_left - 1
                self._later(self._take)
            elif ending is Ending.LOST or self._num_tries > MAX_TRIES:
                self.over = True
            else:
                self._num_tries += 1
                self._num_got = max(0, self._num_got - 1)
                self._later(self._take if ending is Ending.REFUSED else self._say)

        self._begin(Say(self._client.next_number(), version, self._batch_items, begins), ended)
