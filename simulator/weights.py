"""Weights in a simulated cluster: one publisher, readers on several machines, one replica a machine.

Around the real `Publication`. Written once on every machine; whoever reads gets what was the newest when it asked, or
what is newer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rlinf_scheduler.comm.replication.publication import (
    Give,
    Publication,
    PublicationInstruction,
    Reader,
    Refer,
)
from rlinf_scheduler.queueing.client import Ending
from simulator.cluster import Cluster, Part
from simulator.host import Host
from simulator.script import Call, Script
from simulator.users import UserCall, Users
from simulator.world import Violation

WEIGHTS = "weights"
NUM_MACHINES = 4
NONE = -1
SLOW_US = 500_000
MAX_WRITE_US = 50_000


class Ask(NamedTuple):
    """A reader wants the newest version; the process to `avoid` should have had version `missed`, and did not."""

    ticket: int
    avoid: str
    missed: int
    was_to_keep: bool


class Stop(NamedTuple):
    """It wants it no more."""

    ticket: int


class Here(NamedTuple):
    """A version; if `keep`, for its machine."""

    ticket: int
    version: int
    keep: bool


class At(NamedTuple):
    """A process of the reader's machine has a version, or (`keep`) one of another from which it is to copy it."""

    ticket: int
    version: int
    process: str
    keep: bool


class Copy(NamedTuple):
    """A reader asks its machine's replica."""

    ticket: int
    version: int


class Gone(NamedTuple):
    """The replica has it no more."""

    ticket: int
    version: int


class Kept(NamedTuple):
    """A replica has written a version, or (not `written`) nobody there wanted it."""

    version: int
    written: bool


class Drop(NamedTuple):
    """Nobody needs a version any more."""

    version: int


class Publisher:
    """The process that has the weights; the newest version replaces the one before.

    Attributes:
        version: the newest.
        publication: decides who gets it from where.
        asking: readers that have no answer, by ticket.
    """

    def __init__(self, host: Host, cluster: Cluster) -> None:
        self.host = host
        self.version = 0
        self._cluster = cluster
        self._gone: set[str] = set()
        self.publication: Publication = cluster.machines.publication(host.name)
        self.asking: dict[int, str] = {}
        host.serve(WEIGHTS, self)

    def publish(self) -> None:
        """Publish the next version."""
        replicas, asking = self.publication.ready(), self.asking
        old, self.version = self.version, self.version + 1
        self.publication, self.asking = self._cluster.machines.publication(self.host.name), {}
        self.host.world.note(self.host.name, "publishes", self.version)
        for process in replicas:
            self.host.send(process, WEIGHTS, Drop(old))
        for ticket, process in asking.items():
            self._ask(process, ticket)

    def receive(self, sender: str, message: Any) -> None:
        """A reader asks, or a replica has news."""
        if sender in self._gone:
            return
        self.host.world.note(self.host.name, "hears", sender, type(message).__name__, *message)
        match message:
            case Ask(ticket, avoid, missed, was_to_keep):
                if avoid and missed == self.version:
                    self._avoid(avoid, sender, was_to_keep=was_to_keep)
                self._ask(sender, ticket)
            case Stop(ticket):
                self.asking.pop(ticket, None)
                self.publication.withdraw(ticket)
            case Kept(version, written):
                self._hear_of_replica(sender, version, written)

    def lost(self, peer: str) -> None:
        """A process has gone."""
        self._gone.add(peer)
        for ticket in [ticket for ticket, process in self.asking.items() if process == peer]:
            del self.asking[ticket]
            self.publication.withdraw(ticket)
        self._follow(self.publication.lost(peer))

    def _ask(self, process: str, ticket: int) -> None:
        self.asking[ticket] = process
        self._follow(self.publication.ask(Reader(ticket, process, machine_of(process))))

    def _avoid(self, process: str, reader: str, *, was_to_keep: bool) -> None:
        self._follow(self.publication.lost(process))
        if process not in self._gone:
            self.host.send(process, WEIGHTS, Drop(self.version))
        if was_to_keep:
            self._lose_copying(reader)

    def _lose_copying(self, process: str) -> None:
        if self.publication.is_copying(process):
            self._follow(self.publication.lost(process))

    def _hear_of_replica(self, sender: str, version: int, written: bool) -> None:
        if version != self.version or not written:
            if version == self.version:
                self._lose_copying(sender)
            if written:
                self.host.send(sender, WEIGHTS, Drop(version))
            return
        instructions = self.publication.kept(sender)
        if instructions is None:
            self.host.send(sender, WEIGHTS, Drop(version))
        self._follow(instructions or [])

    def _overdue(self, publication: Publication, process: str) -> None:
        instructions = publication.overdue(process)
        if publication is self.publication:
            self._follow(instructions)

    def _follow(self, instructions: list[PublicationInstruction]) -> None:
        for instruction in instructions:
            reader = self.asking.pop(instruction.ticket)
            if instruction.keep:
                self.host.later(SLOW_US, self._overdue, self.publication, reader)
            match instruction:
                case Give(ticket, keep):
                    self.host.send(reader, WEIGHTS, Here(ticket, self.version, keep))
                case Refer(ticket, process, keep):
                    self.host.send(reader, WEIGHTS, At(ticket, self.version, process, keep))


