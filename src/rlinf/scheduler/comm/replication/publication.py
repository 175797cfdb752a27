"""Who gets what of one object: PURE. On every other machine one reader gets the bytes and keeps them for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Reader(NamedTuple):
    """A process that asks.

    Attributes:
        ticket: what tells this question from every other one.
        process_id: who asks.
        machine_id: where it runs.
    """

    ticket: int
    process_id: str
    machine_id: str


class Give(NamedTuple):
    """Answer with the object; if `keep`, its reader becomes the replica of its machine."""

    ticket: int
    keep: bool


class Refer(NamedTuple):
    """Answer that this process has it."""

    ticket: int
    process_id: str


PublicationInstruction = Give | Refer


@dataclass(slots=True)
class _Replica:
    process_id: str
    ready: bool = False


class Publication:
    """Decides for one object.

    Args:
        machine_id: where it lies.
        replicated: whether readers of other machines share a copy there.

    >>> publication = Publication("a", replicated=True)
    >>> publication.ask(Reader(1, "p", "a")), publication.ask(Reader(2, "q", "b")), publication.ask(Reader(3, "r", "b"))
    ([Give(ticket=1, keep=False)], [Give(ticket=2, keep=True)], [])
    >>> publication.kept("q")
    [Refer(ticket=3, process_id='q')]
    """

    def __init__(self, machine_id: str, *, replicated: bool) -> None:
        self._machine_id = machine_id
        self._replicated = replicated
        self._replicas: dict[str, _Replica] = {}
        self._waiting: dict[int, Reader] = {}

    def ask(self, reader: Reader) -> list[PublicationInstruction]:
        """A reader wants it; nothing comes back if it has to wait for its machine's replica."""
        if not self._replicated or reader.machine_id == self._machine_id:
            return [Give(reader.ticket, keep=False)]
        replica = self._replicas.get(reader.machine_id)
        if replica is None:
            self._replicas[reader.machine_id] = _Replica(reader.process_id)
            return [Give(reader.ticket, keep=True)]
        if replica.ready:
            return [Refer(reader.ticket, replica.process_id)]
        self._waiting[reader.ticket] = reader
        return []

    def withdraw(self, ticket: int) -> None:
        """A reader does not wait any more."""
        self._waiting.pop(ticket, None)

    def kept(self, process_id: str) -> list[PublicationInstruction] | None:
        """A replica has written it; None if it is none (any more)."""
        machines = self._machines_of(process_id)
        for machine_id in machines:
            self._replicas[machine_id].ready = True
        return self._look_again(machines) if machines else None

    def lost(self, process_id: str) -> list[PublicationInstruction]:
        """A process is gone, gave up, or does not have it: the first of its machine that waits is the next replica."""
        machines = self._machines_of(process_id)
        for machine_id in machines:
            del self._replicas[machine_id]
        return self._look_again(machines)

    def ready(self) -> list[str]:
        """The replicas that have it."""
        return [replica.process_id for replica in self._replicas.values() if replica.ready]

    def _machines_of(self, process_id: str) -> list[str]:
        return [machine for machine, replica in self._replicas.items() if replica.process_id == process_id]

    def _look_again(self, machines: list[str]) -> list[PublicationInstruction]:
        readers = [reader for reader in self._waiting.values() if reader.machine_id in machines]
        out: list[PublicationInstruction] = []
        for reader in readers:
            del self._waiting[reader.ticket]
            out += self.ask(reader)
        return out
