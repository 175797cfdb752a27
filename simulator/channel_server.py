"""The process that holds a channel, around the real `ChannelState`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.features.successors import ProducersFeature, SubscriptionsFeature
from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.queueing import (
    NO_LIMITS,
    Accept,
    Bury,
    Deliver,
    Instruction,
    Item,
    LeaseTerms,
    OperationOver,
    Refuse,
    Ripen,
    ShardPlan,
    StartClock,
    StopClock,
    SubscriptionName,
    Vacate,
    WantedPart,
    messages,
)
from rlinf_scheduler.queueing import leases as lease_policy
from rlinf_scheduler.queueing import sharding as shard_policy
from rlinf_scheduler.queueing import taps as tap_policy
from rlinf_scheduler.queueing.leases import Leases
from simulator.channel_wire import (
    CHANNEL,
    Arrived,
    Done,
    DonePart,
    EndQueue,
    Extend,
    Fill,
    Flush,
    Get,
    Join,
    Leave,
    News,
    Operation,
    Operations,
    Put,
    Request,
    Settle,
    Subscribe,
    Unsubscribe,
    Withdraw,
)
from simulator.durable import JournaledHost
from simulator.host import Host
from simulator.ledger import Ledger
from simulator.machines import Machines
from simulator.producer_oracle import ProducerOracle
from simulator.queue_oracle import Asked
from simulator.script import SHARDS, TAP, Script
from simulator.world import Violation

MAX_VACANCIES = 1000
NEVER_US = 1 << 60


class ChannelServer:
    """Hears clients one after the other, and answers each with what has gathered.

    Attributes:
        state: the machine under test.
    """

    def __init__(
        self,
        host: Host | JournaledHost,
        ledger: Ledger,
        machines: Machines,
        script: Script,
    ) -> None:
        self._plan = script.plan or ShardPlan(1)
        self._places = ProducerOracle(script.producers, script.successor_us)
        spec = ChannelSpec(CHANNEL, producers=script.producers, successor_s=script.successor_us / 1e6)
        self._spec = spec
        self._producers = machines.producers(script.producers)
        self.host = host
        self.name = host.name
        self.world = host.world
        self.state = machines.server(script.maxsize, 0, script.total_bytes)
        self.state.policy(Leases).max_attempts = script.max_attempts
        self.state.policy(Leases).max_leased = script.max_leased
        # In microseconds, as its clock here.
        self.state.queues.tally.clock.priority_wait_s = script.priority_wait_us
        self._tap, self._successor_us = script.tap, script.successor_us
        served: Any = _Served(
            self.state, spec, self._call_later, self._subscription_ends, self._on_producers_done
        )
        self._handlers = served.handlers
        self._desk, self._subscriptions = ProducersFeature(served), SubscriptionsFeature(served)
        self._desk.producers = self._producers
        self._clocks: dict[int, int] = {}  # by the generation of a lease: when its time is over
        self._ledger = ledger
        self._gone: set[str] = set()
        self._news: dict[str, News] = {}
        host.serve(CHANNEL, self)

    def receive(self, sender: str, message: Operations) -> None:
        """Handle what a client sent, one after the other."""
        if sender in self._gone:
            return
        self._tick()
        confirmed, operations = message
        for ticket in confirmed:
            self.world.note(self.name, "hears", sender, "Confirm", ticket)
            self._ledger.confirmed(sender, ticket)
            self._carry_out(self.state.confirm(sender, (ticket,)))
        for operation in operations:
            self.world.note(self.name, "hears", sender, type(operation).__name__, *operation)
            self._carry_out(self._handle(sender, operation))

    def _tick(self) -> None:
        """Something is about to happen."""
        now_us = self.host.now_us
        self.state.set_clock(now_us)
        self._ledger.ticks(now_us)

    # -- ends --------------------------------------------------------------------------------------

    def lost(self, peer: str) -> None:
        """A client has gone, or is held for dead; or a holder."""
        if peer not in self._gone:
            self.world.note(self.name, "loses", peer)
            self._gone.add(peer)
            self._news.pop(peer, None)
            taken = {
                ticket
                for ticket, items in self.state.queues.deliveries(peer)
                if self._ledger.is_marked(peer, [item.payload for item in items])
            }
            for ticket in taken:
                self._ledger.confirmed(peer, ticket)
            self._ledger.loses(peer, self.world.now_us + self._successor_us)
            self._carry_out(self.state.apply(messages.Lose(taken), peer))
            self._places.lose(peer, self.world.now_us)
            self._desk.lose(peer)

    def check_rest(self) -> None:
        """Check, when the world is at rest, that a channel without producers has ended."""
        self._ledger.leases.check_rest()
        self._places.check_rest(self.world.now_us, ended=self.state.queues.has_ended("a queue of nobody"))

    def end(self, queue: str) -> None:
        """End a queue."""
        self._ledger.ends(queue)
        self._carry_out(self.state.apply(messages.EndQueue(queue)))

    def close(self) -> None:
        """Close the channel."""
        self.world.note(self.name, "closes")
        self._ledger.closes()
        self._carry_out(self.state.apply(messages.Close()))

    # -- of a durable channel ----------------------------------------------------------------------

    def joined(self, peer: str) -> None:
        """A client is there that was given up before it had begun."""
        self._gone.discard(peer)

    def image(self) -> tuple[Any, ...]:
        """What it knows."""
        snapshot = self.state.snapshot()
        return snapshot, self._producers.copy(), dict(self._clocks), set(self._gone)

    def resume(self, image: tuple[Any, ...]) -> None:
        """Go on with what another one knew."""
        (record, payloads), producers, self._clocks, self._gone = image
        self.state.restore(record, payloads)
        self._desk.resume(producers)
        self._subscriptions.resume()
        for generation, due_us in self._clocks.items():
            self.host.later(max(11, due_us - self.host.now_us), self._lapse, generation)
        self._carry_out(self.state.queues.ripening())

    def believe(self, ledger: Any, places: Any) -> tuple[Any, Any]:
        """Tell others than before what is heard and said; those."""
        before = self._ledger, self._places
        self._ledger, self._places = ledger, places
        return before

    def check_state(self) -> None:
        """Check that it knows what it has promised."""
        self._ledger.follow([], self.state, self.world.now_us)

    def _handle(self, client: str, operation: Operation) -> list[Instruction]:
        state, ledger = self.state, self._ledger
        match operation:
            case Put():
                return self._put(client, operation)
            case Fill(ticket, item):
                return state.apply(messages.Fill(ticket), client, item)
            case Get():
                return self._get(client, operation)
            case Settle() | Extend() | DonePart():
                return self._settle(client, operation)
            case Withdraw(ticket):
                return state.apply(messages.Withdraw(ticket), client)
            case Arrived(ticket):
                ledger.arrived(client, ticket)
                return state.apply(messages.Arrive(ticket), client)
            case _:
                return self._answer(client, operation)

    def _put(self, client: str, put: Put) -> list[Instruction]:
        ticket, queue, item, weight, size_bytes, wait, priority, group = put
        self._ledger.put_arrives(client, ticket)
        if item is None:
            return self.state.apply(
                messages.Put(ticket, queue, wait=wait, size_bytes=size_bytes),
                client,
                Item(None, weight, size_bytes, priority, group),
            )
        self._ledger.bytes_arrive(client, ticket)
        entering = Item(item, weight, size_bytes, priority, group)
        return self.state.apply(messages.Put(ticket, queue, wait=wait), client, entering)

    def _settle(self, client: str, message: Settle | Extend | DonePart) -> list[Instruction]:
        leases = self._ledger.leases
        match message:
            case Settle(generation, True, _, places):
                out = self._try(client, lease_policy.Settle(generation, _listed(places), True))
                leases.acknowledge(client, generation, places, refused=out is None)
            case Settle(generation, _, delay_s, places):
                out = self._try(client, lease_policy.Settle(generation, _listed(places), False, delay_s))
                leases.give_back(client, generation, places, refused=out is None, delayed=delay_s > 0)
            case DonePart(index, step):
                out = self._try(client, shard_policy.DonePart(SHARDS, index, step))
                self._ledger.part_is_done(client, SHARDS, index, step, refused=out is None)
            case Extend(generation):
                leases.hear(client, generation, self.host.heard_us)
                out = self._try(client, lease_policy.Extend(generation))
        return out or []

    def _try(self, client: str, operation: Any) -> list[Instruction] | None:
        try:
            return self.state.apply(operation, client)
        except OperationOver:
            return None

    def _keep_time(self, instruction: StartClock | StopClock) -> None:
        generation = instruction.generation
        if isinstance(instruction, StopClock):
            self._clocks.pop(generation, None)
            return
        after_us = int(instruction.after_s * 1e6)
        due_us = self.host.now_us + after_us
        if due_us > self._clocks.get(generation, -1):
            self._clocks[generation] = due_us
            self.host.later(after_us, self._lapse, generation)

    def _lapse(self, generation: int) -> None:
        # A process that was paused is late.
        now_us = self.host.now_us
        if self._clocks.get(generation, now_us + 1) <= now_us:
            del self._clocks[generation]
            self._ledger.leases.lapse(generation, self.world.now_us)
            self._carry_out(self.state.apply(lease_policy.Lapse(generation)))

    def empty_dead_letters(self, again: bool) -> None:
        """Put all of them back, or drop them."""
        oracle = self._ledger.leases
        for letter in self.state.policy(Leases).dead_letters():
            name = TAP if isinstance(letter.queue.name, SubscriptionName) else letter.queue.name
            (oracle.put_back if again else oracle.discard)(letter.item.payload, name)
            self._carry_out(self.state.apply(lease_policy.MoveDead(letter.number, again)))

    def _subscribe(self, client: str, request: Subscribe | Unsubscribe) -> None:
        if self._tap is None:
            return
        self._to_client(client)[1].append(Done(request.ticket))
        match request:
            case Subscribe(ticket):
                queue, *bounds = self._tap
                self._ledger.subscribes(client, ticket, self._tap)
                self.state.apply(tap_policy.Subscribe(ticket, TAP, queue, *bounds), client)
            case Unsubscribe(_, number, failed):
                until_us = self.world.now_us + (self._successor_us if failed else 0)
                self._ledger.unsubscribes(client, number, until_us)
                self._carry_out(self.state.apply(tap_policy.Unsubscribe(number, TAP, failed), client))

    def give_up_subscription(self) -> None:
        """Nobody comes any more, whatever the time."""
        for vacancy in range(1, MAX_VACANCIES) if self._ledger.has_subscription else ():
            with suppress(OperationOver):
                self.state.apply(tap_policy.GiveUpTap(TAP, vacancy))
                self._ledger.subscription_ends(NEVER_US)
                return

    def _ask(self, client: str, message: Any) -> Any:
        """Ask a feature of the real server."""
        request = _Asked(client, message)
        self._handlers[type(message)](request)
        return request.answer

    def _subscription_ends(self, instructions: list[Instruction]) -> None:
        self._ledger.subscription_ends(self.world.now_us)
        self._carry_out(instructions)

    def _get(self, client: str, asked: Get) -> list[Instruction]:
        """Ask the queue that is meant; the books know the subscription's by another name."""
        state, ledger = self.state, self._ledger
        get = asked._replace(queue=SubscriptionName(TAP)) if asked.queue == TAP else asked
        match get:
            case Get(ticket, queue, batch_weight, wait, limits) if get.ttl_us:
                wanted = NO_LIMITS if limits is None else limits
                what = Asked(limits is not None, batch_weight, wanted, wait, ttl_us=get.ttl_us)
                ledger.get_arrives(client, ticket, asked.queue, what)
                terms = LeaseTerms(get.ttl_us / 1e6, client)
                return state.apply(
                    messages.Get(
                        ticket, queue, wait=wait, batch_weight=batch_weight, limits=limits, grant=terms
                    ),
                    client,
                )
            case Get(ticket, queue, _, wait, _, _, (index, done_step)):
                ledger.part_arrives(client, ticket, queue, index, done_step)
                return state.apply(
                    messages.Get(ticket, queue, wait=wait, grant=WantedPart(self._plan, index, done_step)),
                    client,
                )
            case Get(ticket, queue, None, wait, None, 0):
                ledger.get_arrives(client, ticket, asked.queue, Asked(wait=wait))
                return state.apply(messages.Get(ticket, queue, wait=wait), client)
            case Get(ticket, queue, None, wait, None, size):
                ledger.get_arrives(client, ticket, asked.queue, Asked(wait=wait, group_size=size))
                return state.apply(messages.Get(ticket, queue, wait=wait, group_size=size), client)
            case Get(ticket, queue, batch_weight, wait, limits):
                limits = NO_LIMITS if limits is None else limits
                ledger.get_arrives(client, ticket, asked.queue, Asked(True, batch_weight, limits, wait))
                return state.apply(
                    messages.Get(ticket, queue, wait=wait, batch_weight=batch_weight, limits=limits), client
                )

    def _answer(self, client: str, request: Request) -> list[Instruction]:
        """Do what is no operation, and say so."""
        state, ledger, answers = self.state, self._ledger, self._to_client(client)[1]
        match request:
            case EndQueue(ticket, queue):
                ledger.ends(queue)
                answers.append(Done(ticket))
                return state.apply(messages.EndQueue(queue))
            case Flush(ticket, queue):
                ledger.flushes(queue)
                answers.append(Done(ticket))
                return state.apply(messages.Flush(queue))
            case Join(ticket, name):
                problem = self._ask(client, control_wire.Join(ticket, name)).problem
                self._places.join(client, ticket, name, self.world.now_us, admitted=not problem)
                answers.append(Done(ticket, "no place" if problem else ""))
                return []
            case Subscribe() | Unsubscribe():
                self._subscribe(client, request)
                return []
            case Leave(ticket, number, failed):
                self._places.leave(client, number, self.world.now_us, failed=failed)
                answers.append(Done(ticket))
                self._ask(client, control_wire.Leave(number, failed))
                return []

    def _carry_out(self, instructions: list[Instruction]) -> None:
        vacated = [each for each in instructions if isinstance(each, Vacate)]
        instructions = [each for each in instructions if not isinstance(each, Vacate)]
        for each in vacated:
            self._handlers[Vacate](each)
        for instruction in instructions:
            client = instruction.client
            self.world.note(self.name, "says", *_in_words(instruction))
            if isinstance(instruction, StartClock | StopClock):
                self._keep_time(instruction)
                continue
            if isinstance(instruction, Bury):  # nobody here asks: questions are items to the queue
                continue
            if isinstance(instruction, Ripen):
                self.host.later(int(instruction.after_s * 1e6), self._ripen, client, instruction.ticket)
                continue
            if client in self._gone:
                message = f"the server answers {client}, which has gone"
                raise Violation(message, (client,))
            accepted, answers = self._to_client(client)
            if isinstance(instruction, Accept):
                accepted.append(instruction.ticket)
            elif not isinstance(instruction, Vacate):
                answers.append(instruction)
        self._ledger.follow(instructions, self.state, self.host.heard_us)

    def _call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.host.later(int(delay_s * 1e6), self._give_up, action)

    def _give_up(self, action: Callable[[], None]) -> None:
        action()
        self._places.given_up(self.world.now_us)

    def _on_producers_done(self) -> None:
        if not self.state.queues.has_ended("a queue of nobody"):
            self.world.note(self.name, "has no producers any more")
        self._places.ends(self.world.now_us)
        self._ledger.ends_all()
        self._carry_out(self.state.apply(messages.EndAll()))

    def _ripen(self, client: str, ticket: int) -> None:
        if client not in self._gone:
            self._tick()
            self._ledger.waited(client, ticket)
            self._carry_out(self.state.apply(messages.Linger(ticket), client))

    def _to_client(self, client: str) -> News:
        if not self._news:
            self.host.later(10, self._flush)
        return self._news.setdefault(client, ([], []))

    def _flush(self) -> None:
        news, self._news = self._news, {}
        for client, its_news in news.items():
            self.host.send(client, CHANNEL, its_news)


