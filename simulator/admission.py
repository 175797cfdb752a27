"""A queue that admits, as a part of a simulated cluster: makers that die, trainers that begin anew."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from rlinf_scheduler.channel import server, spec
from rlinf_scheduler.channel.channel import Channel
from rlinf_scheduler.channel.features import FEATURES
from rlinf_scheduler.channel.spec import HOLDS_CHANNEL, ChannelRef, ChannelSpec
from rlinf_scheduler.errors import ChannelClosed, ChannelTimeout, SchedulerError
from rlinf_scheduler.queueing import messages
from rlinf_scheduler.queueing.leases import Lapse, Settle, StartClock, StopClock
from rlinf_scheduler.queueing.messages import Deliver, Instruction, Reason, Refuse
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import depths_of
from rlinf_scheduler.queueing.versions import AskForSlot, HoldSlot, LetGoOfSlot, SetVersion
from simulator.admission_oracle import AdmissionOracle
from simulator.cluster import Cluster, Part
from simulator.host import Host
from simulator.makers import FRESH, Maker, Program, Taker
from simulator.processes import replaced
from simulator.script import Script
from simulator.watched import Names, Told
from simulator.world import Violation, World

# So many versions empty any queue of a story.
MAX_VERSIONS = 200
# So long the last consumer waits for what may be taken.
AUDIT_S = 0.05


class WatchedAdmission(ChannelState):
    """The state of the queue's server, which tells the books of each event before it, and what followed after it."""

    def __init__(
        self, world: World, oracle: AdmissionOracle, names: Names, *args: Any, **bounds: Any
    ) -> None:
        super().__init__(*args, **bounds)
        self._world = world
        self._oracle = oracle
        self._names = names
        self._leases: dict[int, tuple[str, int]] = {}
        self._is_inside = False

    def apply(self, operation: Any, client: str = "", item: Any = None) -> list[Instruction]:
        """Do what is asked for."""
        if self._is_inside:
            return super().apply(operation, client, item)
        name = self._names.processes.get(client, "")
        self._world.note("admission", "hears", name, type(operation).__name__)
        if hasattr(operation, "ticket"):
            self._hear(operation, (name, operation.ticket), item)
        else:
            self._hear_of(operation, name)
        self._is_inside = True
        try:
            return self._follow(super().apply(operation, client, item))
        except ValueError:  # another trainer has begun meanwhile
            if isinstance(operation, SetVersion):
                self._oracle.follow([Refuse(name, operation.ticket, Reason.TOO_EARLY, "")])
            raise
        finally:
            self._is_inside = False

    def confirm(self, client: str, tickets: Any) -> list[Instruction]:
        """Items were taken."""
        tickets = list(tickets)
        for ticket in tickets if not self._is_inside else ():
            who = self._names.processes[client], ticket
            if who not in self._leases.values():  # what is on lease is taken when that is settled
                self._oracle.settles(who)
        out = super().confirm(client, tickets)
        return out if self._is_inside else self._follow(out)

    def _hear(self, operation: Any, who: tuple[str, int], item: Any) -> None:
        match operation:
            case AskForSlot():
                self._oracle.asks(who, operation.max_lag)
            case messages.Put():
                self._oracle.puts(who, operation.ticket, item.slot)
            case messages.Get():
                self._oracle.takes(who, operation.limits.min_items if operation.limits is not None else 1)
            case SetVersion():
                about = operation.version, operation.batch_items
                self._oracle.moves(who, *about, begins=operation.begins)
            case messages.Withdraw():
                self._oracle.comes_back(who)

    def _hear_of(self, operation: Any, name: str) -> None:
        oracle = self._oracle
        match operation:
            case messages.Lose(taken):
                for ticket in taken:
                    oracle.settles((name, ticket))
                oracle.loses(name)
            case messages.EndQueue():
                oracle.ends()
            case HoldSlot(_, slot, key, sent, source):
                oracle.holds(slot, ("" if sent else name, key))
                if source:
                    oracle.lets_go(slot, ("", source), source)
            case LetGoOfSlot(_, slot, key, source):
                oracle.lets_go(slot, (name, key), source)
            case Settle(generation, _, done) if self._leases.get(generation, ("", 0))[0] == name:
                (oracle.settles if done else oracle.comes_back)(self._leases[generation])
            case Lapse(generation) if generation in self._leases:
                oracle.comes_back(self._leases[generation])

    def _follow(self, out: list[Instruction]) -> list[Instruction]:
        told = []
        for each in out:
            if isinstance(each, StopClock):
                self._leases.pop(each.generation, None)
                continue
            who = self._names.processes.get(each.client, ""), each.ticket
            if isinstance(each, StartClock):
                self._leases[each.generation] = who
                continue
            said: Any = each
            said = said._replace(client=who[0])
            if isinstance(each, Deliver):
                said = said._replace(items=[Told(self._names.number_of(item)) for item in each.items])
            told.append(said)
        self._oracle.follow(told)
        return out


