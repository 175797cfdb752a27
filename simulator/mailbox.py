"""A mailbox of the product in every process: sends, recvs and broadcasts, by names that successors take over.

A process has books of what comes to it. A name is found by the product's directory, which the server's process keeps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlinf_scheduler.comm.directory import RETURNS, Entry, Register
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.payloads import SHARED_BYTES
from rlinf_scheduler.errors import CommTimeout, NameTaken, PeerDied, PeerNotFound
from rlinf_scheduler.mailbox import inbox
from rlinf_scheduler.mailbox.mailbox import Mailbox
from rlinf_scheduler.mailbox.members import parse_members
from rlinf_scheduler.queueing import messages
from rlinf_scheduler.queueing.item import Item, QueueName
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import depths_of
from simulator.cluster import Cluster, Part
from simulator.handle_users import LATE_US, HandleCall, HandleUsers
from simulator.host import Host
from simulator.ledger import Ledger
from simulator.processes import ProductProcess, replaced
from simulator.producer_oracle import ProducerOracle
from simulator.script import Call, Script
from simulator.watched import Names, WatchedState
from simulator.world import Violation

OWN = "own"
GROUP = "client"
MAX_BYTES = 400_000
AGAIN_US = 500_000
"""A name that is not free is asked for again after so long."""
AUDITOR = 2_000_000
"""The first number of the calls that empty the mailboxes at the end."""
# How a send may have ended that has arrived.
_MAY_BE_HELD = frozenset(("taken", "unanswered", "dropped", "lost", ""))


@dataclass(slots=True)
class Mail:
    """A send or a broadcast, of which there is one copy for each receiver.

    Attributes:
        number: of the call.
        order: its place among those of its process.
        returns: it may go to more than one process that has the receiver's name.
        num_targets: how many processes are to have it.
        outcome: how it ended, for its user; empty if its process died before.
    """

    number: int
    order: int
    returns: bool
    num_targets: int = 1
    outcome: str = ""


@dataclass(slots=True)
class MailNames(Names):
    """How the books of one mailbox call what others send there."""

    def of(self, process_id: str, ticket: int) -> tuple[str, int]:
        """Return the name of a process, and the number of its call."""
        name = self.processes.get(process_id, "") if process_id else OWN
        return name, self.calls.get((name, ticket), ticket)

    def number_of(self, item: Item) -> int:
        """Return the number of the call that has sent an item."""
        return _number(item.payload.arrived.load())


class WatchedInbox(WatchedState):
    """The queues of one mailbox."""

    def __init__(self, mailbox: MailUsers, max_bytes: int) -> None:
        self._mailbox = mailbox
        self.title = mailbox.name
        super().__init__(
            mailbox.world, mailbox.ledger, ProducerOracle(0, 0), mailbox.names, None, 0, max_bytes=max_bytes
        )

    def _puts(self, put: messages.Put, client: str, item: Item) -> None:
        name, number = self._names.of(client, put.ticket)
        self._mailbox.hear(name, number, put.queue, item.size_bytes)
        super()._puts(put, client, item)

    def _lies_elsewhere(self, payload: Any) -> bool:
        # What comes as a descriptor costs no credit.
        return payload is not None and payload.arrived.size_bytes >= SHARED_BYTES


class MailUsers(HandleUsers):
    """The users of one process's mailbox.

    Attributes:
        number: of the process, by which others name it.
        ledger: follows what comes here.
        names: how it calls that.
        sent: what was sent here, by number.
        mailbox: the product's.
    """

    def __init__(self, part: MailboxPart, host: Host, process: ProductProcess, number: int) -> None:
        super().__init__(host, "mailbox")
        self.number = number
        script, machines = part.cluster.script, part.cluster.machines
        self.ledger = Ledger(
            part.ordered.get(number, ()), max_bytes=MAX_BYTES, credit_bytes=script.credit_bytes
        )
        self.names = MailNames(part.cluster.processes.names.processes, part.calls)
        self.sent: dict[int, Mail] = {}
        self.process = process
        self._part = part
        self._starting = self._sending = -1
        self._is_known = False
        self._early: list[Call] = []
        broken: Any = machines.receiver
        kind = WatchedInbox if broken is ChannelState else type("Watched", (WatchedInbox, broken), {})
        with replaced(inbox, "ChannelState", partial(kind, self)):
            self.mailbox = Mailbox(
                process.messenger, process.session.directory, _name(number), limit_bytes=MAX_BYTES
            )
        self._number_tickets()
        self.mailbox._outbox.new_client = partial(machines.client, script.credit_bytes)
        self._register()

    def _number_tickets(self) -> None:
        """Let the books find the calls of tickets: of a recv it is its number, sends begin in the order of calls."""
        self.mailbox._inbox.next_ticket = lambda: self._starting
        next_ticket, transfers = itertools.count(1).__next__, self.mailbox._outbox.transfers
        hand_over = transfers.hand_over

        def numbered() -> int:
            ticket = next_ticket()
            self._part.calls[self.name, ticket] = self._sending
            return ticket

        def hand_over_numbered(step: Callable[[], None], fail: Callable[[Exception], object]) -> None:
            number = self._starting

            def begin() -> None:
                self._sending = number
                step()

            hand_over(begin, fail)

        self.mailbox._outbox.next_ticket = numbered
        transfers.hand_over = hand_over_numbered  # type: ignore[method-assign]

    def _register(self) -> None:
        endpoint = self.process.messenger.endpoint
        entry = Entry(_name(self.number), endpoint, {RETURNS: self.process.session.home.process_id})
        self.process.session.directory._request(Register(entry, True)).add_done_callback(self._registered)

    def _registered(self, answer: Promise[Reply]) -> None:
        # The end of the one before may not have been noticed.
        error = answer.exception(0)
        if isinstance(error, NameTaken | CommTimeout):
            self.host.later(AGAIN_US, self._register)
        elif error is None:
            self._is_known = True
            for step in self._early:
                self.host.later(0, self.call, step)
            self._early.clear()

    # -- calls ---------------------------------------------------------------------------------------

    def call(self, step: Call) -> None:
        """A user calls, once its process has its name."""
        if self._is_known:
            super().call(step)
        else:
            self._early.append(step)

    def drain(self, step: Call) -> None:
        """Take what is left, whether others know the name or not."""
        super().call(step)

    def start(self, call: HandleCall) -> AsyncHandle[Any]:
        """Return the handle of what a user asks for."""
        step = call.step
        self._starting = step.number
        timeout_s = None if step.timeout_us is None else step.timeout_us / 1e6
        is_broadcast = self._part.is_broadcast(step)
        returns = not is_broadcast and self._part.returns(step)
        if step.kind == "send":
            self.sent[step.number] = mail = Mail(step.number, len(self.sent), returns)
            item = step.number.to_bytes(8, "little") + bytes(step.size_bytes)
            if not is_broadcast:
                peer = _name(step.peer)
                return self.mailbox.send(
                    item, peer, timeout_s=timeout_s, topic=step.queue, wait_for_return=returns
                )
            mail.num_targets = len(self._part.members[0][1]) - 1
            return self.mailbox.broadcast(item, self._part.members, (GROUP, self.number), timeout_s=timeout_s)
        if is_broadcast:
            return self.mailbox.broadcast(None, self._part.members, (GROUP, step.peer), timeout_s=timeout_s)
        return self.mailbox.recv(
            _name(step.peer), timeout_s=timeout_s, topic=step.queue, wait_for_return=returns
        )

    def submit_cancel(self, call: HandleCall, cancel: Any) -> None:
        """Give an operation up on the I/O thread."""
        del call
        self.process.messenger.submit(cancel)

    def outcome(self, call: HandleCall, error: BaseException) -> str:
        """Return how a call ended that failed."""
        if self._part.is_broadcast(call.step) and call.step.kind == "send":
            return "unanswered"  # by some: others have it
        if isinstance(error, PeerDied):
            return "lost"
        if isinstance(error, PeerNotFound):
            return "not found"
        if isinstance(error, CommTimeout):
            self._check_is_there(call)
            return "unanswered" if "its acknowledgement" in error.waiting_for else "timed out"
        if "which could not be looked up" in str(error) and self._part.is_without_names(call.step.peer):
            return "not found"
        raise Violation(f"{call.step.kind} {call.step.number} fails with {error!r}", (call.step.number,))

    def _check_is_there(self, call: HandleCall) -> None:
        """Check that what ran into its deadline was not to end before, with its peer."""
        peer = self._part.cluster.current[call.step.peer]
        since_us = self.process.given_up.get(peer.name, -1)
        until_us = call.began_us + (call.step.timeout_us or 0)
        if (
            not peer.alive
            and not self._part.returns(call.step)
            and call.began_us <= since_us < min(until_us, self.world.now_us - LATE_US)
        ):
            message = f"{call.step.kind} {call.step.number} waits for {peer.name}, which is gone"
            raise Violation(message, (call.step.number,))

    def took(self, call: HandleCall, value: Any) -> list[int]:
        """Return what is to be noted of what a user has taken."""
        return [] if call.step.kind == "send" else [_number(value)]

    def ended(self, call: HandleCall) -> None:
        """For the checks: a user's call has ended."""
        if call.step.kind == "send":
            self.sent[call.step.number].outcome = call.outcome
        elif call.outcome == "taken" and call.items is not None:
            self.ledger.takes(self.name, call.items, self.world.now_us)

    # -- checks --------------------------------------------------------------------------------------

    def hear(self, sender: str, number: int, queue: QueueName, size_bytes: int) -> None:
        """An item of another process's comes: the books count its order there."""
        mail = self._part.users[sender].sent[number]
        known = self.ledger.put_begins(sender, number, queue, size_bytes)
        known.begun = mail.order
        # One that was looked for again goes behind what was sent meanwhile.
        known.behind = float("inf") if mail.returns else mail.order + 1

    def check_sent(self) -> None:
        """Check that what was sent is where its sender was told that it is."""
        for mail in self.sent.values():
            held = {
                users.name: users
                for users in self._part.users.values()
                if mail.number in users.ledger.accepted
            }
            if mail.outcome == "taken" and len(held) < mail.num_targets:
                raise Violation(f"item {mail.number} was never held; its send says so", (mail.number,))
            # What the dead had is not there, if it is looked for in another place.
            there = [name for name in held if not (mail.returns and name in self.process.given_up)]
            if there and mail.outcome not in _MAY_BE_HELD and mail.num_targets == 1:
                message = f"{there} hold item {mail.number}; its send ended as {mail.outcome!r}"
                raise Violation(message, (mail.number,))

    def check_empty(self) -> None:
        """Check that nothing is left in a mailbox that was emptied, of which nobody wants anything."""
        own_inbox, outbox = self.mailbox._inbox, self.mailbox._outbox
        queues = depths_of(own_inbox._state.queues)
        waiting = (
            own_inbox._coming,
            own_inbox._receiving,
            own_inbox._receiving_from,
            own_inbox._deliveries._here,
        )
        sending = [
            (recipient.sendings, recipient.client.num_open)
            for recipient in outbox._recipients.values()
            if recipient.sendings or recipient.client.num_open
        ]
        kept = (outbox.publisher._published, own_inbox.replicas._pieces.held)
        if queues or any(waiting) or sending or any(kept):
            raise Violation(
                f"the mailbox of {self.name} keeps {queues}, {waiting}, {sending} and {kept}", (self.name,)
            )