class _Served:
    """A server, as producers and subscriptions see it."""

    def __init__(
        self,
        state: Any,
        spec: ChannelSpec,
        call_later: Callable[[float, Callable[[], None]], None],
        carry_out: Callable[[list[Instruction]], None],
        end_all: Callable[[], None],
    ) -> None:
        self.state, self.spec, self.max_bytes = state, spec, 0
        self.call_later, self.carry_out, self.end_all = call_later, carry_out, end_all
        self.runtime = self
        self.handlers: dict[type, Callable[..., Any]] = {}
        self.on_lost: list[Callable[[str], None]] = []

    def feature(self, _kind: Any) -> Any:
        """The ends."""
        return self


class _Asked:
    """A request to it."""

    def __init__(self, client: str, message: Any) -> None:
        self.peer_id, self.head, self.answer = client, message, None

    def reply(self, answer: Any) -> None:
        """Answer."""
        self.answer = answer


def _in_words(instruction: Instruction) -> tuple[Any, ...]:
    words = (type(instruction).__name__, instruction.client, instruction.ticket)
    if isinstance(instruction, Deliver):
        return *words, *(item.payload for item in instruction.items)
    if isinstance(instruction, Refuse):
        return *words, instruction.reason.value
    return words


def _listed(places: tuple[int, ...] | None) -> list[int] | None:
    return None if places is None else [*places]