class WeightsReader(Users):
    """A process that reads weights, and keeps them for its machine when it is told to.

    Attributes:
        kept: versions that are here for the machine.
    """

    def __init__(self, host: Host, publisher: Publisher) -> None:
        super().__init__(host)
        self.kept: set[int] = set()
        self._publisher = publisher
        self._newest_before: dict[int, int] = {}
        self._asked: dict[int, str] = {}  # whom a call has asked
        self._asked_for: dict[int, int] = {}  # which version
        self._copying: dict[int, int] = {}  # the version that a call copies for its machine
        self._gone: set[str] = set()
        host.serve(WEIGHTS, self)

    def receive(self, sender: str, message: Any) -> None:
        """An answer, or a reader of this machine asks."""
        match message:
            case Here(ticket, version, True):
                self._copying.pop(ticket, None)
                self.host.later(self._draw.randrange(MAX_WRITE_US), self._written, ticket, version)
            case Here(ticket, version, _):
                self._read(ticket, version)
            case At(ticket, version, process) if process == self.name:
                self._copied(ticket, version, here=version in self.kept)
            case At():
                self._refer(message)
            case Copy(ticket, version):
                here = version in self.kept
                keep = machine_of(sender) != machine_of(self.name)
                answer = Here(ticket, version, keep) if here else Gone(ticket, version)
                self.host.send(sender, WEIGHTS, answer)
            case Gone(ticket, version):
                self._ask(ticket, sender, version)
            case Drop(version):
                self.kept.discard(version)

    def lost(self, peer: str) -> None:
        """The publisher or a replica has gone."""
        self._gone.add(peer)
        if peer == self._publisher.host.name:
            self.kept.clear()
        for ticket in [ticket for ticket, asked in self._asked.items() if asked == peer]:
            if peer == self._publisher.host.name:
                self._over(ticket, Ending.LOST)
            else:
                self._ask(ticket, peer, self._asked_for[ticket])

    def on_begin(self, call: UserCall) -> None:
        """A call begins."""
        if not call.outcome:
            self._ask(call.step.number, "", NONE)

    def on_drop(self, call: UserCall) -> None:
        """A user has left a call."""
        self._asked.pop(call.step.number, None)
        self._stop(call.step.number)

    def on_cancel(self, call: UserCall) -> None:
        """A user asks for the end of a call."""
        self._over(call.step.number, Ending.CANCELLED)
        self._stop(call.step.number)

    def on_expire(self, call: UserCall) -> None:
        """A deadline has passed."""
        self._over(call.step.number, Ending.TIMED_OUT)
        self._stop(call.step.number)

    def on_give_up(self, call: UserCall) -> None:
        """A deadline has passed a while ago, and nothing has come of it."""

    def on_turn(self) -> None:
        """Everything that was handed over has been done."""

    def told_begin(self, call: UserCall) -> None:
        """For the checks: a user begins."""
        self._newest_before[call.step.number] = self._publisher.version

    def told_end(self, call: UserCall) -> None:
        """For the checks: a user's call has ended."""
        if call.outcome == "taken" and call.items is not None:
            version, before = call.items[0], self._newest_before[call.step.number]
            if version < before:
                message = f"{self.name} reads version {version}; {before} was there when it asked"
                raise Violation(message, (call.step.number,))

    def _send_publisher(self, message: Any) -> None:
        if self._publisher.host.name not in self._gone:
            self.host.send(self._publisher.host.name, WEIGHTS, message)

    def _stop(self, ticket: int) -> None:
        self._send_publisher(Stop(ticket))
        version = self._copying.pop(ticket, None)
        if version is not None:
            self._send_publisher(Kept(version, written=False))

    def _refer(self, at: At) -> None:
        ticket, version, process, keep = at
        call = self.calls[ticket]
        if call.outcome or call.items is not None:
            if keep:
                self._send_publisher(Kept(version, written=False))
            return
        self._asked[ticket], self._asked_for[ticket] = process, version
        if keep:
            self._copying[ticket] = version
        if process in self._gone:
            self._ask(ticket, process, version)
        else:
            self.host.send(process, WEIGHTS, Copy(ticket, version))

    def _ask(self, ticket: int, avoid: str, missed: int) -> None:
        was_to_keep = self._copying.pop(ticket, None) is not None
        call = self.calls[ticket]
        if call.outcome or call.items is not None:
            return
        self._asked[ticket] = self._publisher.host.name
        if self._publisher.host.name in self._gone:
            self._over(ticket, Ending.LOST)
        else:
            self._send_publisher(Ask(ticket, avoid, missed, was_to_keep))

    def _written(self, ticket: int, version: int) -> None:
        self.kept.add(version)
        self._send_publisher(Kept(version, written=True))
        self._read(ticket, version)

    def _copied(self, ticket: int, version: int, *, here: bool) -> None:
        if here:
            self._read(ticket, version)
        else:
            self._ask(ticket, self.name, version)

    def _read(self, ticket: int, version: int) -> None:
        call = self.calls[ticket]
        self._asked.pop(ticket, None)
        if not call.outcome and call.items is None:
            self.tell(call, Ending.DELIVERED, [version])

    def _over(self, ticket: int, ending: Ending) -> None:
        call = self.calls[ticket]
        self._asked.pop(ticket, None)
        if not call.outcome and call.items is None:
            self.tell(call, ending, None)


