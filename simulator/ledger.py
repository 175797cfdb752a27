"""What a channel promises, checked after every step of its server and of its users."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from rlinf_scheduler.queueing.item import QueueName, SubscriptionName
from rlinf_scheduler.queueing.leases import OnLease, StartClock
from rlinf_scheduler.queueing.members import GroupRanks
from rlinf_scheduler.queueing.messages import Accept, Deliver, Grant, Instruction, Reason, Refuse
from rlinf_scheduler.queueing.shard_plan import ShardPlan
from rlinf_scheduler.queueing.sharding import Part, WantedPart
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import depths_of
from rlinf_scheduler.queueing.taps import TapTerms
from simulator.bounds import Bounds
from simulator.lease_oracle import NOBODY, LeaseOracle
from simulator.queue_oracle import Asked, Known, Patience, QueueOracle, Ticket
from simulator.script import TAP
from simulator.shard_oracle import ShardOracle
from simulator.tap_oracle import TapOracle
from simulator.world import Violation

# Of a larger item its server sees that it was taken, even if the taker dies before it says so.
MARKED_BYTES = 64 << 10

# How a put may have ended, for its user, whose item was accepted; empty: its process died.
_MAY_BE_ACCEPTED = frozenset(("accepted", "unanswered", "dropped", "lost", ""))


class Ledger:
    """Follows every item from its producer to its consumer.

    Args:
        sole_consumers: queues that one client empties one by one.
        maxsize: items per queue, 0 unbounded.
        max_bytes: bytes per queue, unless it is a single larger item; 0 unbounded.
        total_bytes: the same of all queues together.
        credit_bytes: what a client may send to a queue unasked, unless it is a single larger item.
        max_attempts: how often an item is given out on lease; 0 for any number.
        max_leased: how many items a client may have on lease; 0 for any number.
        priority_wait_us: how long an item is passed over by those of a higher priority; None for ever.

    Attributes:
        leases: what is on lease.
        on_saved: called at each look for a checkpoint, with the leases that are done with by that.
    """

    def __init__(
        self,
        sole_consumers: Iterable[QueueName],
        *,
        maxsize: int = 0,
        max_bytes: int = 0,
        total_bytes: int = 0,
        credit_bytes: int,
        max_attempts: int = 0,
        max_leased: int = 0,
        priority_wait_us: int | None = None,
    ) -> None:
        self._patience = Patience(priority_wait_us)
        self.leases = LeaseOracle(max_attempts, max_leased)
        self._bounds = Bounds(maxsize, max_bytes, total_bytes, self._own_queues, self.leases)
        self._credit_bytes = credit_bytes
        self._sole = set(sole_consumers)
        self._gone: set[str] = set()
        self._items: dict[int, Known] = {}
        self._queues: dict[QueueName, QueueOracle] = {}
        self._puts: dict[Ticket, Known] = {}
        self._late: dict[Ticket, bool] = {}  # puts that came when nothing may be put any more
        self._gets: dict[Ticket, tuple[QueueName, Asked]] = {}
        self._oracles: dict[Ticket, QueueOracle] = {}  # of gets
        self._taps: list[TapOracle] = []
        self._beside_marked: set[int] = set()  # came with a marked one, so their taker has them, too
        self._deliveries: dict[Ticket, list[Known]] = {}
        self._inline: dict[Ticket, bool] = {}
        self._unaccepted_bytes: dict[tuple[str, QueueName], int] = {}
        self._closed = self._all_ended = False
        self._now_us = 0
        self._shards: dict[QueueName, ShardOracle] = {}
        self._again: tuple[Ticket, list[int]] | None = None
        self.on_saved: Callable[[Collection[int]], None] | None = None

    def divide(self, queue: QueueName, plan: ShardPlan, ranks: Sequence[int]) -> None:
        """A queue is for data-parallel ranks."""
        self._shards[queue] = ShardOracle(plan, ranks, self._queue(queue))

    # -- what a checkpoint has ---------------------------------------------------------------------

    def is_saved(self, done: Collection[int]) -> None:
        """The channel is looked at, for a file in which these leases are done with."""
        if self.on_saved is not None:
            self.on_saved(done)

    def at_rest(self, done: Collection[int]) -> dict[QueueName, list[Known]]:
        """What a channel that nobody uses has of each queue, in the order in which it is given out.

        Args:
            done: leases whose items are done with.
        """
        held: dict[QueueName, list[Known]] = {name: [] for name in self._queues}
        for item in (
            *(item for items in self._deliveries.values() for item in items),
            *self.leases.items(done),
        ):
            if item.queue != TAP or (self._tap is not None and self._tap.seen.get(item.number) is item):
                held.setdefault(item.queue, []).append(item)
        return {name: queue.at_rest(held[name]) for name, queue in self._queues.items()}

    def check_restarted_shards(
        self, queue: QueueName, ranks: Sequence[int], parts: Mapping[tuple[int, int], list[int]]
    ) -> None:
        """Check the parts that these ranks get, by shard and step, of a channel that is at rest."""
        left = [item.number for item in self.at_rest(())[queue]]
        self._shards[queue].check_restart(ranks, parts, left)

    @property
    def queues(self) -> list[QueueName]:
        """Every queue that is not for ranks."""
        return [name for name in self._queues if name not in self._shards and name != TAP]

    @property
    def marked(self) -> set[int]:
        """The items that were taken, as whoever writes a file may see."""
        items = self._items.values()
        large = {item.number for item in items if item.taken_by and item.size_bytes > MARKED_BYTES}
        return large | self._beside_marked

    @property
    def gone(self) -> set[int]:
        """The items whose bytes are lost."""
        return {item.number for item in self._items.values() if item.is_gone}

    @property
    def accepted(self) -> set[int]:
        """The items that were ever accepted."""
        return {item.number for item in self._items.values() if item.order >= 0}

    def has_ended(self, queue: QueueName) -> bool:
        """Whether nothing can be put into a queue."""
        return self._closed or self._all_ended or self._queues[queue].ended

    # -- what users see --------------------------------------------------------------------------

    def put_begins(
        self,
        client: str,
        item: int,
        queue: QueueName,
        size_bytes: int,
        weight: int = 0,
        priority: int = 0,
        group: str | None = None,
    ) -> Known:
        """A user puts an item; its ticket is its number."""
        begun = len(self._items)
        known = self._items[item] = self._puts[client, item] = Known(
            item, client, queue, size_bytes, begun, begun + 1, weight, priority, group=group
        )
        self._queue(queue)
        return known

    def put_goes_by_itself(self, item: int) -> None:
        """A put goes by a shortcut: only what its producer puts when it has ended stands behind it."""
        self._items[item].behind = math.inf

    def put_ends(self, item: int, outcome: str) -> None:
        """A user is told how a put ended, or has left it."""
        known = self._items[item]
        known.put_outcome = outcome
        if known.behind == math.inf:
            known.behind = len(self._items)

    def takes(self, client: str, items: Sequence[int], now_us: int, queue: QueueName | None = None) -> None:
        """Items become a user's."""
        if queue != TAP and any(self._items[item].size_bytes > MARKED_BYTES for item in items):
            self._beside_marked.update(items)
        for item in items:
            known = self._seen(item) if queue == TAP else self._items[item]
            known.taken_by.append(client)
            known.taken_us = min(known.taken_us, now_us)
            live = [taker for taker in known.taken_by if taker not in self._gone]
            if len(live) > 1:
                raise Violation(f"item {item} is taken by {' and '.join(live)}", (item,))
            if known.queue in self._sole:
                last_taken = self._queues[known.queue].last_taken
                if known.order < last_taken.get(known.priority, -1) and client not in self._gone:
                    raise Violation(f"{client} gets item {item} of {known.queue} out of order", (item,))
                last_taken[known.priority] = known.order

    def looks_at(self, number: int, queue: QueueName, since_us: int) -> None:
        """A user, who has asked at a time, sees what the next getter would take."""
        item = self._shown(number, since_us) if queue == TAP else self._items.get(number)
        if item is None or item.queue != queue or item.order < 0:
            raise Violation(f"item {number} is shown, and was never in {queue}", (number,))
        if item.taken_us < since_us and not self._gone.issuperset(item.taken_by):
            raise Violation(f"item {number} is shown, which {item.taken_by} had taken before", (number,))

    def trains(self, client: str, queue: QueueName, index: int, step: int, items: Sequence[int]) -> None:
        """A rank has its part of a step."""
        self._shards[queue].trains(client, index, step, self._gone)
        for item in items:
            known = self._items[item]
            others = [taker for taker in known.taken_by if taker not in self._gone and taker != client]
            if others:
                raise Violation(
                    f"{client} has item {item} of step {step}; {others[0]} lives, and has it too", (item,)
                )
            known.taken_by.append(client)

    def _shown(self, number: int, since_us: int) -> Known | None:
        """Return what a subscription that was there since a time has of an item: its end may come before its answer."""
        there = (tap.seen.get(number) for tap in reversed(self._taps) if tap.gone_us >= since_us)
        return next((item for item in there if item is not None), None)

    def _seen(self, item: int) -> Known:
        return next(tap.seen[item] for tap in self._taps if item in tap.seen)

    def dies(self, client: str) -> None:
        """A client is dead: what it has taken may come to another."""
        self._gone.add(client)

    # -- what the server hears -------------------------------------------------------------------

    def ticks(self, now_us: int) -> None:
        """The server is told the time."""
        self._patience.now_us = now_us

    def put_arrives(self, client: str, ticket: int) -> None:
        """The server is asked to take an item."""
        item = self._puts[client, ticket]
        queue = self._queues[item.queue]
        item.stands_behind = any(other.producer == client for other in queue.line.values())
        queue.line[client, ticket] = item
        self._late[client, ticket] = self._closed or self._all_ended or queue.ended

    def get_arrives(self, client: str, ticket: int, queue: QueueName, asked: Asked) -> None:
        """The server is asked for items."""
        self._gets[client, ticket] = (queue, asked)
        oracle = self._oracles[client, ticket] = self._queue(queue)
        oracle.getters[client, ticket] = asked

    def part_arrives(self, client: str, ticket: int, queue: QueueName, wanted: WantedPart) -> None:
        """The server is asked for a rank's part."""
        self._gets[client, ticket] = (queue, Asked())
        self._oracles[client, ticket] = self._queue(queue)
        self._shards[queue].ask((client, ticket), wanted.index, wanted.done_step, wanted.plan.members)

    def resizes(self, members: GroupRanks) -> None:
        """The server is told which ranks a group has."""
        for shards in self._shards.values():
            shards.resize(members)

    def part_is_done(self, client: str, queue: QueueName, index: int, step: int, *, refused: bool) -> None:
        """A rank is done with its part."""
        self._shards[queue].finish(client, index, step, refused=refused)

    def bytes_arrive(self, client: str, ticket: int) -> None:
        """The server is sent an item that it has not asked for."""
        item = self._puts[client, ticket]
        self._inline[client, ticket] = True
        key = (client, item.queue)
        self._unaccepted_bytes[key] = held = self._unaccepted_bytes.get(key, 0) + item.size_bytes
        if held > max(self._credit_bytes, item.size_bytes):
            raise Violation(
                f"the server holds {held} bytes for {client} that it did not admit", (item.number,)
            )

    def arrived(self, client: str, ticket: int) -> None:
        """The server is told that items are in a client's process."""
        if (client, ticket) in self._deliveries:
            self._oracles[client, ticket].on_the_way.discard((client, ticket))

    def confirmed(self, client: str, ticket: int) -> None:
        """The server is told that items were taken."""
        self.arrived(client, ticket)
        self._deliveries.pop((client, ticket), None)

    def waited(self, client: str, ticket: int) -> None:
        """A batch has waited as long as it was to wait for more."""
        if (client, ticket) in self._gets:
            self._oracles[client, ticket].waited.add((client, ticket))

    def loses(self, client: str, until_us: int = 0) -> None:
        """The server is told that a client has gone; if it lives, it is as good as dead. Then it may be succeeded."""
        self._gone.add(client)
        for tap in self._taps:
            tap.leave({member for member in tap.members if member[0] == client}, until_us)
        self.leases.lose(client)
        for ticket in [ticket for ticket in self._deliveries if ticket[0] == client]:
            self._give_back(ticket)
        for queue in self._queues.values():
            for ticket in [ticket for ticket in queue.getters if ticket[0] == client]:
                del queue.getters[ticket]
            for ticket in [ticket for ticket in queue.line if ticket[0] == client]:
                queue.forget_put(ticket)
                # One that was only out of reach comes back, and has all its credit.
                self._settle_bytes(ticket)
        for shards in self._shards.values():
            shards.forget(client)

    def subscribes(self, client: str, number: int, terms: TapTerms) -> None:
        """A client reads the subscription."""
        tap = self._tap
        if tap is None:
            tap = TapOracle(terms, self._sources)
            tap.is_at_bound, tap.patience = self.leases.is_at_bound, self._patience
            named = self._all_ended if terms.queue_name is None else self._queue(terms.queue_name).ended
            tap.ended = self._all_ended or named
            self._taps.append(tap)
            self._queues[TAP] = tap
        tap.members.add((client, number))

    def unsubscribes(self, client: str, number: int, until_us: int) -> None:
        """A client reads it no more; then it may be succeeded."""
        if self._tap is not None:
            self._tap.leave({(client, number)}, until_us)

    def subscription_ends(self, now_us: int) -> None:
        """The server thinks that nobody is to read the subscription any more."""
        tap = self._tap
        if tap is None or tap.members:
            raise Violation("the subscription is over, and it has members", (TAP,))
        if now_us < tap.until_us:
            raise Violation("the subscription is over, and may be succeeded", (TAP,))
        tap.gone_us = now_us
        self.leases.forget_dead(tap)
        del self._queues[TAP]

    @property
    def _tap(self) -> TapOracle | None:
        tap = self._taps[-1] if self._taps else None
        return None if tap is None or tap.gone else tap

    def _sources(self) -> list[QueueOracle]:
        """The queues that the subscription sees."""
        terms = self._taps[-1].terms
        return [
            queue for name, queue in self._queues.items() if name != TAP and terms.queue_name in (None, name)
        ]

    def _tap_of(self, queue: QueueName) -> TapOracle | None:
        tap = self._tap
        return tap if tap is not None and tap.terms.queue_name in (None, queue) else None

    def delivers_again(self, client: str, ticket: int, items: list[int]) -> None:
        """What was delivered is to be delivered once more."""
        self._again = ((client, ticket), items)

    def loses_items(self, numbers: Iterable[int]) -> None:
        """The bytes of some items are gone."""
        gone = [self._items[number] for number in numbers]
        for item in gone:
            item.is_gone = True
        for queue in self._queues.values():
            here = [item for item in queue if item in gone]
            queue.take_these(here)
            for item in here:
                queue.lose(item)

    def ends(self, queue: QueueName) -> None:
        """The server is told that nothing will be put into a queue any more."""
        self._queue(queue).ended = True
        if self._tap is not None and self._tap.terms.queue_name == queue:
            self._tap.ended = True

    def ends_all(self) -> None:
        """The server is told that nothing will be put any more."""
        self._all_ended = True
        for queue in self._queues.values():
            queue.ended = True

    def flushes(self, queue: QueueName) -> None:
        """The server is told that batches are not to wait for more than what a queue holds."""
        for oracle in (self._queue(queue), self._tap_of(queue)):
            if oracle is not None:
                oracle.flushed = oracle.num_accepted

    def closes(self) -> None:
        """The server is told that the channel is closed."""
        self._closed = True

    # -- what the server says --------------------------------------------------------------------

    def follow(self, instructions: Sequence[Instruction], state: ChannelState, now_us: int = 0) -> None:
        """Check what the server says after an event, and what it holds then."""
        self._now_us = now_us
        for instruction in instructions:
            ticket = (instruction.client, instruction.ticket)
            if isinstance(instruction, Accept):
                self._accept(ticket)
            elif isinstance(instruction, Grant):
                self._grant(ticket)
            elif isinstance(instruction, Deliver):
                items = [item.payload for item in instruction.items]
                again, self._again = self._again, None
                if again != (ticket, items):
                    self._deliver(ticket, instruction, items)
            elif isinstance(instruction, Refuse):
                self._refuse(ticket, instruction.reason)
            elif isinstance(instruction, StartClock) and ticket == NOBODY:
                self.leases.delay(instruction.generation, int(instruction.after_s * 1e6), now_us)
        self._check_content(state)
        for name, queue in self._queues.items():
            self._check_nobody_is_forgotten(name, queue)
        for shards in self._shards.values():
            shards.check_nobody_is_forgotten(closed=self._closed)

    def _accept(self, ticket: Ticket) -> None:
        item = self._puts[ticket]
        queue = self._queues[item.queue]
        if item.order >= 0:
            raise Violation(f"item {item.number} is accepted twice", (item.number,))
        if self._late[ticket]:
            raise Violation(f"item {item.number} enters {item.queue} after its end", (item.number,))
        last_put = queue.last_put.get(item.producer, -1)
        if last_put >= item.behind:
            raise Violation(f"item {item.number} of {item.producer} enters after a later one", (item.number,))
        queue.last_put[item.producer] = max(last_put, item.begun)
        had_room = ticket in queue.granted or item.stands_behind
        queue.forget_put(ticket)
        queue.push(item)
        tap = self._tap_of(item.queue)
        if tap is not None:
            tap.see(item)
            tap.check_bound(item)
        self._settle_bytes(ticket)
        self._bounds.check(queue, item, had_room=had_room)

    def _grant(self, ticket: Ticket) -> None:
        item = self._puts[ticket]
        queue = self._queues[item.queue]
        queue.grant(ticket, item)
        self._bounds.check(queue, item, had_room=item.stands_behind)

    def _deliver(self, ticket: Ticket, instruction: Deliver, items: list[int]) -> None:
        name, asked = self._gets[ticket]
        grant = instruction.grant
        if isinstance(grant, Part):
            self._shards[name].deliver(ticket, grant, items, closed=self._closed)
            return
        queue = self._oracles[ticket]
        if queue.first_getter != ticket:
            raise Violation(f"{ticket} is served before {queue.first_getter}", items)
        if not self._may_give(queue, ticket, asked):
            raise Violation(f"{ticket} gets a batch that is not there yet", (ticket[1], *items))
        if asked.group_size:
            batch = queue.next_group(asked.group_size, closed=self._closed)
            queue.take_these(batch)
            if instruction.complete != (len(batch) == asked.group_size):
                raise Violation(f"group {items} says complete={instruction.complete}", (ticket[1], *items))
        else:
            batch = [known for _ in items if (known := queue.take()) is not None]
        head = [known.number for known in batch]
        if items != head:
            raise Violation(
                f"items {items} are delivered to {ticket}; the head of the queue is {head}", items
            )
        wrong = queue.check_batch(asked, batch, complete=instruction.complete) if asked.is_batch else ""
        if wrong or (len(items) != 1 and not asked.is_batch and not asked.group_size):
            raise Violation(f"items {items} are delivered to {ticket}: {wrong}", (ticket[1], *items))
        del queue.getters[ticket]
        if isinstance(grant, OnLease) != (asked.ttl_us > 0):
            raise Violation(f"{ticket} asks for {asked} and is given {grant}", (ticket[1],))
        if isinstance(grant, OnLease):
            self.leases.begin(ticket, queue, batch, grant, asked.ttl_us, self._now_us)
            return
        queue.on_the_way.add(ticket)
        self._deliveries[ticket] = batch

    def _refuse(self, ticket: Ticket, reason: Reason) -> None:
        if ticket in self._puts:
            self._refuse_put(ticket, reason)
        elif ticket in self._gets:  # one whose outcome was asked for may never have gone
            self._refuse_get(ticket, reason)

    def _refuse_put(self, ticket: Ticket, reason: Reason) -> None:
        item = self._puts[ticket]
        if reason is Reason.ENDED and not self._late[ticket]:
            raise Violation(f"item {item.number} came before the end of {item.queue}", (item.number,))
        if reason is Reason.CLOSED and not self._closed:
            raise Violation(f"item {item.number} came before the channel was closed", (item.number,))
        if reason is Reason.LOST and not item.is_gone:
            raise Violation(f"item {item.number} is refused, and nobody has lost it", (item.number,))
        self._queues[item.queue].forget_put(ticket)
        self._settle_bytes(ticket)

    def _refuse_get(self, ticket: Ticket, reason: Reason) -> None:
        queue = self._oracles[ticket]
        shards = self._shards.get(self._gets[ticket][0])
        if shards is not None and shards.knows(ticket):
            shards.refuse(ticket, reason, closed=self._closed)
            return
        if reason in (Reason.ENDED, Reason.CLOSED):
            has_more = self._may_give(queue, ticket, queue.getters.get(ticket, Asked()))
            is_over = queue.is_last(self._closed) and not has_more and not queue.may_come_back
            is_gone = self._gets[ticket][0] == TAP and queue is not self._tap
            if (not is_over or queue.unreported) and not is_gone:
                raise Violation(f"{ticket} is told of the end before it has come", (ticket[1],))
        queue.getters.pop(ticket, None)
        if not self.leases.withdraw(ticket):
            self._give_back(ticket)
        if reason is Reason.LOST:
            if not queue.unreported:
                raise Violation(f"{ticket} is told of a loss that is none", (ticket[1],))
            queue.unreported.clear()

    def _settle_bytes(self, ticket: Ticket) -> None:
        item = self._puts[ticket]
        if self._inline.pop(ticket, None):
            self._unaccepted_bytes[ticket[0], item.queue] -= item.size_bytes

    def _give_back(self, ticket: Ticket) -> None:
        name, _ = self._gets[ticket]
        if ticket[0] in self._gone:
            self._sole.discard(name)  # its successor may have got later items before
        queue = self._oracles[ticket]
        queue.on_the_way.discard(ticket)
        for item in self._deliveries.pop(ticket, ()):
            queue.restore(item)

    # -- after every step ------------------------------------------------------------------------

    def _check_content(self, state: ChannelState) -> None:
        num_lost = sum(item.is_lost for item in self._items.values())
        if state.queues.tally.num_lost != num_lost:
            raise Violation(
                f"{state.queues.tally.num_lost} items are counted as lost; it should be {num_lost}"
            )
        held = {depth.name: depth for depth in depths_of(state.queues)}
        for name, queue in self._queues.items():
            depth = held.get(SubscriptionName(TAP) if name == TAP else name)
            if isinstance(queue, TapOracle) and (depth is None or depth.num_dropped != queue.num_dropped):
                raise Violation(
                    f"the subscription has dropped {queue.num_dropped} items, and not {depth}", (TAP,)
                )
            there = depth.num_items if depth is not None else 0
            if there != queue.num_items:
                expected = [item.number for item in queue]
                raise Violation(f"{name} holds {there} items; it should hold {expected}", expected)
            lent = (depth.num_leased, depth.num_dead) if depth is not None else (0, 0)
            if lent != (queue.num_leased, queue.num_dead):
                expected_lent = f"{queue.num_leased} on lease and {queue.num_dead} dead"
                raise Violation(
                    f"{name} has {lent} on lease and dead; it should have {expected_lent}", (name,)
                )

    def _check_nobody_is_forgotten(self, name: QueueName, queue: QueueOracle) -> None:
        head = queue.first_getter
        is_drained = queue.is_last(self._closed) and not queue.num_items and not queue.may_come_back
        if head is None and queue.getters and is_drained:
            raise Violation(f"{name}: {next(iter(queue.getters))} is not told of the end")
        if head is not None and queue.unreported:
            raise Violation(f"{name}: {head} is not told of {queue.unreported}", (head[1],))
        if head is not None:
            asked = queue.getters[head]
            is_last = queue.is_last(self._closed)
            is_over = is_last and not queue.may_come_back
            refuses = asked.refuses(queue.head())
            # Of a queue that has ended, what is on its way is waited for, full or not.
            is_stuck = (
                not is_last and (asked.is_batch or asked.group_size > 0) and self._bounds.is_stuck(queue)
            )
            hopeless = refuses or is_stuck
            if is_over or hopeless or self._may_give(queue, head, asked):
                raise Violation(f"{name}: {head} waits for {asked}, and need not", (head[1],))
        waiting = next(iter(queue.line.values()), None)
        if waiting is not None and not self._are_bytes_on_their_way and self._bounds.has_room(queue, waiting):
            raise Violation(f"{name} has room, and item {waiting.number} waits", (waiting.number,))

    def check_no_batch_ripens_for_ever(self) -> None:
        """Check, when the world is at rest, that no batch waits longer for more than it was to wait."""
        for name, queue in self._queues.items():
            for ticket in [queue.first_getter] if queue.first_getter is not None else ():
                limits = queue.getters[ticket].limits
                if limits.max_wait_s is not None and queue.num_items >= limits.min_items:
                    raise Violation(f"{name}: {ticket} has not been told that it has waited", (ticket[1],))

    def check_no_bytes_are_awaited(self) -> None:
        """Check, when the world is at rest, that whoever was asked for the bytes of an item has sent them."""
        for name, queue in self._queues.items():
            for client, number in queue.granted:
                raise Violation(f"{name}: {client} was asked for item {number}, and sends nothing", (number,))

    def _may_give(self, queue: QueueOracle, ticket: Ticket, asked: Asked) -> bool:
        return queue.may_give(ticket, asked, closed=self._closed, stuck=self._bounds.is_stuck(queue))

    def _own_queues(self) -> list[QueueOracle]:
        """Without the subscription, whose bound is its own."""
        return [queue for name, queue in self._queues.items() if name != TAP]

    @property
    def _are_bytes_on_their_way(self) -> bool:
        """Then puts may have room that stand behind others of their producer, and nobody is told."""
        return any(queue.granted for queue in self._queues.values())

    # -- at the end ------------------------------------------------------------------------------

    def check_end(self, *, drained: bool) -> None:
        """Check that every item is accounted for.

        Args:
            drained: everything that was accepted has been asked for since.
        """
        for item in self._items.values():
            if item.put_outcome == "accepted" and item.order < 0:
                raise Violation(f"item {item.number} was never accepted; its put says so", (item.number,))
            if item.order < 0:
                continue
            if item.put_outcome not in _MAY_BE_ACCEPTED:
                message = f"item {item.number} is in the queue; its put ended as {item.put_outcome!r}"
                raise Violation(message, (item.number,))
            if drained and not item.taken_by and not item.is_lost:
                raise Violation(f"item {item.number} was accepted and is lost", (item.number,))
        for item in self._tap.seen.values() if drained and self._tap is not None else ():
            if not item.taken_by:
                raise Violation(f"item {item.number} was never seen by the subscription", (item.number,))
        for shards in self._shards.values() if drained else ():
            shards.check_end()

    @property
    def has_subscription(self) -> bool:
        """Whether there is one."""
        return self._tap is not None

    def _queue(self, name: QueueName) -> QueueOracle:
        queue = self._queues.get(name)
        if queue is None:
            queue = QueueOracle(self._patience)
            queue.is_at_bound = self.leases.is_at_bound
            queue.ended = self._all_ended
            if name != TAP:  # who reads a subscription that is not there is told so
                self._queues[name] = queue
        return queue