class MailboxPart(Part):
    """A mailbox in every process but the server's.

    Attributes:
        users: of all processes, by their names.
        calls: the numbers of sends, by the names of their processes and their tickets.
        ordered: the queues of each number that one thread empties one by one.
        members: of broadcasts.
    """

    kinds: tuple[str, ...] = ("send", "recv")

    def __init__(self, cluster: Cluster, script: Script) -> None:
        self.cluster = cluster
        self.users: dict[str, MailUsers] = {}
        self.calls: dict[tuple[str, int], int] = {}
        self.members = [(GROUP, list(range(script.num_clients)))]
        draw = cluster.world.randomness("mailboxes")
        self._has_broadcasts = draw.random() < 0.4
        self._returning = {step.number for step in script.calls if draw.random() < 0.3}
        is_ordered: dict[tuple[int, QueueName], bool] = {}
        for step in script.calls:
            if step.kind == "recv":
                key = step.client, self._queue(step)
                is_ordered[key] = is_ordered.get(key, True) and step.blocking
        self.ordered: dict[int, set[QueueName]] = {}
        for (number, queue), ordered in is_ordered.items():
            if ordered:
                self.ordered.setdefault(number, set()).add(queue)

    def is_broadcast(self, step: Call) -> bool:
        """Whether a send goes to all, or a recv is of one that does."""
        return self._has_broadcasts and step.queue == "any"

    def returns(self, step: Call) -> bool:
        """Whether a call goes on with a process that takes its peer's name."""
        return step.number in self._returning

    def is_without_names(self, number: int) -> bool:
        """Whether a process has given up the directory's.

        Nobody can tell it then which of two processes has a name of which it has not noticed that the first has died.
        """
        processes = self.cluster.processes
        return processes.home.name in processes.of(self.cluster.current[number]).given_up

    def _queue(self, step: Call) -> QueueName:
        """Return the queue of a recv."""
        if not self.is_broadcast(step):
            return _name(step.peer), step.queue
        members = parse_members(self.members, (GROUP, step.peer), _name(step.client))
        return _name(step.peer), members.topic

    def start(self, host: Host, number: int) -> None:
        """A process has started."""
        if number >= 0:
            process = self.cluster.processes.of(host)
            self.users[host.name] = MailUsers(self, host, process, number)

    def call(self, host: Host, step: Call) -> None:
        """A user calls in a process."""
        if step.peer in self.cluster.current:
            self.users[host.name].call(step)

    def finish(self) -> Iterator[None]:
        """End the story and check it; the world comes to rest before the first step, and after each."""
        live = [users for users in self.users.values() if users.host.alive]
        number = AUDITOR
        for users in live:
            for depth in depths_of(users.mailbox._inbox._state.queues):
                name: Any = depth.name
                peer, topic = int(name[0].partition(":")[2]), name[1]
                for _ in range(depth.num_items + depth.num_putters):
                    users.drain(Call(0, number, users.number, "recv", topic, 0, 0, 2_000, False, "", peer))
                    number += 1
                    yield
        for users in live:
            users.check_calls()
            users.ledger.check_end(drained=True)
            users.check_empty()
        for users in self.users.values():
            users.check_sent()


def _name(number: int) -> str:
    return f"{GROUP}:{number}"


def _number(item: Any) -> int:
    if not isinstance(item, bytes) or item[8:] != bytes(len(item) - 8):
        raise Violation("an item is not what was sent")
    return int.from_bytes(item[:8], "little")
