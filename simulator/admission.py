"""A queue that admits, as a part of a simulated cluster: makers that die, trainers that begin anew."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

from rlinf_scheduler.queueing import (
    Instruction,
    Item,
    LeaseTerms,
    Limits,
    Over,
    Reason,
    Refuse,
    StartClock,
    StopClock,
    messages,
)
from rlinf_scheduler.queueing import admission as admission_policy
from rlinf_scheduler.queueing import leases as lease_policy
from rlinf_scheduler.queueing.client import Ending
from simulator.admission_oracle import AdmissionOracle
from simulator.cluster import Cluster, Part
from simulator.host import Host
from simulator.makers import (
    ADMISSION,
    FRESH,
    AdmissionClient,
    Admit,
    HoldSlot,
    LetGoOfSlot,
    Make,
    Maker,
    Message,
    Say,
    Settle,
    Take,
    Taken,
    Taker,
    Withdraw,
)
from simulator.script import Script
from simulator.world import Violation

# So many versions empty any queue of a story.
MAX_VERSIONS = 200


class AdmissionServer:
    """The process that holds the queue, around the real `ChannelState`."""

    def __init__(self, cluster: Cluster, oracle: AdmissionOracle) -> None:
        self.host = cluster.server
        self.state = cluster.machines.server(0, 0, 0)
        self._oracle = oracle
        self._gone: set[str] = set()
        self._leases: dict[int, tuple[str, int]] = {}
        self._clocks: dict[int, int] = {}
        self.host.serve(ADMISSION, self)

    def receive(self, sender: str, messages: list[Message]) -> None:
        """Do what a client asks for."""
        for message in messages:
            if sender not in self._gone:
                self.host.world.note(self.host.name, "hears", sender, type(message).__name__, *message)
                self._carry_out(self._handle(sender, message))

    def lost(self, peer: str) -> None:
        """A client has gone, or is held for dead."""
        if peer not in self._gone:
            self._gone.add(peer)
            self._oracle.loses(peer)
            self._carry_out(self.state.apply(messages.Lose(), peer))

    def end(self) -> None:
        """End the queue."""
        self._oracle.ends()
        self._carry_out(self.state.apply(messages.EndQueue(FRESH)))

    def _handle(self, client: str, message: Message) -> list[Instruction]:
        state, oracle, who = self.state, self._oracle, (client, message.ticket)
        match message:
            case Admit(ticket, max_lag):
                oracle.asks(who, max_lag)
                return state.apply(admission_policy.Admit(ticket, FRESH, True, max_lag), client)
            case Make(ticket, item, slot):
                oracle.puts(who, item, slot)
                return state.apply(messages.Put(ticket, FRESH), client, Item(item, slot=slot))
            case Take(ticket, num_items, ttl_us):
                oracle.takes(who, num_items)
                limits = Limits(num_items, num_items)
                if ttl_us:
                    terms = LeaseTerms(ttl_us / 1e6)
                    return state.apply(messages.Get(ticket, FRESH, limits=limits, grant=terms), client)
                return state.apply(messages.Get(ticket, FRESH, limits=limits), client)
            case Say(ticket, version, batch_items, begins):
                return self._say(who, version, batch_items, begins=begins)
            case Withdraw(ticket):
                oracle.comes_back(who)
                return state.apply(messages.Withdraw(ticket), client)
            case Taken(ticket):
                oracle.settles(who)
                return state.confirm(client, (ticket,))
            case Settle(_, generation, done):
                return self._settle(who, generation, done=done)
            case HoldSlot() | LetGoOfSlot():
                return self._pass_on(client, message)

    def _pass_on(self, client: str, message: HoldSlot | LetGoOfSlot) -> list[Instruction]:
        """A copy of a slot was sent, has come, or is dropped."""
        if isinstance(message, HoldSlot):
            holder = "" if message.sent else client
            self._oracle.holds(message.slot, (holder, message.ticket))
            held = admission_policy.HoldSlot(FRESH, message.slot, message.ticket, message.sent)
            return self.state.apply(held, client)
        self._oracle.lets_go(message.slot, (client, message.ticket), message.source)
        dropped = admission_policy.LetGoOfSlot(FRESH, message.slot, message.ticket, message.source)
        return self.state.apply(dropped, client)

    def _say(
        self, who: tuple[str, int], version: int, batch_items: int, *, begins: bool
    ) -> list[Instruction]:
        self._oracle.moves(who, version, batch_items, begins=begins)
        try:
            said = admission_policy.SetVersion(who[1], FRESH, True, version, batch_items, begins)
            return self.state.apply(said, who[0])
        except ValueError as error:  # another trainer has begun meanwhile
            return [Refuse(*who, Reason.TOO_EARLY, str(error))]

    def _settle(self, who: tuple[str, int], generation: int, *, done: bool) -> list[Instruction]:
        if generation in self._leases:
            (self._oracle.settles if done else self._oracle.comes_back)(who)
        try:
            return self.state.apply(lease_policy.Settle(generation, None, done), who[0])
        except Over:
            return []

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, StartClock):
                self._leases[each.generation] = each.client, each.ticket
                self.host.call_later(each.after_s, partial(self._lapse, each.generation))
            elif isinstance(each, StopClock):
                self._leases.pop(each.generation, None)
            elif each.client not in self._gone:
                self.host.world.note(self.host.name, "says", type(each).__name__, *each[:2])
                self.host.send(each.client, ADMISSION, [each])
        self._oracle.follow(each for each in instructions if not isinstance(each, StartClock | StopClock))

    def _lapse(self, generation: int) -> None:
        who = self._leases.pop(generation, None)
        if who is not None:
            self._oracle.comes_back(who)
            self._carry_out(self.state.apply(lease_policy.Lapse(generation)))


class _Ending:
    """How an operation ended."""

    ending: Ending | None = None
    detail: Any = None

    def __call__(self, ending: Ending, detail: Any) -> None:
        self.ending, self.detail = ending, detail


class AdmissionPart(Part):
    """In some stories there is a queue that admits: makers everywhere, a trainer, and another one who takes."""

    def __init__(self, cluster: Cluster, script: Script) -> None:
        draw = self._draw = Random(f"admission {script.seed}")  # noqa: S311 - not for secrets
        self._cluster = cluster
        self._is_told = draw.random() < 0.4
        self._batch_items = draw.randint(1, 4)
        self._mean_us = draw.choice((1_000, 10_000, 100_000))
        self._max_lags = draw.choice(((0,), (1,), (2,), (0, 1), (1, 3), (0, 0, 4)))
        self._oracle = AdmissionOracle()
        self._server = AdmissionServer(cluster, self._oracle) if self._is_told else None
        if self._server is not None and draw.random() < 0.3:
            self._server.host.later(draw.randrange(300_000), self._server.end)
        self._next_number = itertools.count(1).__next__
        self._sent: list[tuple[int, int]] = []
        self._agents: list[tuple[Host, Maker | Taker]] = []
        self._clients: list[AdmissionClient] = []

    def start(self, host: Host, number: int) -> None:
        """A process has started."""
        if not self._is_told:
            return
        client = self._client(host)
        if number < 0:
            return
        for name in range(self._draw.randint(1, 3)):
            num_items = self._draw.randint(1, 12)
            self._agents.append(
                (host, Maker(client, name, num_items, self._mean_us, self._max_lags, self._sent))
            )
        num_steps = self._draw.randint(1, 12)
        if number == 0:
            # A successor goes on from a checkpoint.
            begins_at = max(0, self._oracle.version - self._draw.randint(0, 2))
            self._agents.append((host, Taker(client, self._batch_items, num_steps, begins_at)))
        elif number == 1:
            self._agents.append((host, Taker(client, self._batch_items, num_steps)))

    def finish(self) -> Iterator[None]:
        """End the story and check it; the world comes to rest before the first step, and after each."""
        server = self._server
        if server is None:
            return
        for host, agent in self._agents:
            if host.alive:
                agent.stop()
        yield
        if self._cluster.server.alive:
            # What was sent, and nobody has taken for good.
            heir = self._client(self._cluster.start(-2, "heir of slots"))
            heir.host.later(1, self._inherit, heir)
            yield
            self._oracle.check_rest()
            yield from self._drain(server)
        for host, agent in self._agents:
            if host.alive and not agent.over:
                message = f"a {type(agent).__name__.lower()} of {host.name} never ends"
                raise Violation(message, (host.name,))

    def _inherit(self, heir: AdmissionClient) -> None:
        for slot, key in self._sent:
            heir.tell(LetGoOfSlot(0, slot, key))

    def _client(self, host: Host) -> AdmissionClient:
        client = AdmissionClient(host, self._cluster.machines.client(0), self._next_number)
        self._clients.append(client)
        return client

    def _drain(self, server: AdmissionServer) -> Iterator[None]:
        """Let a process that nothing has happened to take what is left, version by version."""
        auditor = self._client(self._cluster.start(-2, "admission auditor"))
        server.end()
        version, batch_items = max(0, self._oracle.version), self._oracle.batch_items or 1
        for _ in range(MAX_VERSIONS):
            for _ in range(batch_items):
                taken = _Ending()
                ticket = auditor.begin(Take(self._next_number(), 1, 0), taken)
                yield
                if taken.ending is not Ending.DELIVERED:
                    auditor.drop(ticket)
                    yield
                    break
                auditor.take(ticket)
                yield
            if not self._oracle.open:
                break
            version += 1
            said = _Ending()
            auditor.begin(Say(self._next_number(), version, 0, False), said)
            yield
            if said.ending is not Ending.ACCEPTED:
                raise Violation(
                    f"version {version} does not come: {said.detail}; {server.state.queues.describe(FRESH)}"
                )
        oracle = self._oracle
        if oracle.open or oracle.num_taken != oracle.num_accepted or server.state.queues.num_items(FRESH):
            raise Violation(f"of {oracle.num_accepted} items {oracle.num_taken} are taken", list(oracle.open))