class AdmissionPart(Part):
    """In some stories there is a queue that admits: makers everywhere, a trainer, and another one who takes."""

    def __init__(self, cluster: Cluster, script: Script) -> None:
        draw = self._draw = Random(f"admission {script.seed}")  # noqa: S311 - not for secrets
        self._cluster = cluster
        self._is_told = draw.random() < 0.4
        self._is_hasty = Random(f"haste {script.seed}").random() < 0.3  # noqa: S311 - not for secrets
        self._batch_items = draw.randint(1, 4)
        self._mean_us = draw.choice((1_000, 10_000, 100_000))
        self._max_lags = draw.choice(((0,), (1,), (2,), (0, 1), (1, 3), (0, 0, 4)))
        self._oracle = AdmissionOracle()
        self._state: ChannelState | None = None
        self._sent: list[bytes] = []
        self._programs: list[Program] = []
        ends_us = draw.randrange(300_000) if draw.random() < 0.3 else None
        if self._is_told:
            self._ref = self._serve()
            if ends_us is not None:
                cluster.server.later(ends_us, self._end)

    def _serve(self) -> ChannelRef:
        messenger = self._cluster.processes.of(self._cluster.server).messenger
        about = ChannelSpec("admission", channel_id="a", holds=HOLDS_CHANNEL)
        with replaced(spec, "ChannelState", self._make_state):
            server.ChannelServer(messenger, about, FEATURES)
        return ChannelRef(about, messenger.endpoint)

    def _make_state(self, *args: Any, **bounds: Any) -> ChannelState:
        broken: Any = self._cluster.machines.server
        kind = WatchedAdmission if broken is ChannelState else type("Watched", (WatchedAdmission, broken), {})
        names = self._cluster.processes.names
        self._state = kind(self._cluster.world, self._oracle, names, *args, **bounds)
        return self._state

    def _begin(self, host: Host, name: object, body: Callable[[Channel], None]) -> Program:
        program = Program(self._cluster.processes.of(host), Channel(self._ref), name, body)
        self._programs.append(program)
        return program

    def start(self, host: Host, number: int) -> None:
        """A process has started."""
        if not self._is_told or number < 0:
            return
        draw = self._draw
        makers = [
            Maker(draw.randint(1, 12), self._mean_us, self._max_lags, self._sent)
            for _ in range(draw.randint(1, 3))
        ]
        for name, maker in enumerate(makers):
            maker.program = self._begin(host, name, maker.run)
        num_steps = draw.randint(1, 12)
        if number > 1:
            return
        # A successor goes on from a checkpoint.
        begins_at = max(0, self._oracle.version - draw.randint(0, 2)) if number == 0 else None
        taker = Taker(self._batch_items, num_steps, begins_at, is_hasty=self._is_hasty)
        taker.program = self._begin(host, "taker", taker.run)

    def died(self, host: Host) -> None:
        """A process has died."""
        for program in self._programs:
            if program.host is host:
                program.thread.kill()

    def finish(self) -> Iterator[None]:
        """End the story and check it; the world comes to rest before the first step, and after each."""
        if not self._is_told:
            return
        for program in self._programs:
            program.stop()
        yield
        if self._cluster.server.alive:
            # What was sent, and nobody has taken for good.
            self._begin(self._cluster.start(-2, "heir of slots"), "heir", self._inherit)
            yield
            self._oracle.check_rest()
            self._begin(self._cluster.start(-2, "admission auditor"), "auditor", self._audit)
            yield
            self._check_drained()
        for program in self._programs:
            if program.host.alive and not program.thread.is_over:
                raise Violation(f"{program.name} of {program.host.name} never ends", (program.host.name,))

    def _end(self) -> None:
        self._begin(self._cluster.server, "end", lambda channel: channel.end(FRESH))

    def _inherit(self, _channel: Channel) -> None:
        for sent in self._sent:
            pickle.loads(sent).give_back()

    def _audit(self, channel: Channel) -> None:
        """Take what is left, version by version."""
        channel.end(FRESH)
        version, batch_items = max(0, self._oracle.version), self._oracle.batch_items or 1
        for _ in range(MAX_VERSIONS):
            for _ in range(batch_items):
                try:
                    channel.get_batch(queue_name=FRESH, max_items=1, timeout_s=AUDIT_S)
                except (ChannelTimeout, ChannelClosed):
                    break
            if not self._oracle.open:
                return
            version += 1
            try:
                channel.set_version(version, FRESH)
            except SchedulerError as error:
                raise Violation(f"version {version} does not come: {error}") from error

    def _check_drained(self) -> None:
        oracle = self._oracle
        left = () if self._state is None else depths_of(self._state.queues)
        if oracle.open or oracle.num_taken != oracle.num_accepted or any(depth.num_items for depth in left):
            raise Violation(f"of {oracle.num_accepted} items {oracle.num_taken} are taken", list(oracle.open))