class WeightsPart(Part):
    """A publisher in the server's process, readers in all others."""

    kinds: tuple[str, ...] = ("publish", "fetch")

    def __init__(self, cluster: Cluster, script: Script) -> None:
        del script
        self._cluster = cluster
        self._publisher = Publisher(cluster.server, cluster)
        self._readers: dict[str, WeightsReader] = {}

    def start(self, host: Host, number: int) -> None:
        """A process has started."""
        del number
        self._readers[host.name] = WeightsReader(host, self._publisher)

    def call(self, host: Host, step: Call) -> None:
        """A user calls in a process."""
        if step.kind == "fetch":
            self._readers[host.name].call(step)
        else:
            self._cluster.server.later(0, self._publisher.publish)

    def finish(self) -> Iterator[None]:
        """End the story and check it; the world comes to rest before the first step, and after each."""
        yield from ()
        live = [reader for reader in self._readers.values() if reader.host.alive]
        for reader in live:
            reader.check_calls()
        if not self._cluster.server.alive:
            return
        if self._publisher.asking:
            message = f"readers {self._publisher.asking} have no answer"
            raise Violation(message, self._publisher.asking)
        ready = set(self._publisher.publication.ready())
        keeping = {reader.name for reader in live if reader.kept}
        if keeping - ready and not any(self._held_for_dead(name) for name in keeping - ready):
            message = f"{sorted(keeping - ready)} keep versions that nobody knows of"
            raise Violation(message, keeping - ready)
        if len({machine_of(name) for name in ready}) < len(ready):
            message = f"{sorted(ready)} keep the same version, two on one machine"
            raise Violation(message, ready)

    def _held_for_dead(self, name: str) -> bool:
        return self._cluster.server.sessions.has_given_up(name)


def machine_of(process: str) -> str:
    """Return where a process runs: its number tells."""
    if not process.startswith("client"):
        return process
    return f"machine{int(process.removeprefix('client').split('.')[0]) % NUM_MACHINES}"
