"""Who gets what of one object, and from where: PURE. On every other machine one reader keeps it for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# So many machines copy from one process at a time. One would make the most of a link, but one slow machine would then
# hold up all others; with two, the number of machines that have it still grows by half in the time of one copy.
COPIES_AT_ONCE = 2


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
    """Answer that this process has it; if `keep`, on another machine, and the reader becomes a replica, too."""

    ticket: int
    process_id: str
    keep: bool


PublicationInstruction = Give | Refer


@dataclass(slots=True, eq=False)
class _Source:
    """A process that machines copy from: the publisher (""), or a replica that has it.

    Attributes:
        process_id: which one.
        copies: so many copy from it now.
        lost: it is none any more; those that copy from it may end.
    """

    process_id: str
    copies: int = 0
    lost: bool = False


@dataclass(slots=True)
class _Replica:
    """One machine's replica.

    Attributes:
        process_id: which process.
        copies_from: where it gets the object from.
        serves: what it is for others; None until it has the object.
    """

    process_id: str
    copies_from: _Source
    serves: _Source | None = None
    is_overdue: bool = False


class Publication:
    """Decides for one object.

    Machines copy from the publisher and from each other: whoever has it gives it to two others at a time, so it
    reaches n machines in a time that grows with the logarithm of n.

    Args:
        machine_id: where it lies.
        replicated: whether readers of other machines share a copy there.

    >>> publication = Publication("a", replicated=True)
    >>> publication.ask(Reader(1, "p", "a")), publication.ask(Reader(2, "q", "b")), publication.ask(Reader(3, "r", "b"))
    ([Give(ticket=1, keep=False)], [Give(ticket=2, keep=True)], [])
    >>> publication.kept("q")
    [Refer(ticket=3, process_id='q', keep=False)]
    >>> [publication.ask(Reader(4 + number, machine, machine))[0] for number, machine in enumerate("cde")]
    [Give(ticket=4, keep=True), Refer(ticket=5, process_id='q', keep=True), Give(ticket=6, keep=True)]
    """

    def __init__(self, machine_id: str, *, replicated: bool) -> None:
        self._machine_id = machine_id
        self._replicated = replicated
        self._replicas: dict[str, _Replica] = {}
        self._machines: dict[str, str] = {}  # of replicas, by their process
        # Who may give it to more machines, by how many copy from there.
        self._free: list[dict[_Source, None]] = [{} for _ in range(COPIES_AT_ONCE)]
        self._free[0][_Source("")] = None
        self._waiting: dict[str, dict[int, Reader]] = {}  # by machine
        self._machine_of: dict[int, str] = {}
        self._unserved: dict[str, None] = {}  # machines that wait for somebody to copy from

    def ask(self, reader: Reader) -> list[PublicationInstruction]:
        """A reader wants it; nothing comes back if it has to wait for its machine's replica."""
        machine_id = reader.machine_id
        if not self._replicated or machine_id == self._machine_id:
            return [Give(reader.ticket, keep=False)]
        replica = self._replicas.get(machine_id)
        if replica is not None and replica.serves is not None:
            return [Refer(reader.ticket, replica.process_id, keep=False)]
        self._waiting.setdefault(machine_id, {})[reader.ticket] = reader
        self._machine_of[reader.ticket] = machine_id
        if replica is None:
            self._unserved[machine_id] = None
        return self._start_copies()

    def withdraw(self, ticket: int) -> None:
        """A reader does not wait any more."""
        machine_id = self._machine_of.pop(ticket, None)
        if machine_id is not None:
            self._take(machine_id, ticket)

    def kept(self, process_id: str) -> list[PublicationInstruction] | None:
        """A replica has written it; None if it is none (any more)."""
        machine_id = self._machines.get(process_id)
        if machine_id is None:
            return None
        replica = self._replicas[machine_id]
        if replica.serves is None:
            self._make_room(replica)
            replica.serves = _Source(process_id)
            self._free[0][replica.serves] = None
        readers = list(self._waiting.get(machine_id, ()))
        for ticket in readers:
            self.withdraw(ticket)
        there: list[PublicationInstruction] = [Refer(ticket, process_id, keep=False) for ticket in readers]
        return there + self._start_copies()

    def lost(self, process_id: str) -> list[PublicationInstruction]:
        """A process is gone, gave up, or does not have it: the first of its machine that waits is the next replica."""
        machine_id = self._machines.pop(process_id, None)
        if machine_id is None:
            return []
        replica = self._replicas.pop(machine_id)
        if replica.serves is None:
            self._make_room(replica)
        else:
            self._close(replica.serves)
        if machine_id in self._waiting:
            self._unserved[machine_id] = None
        return self._start_copies()

    def overdue(self, process_id: str) -> list[PublicationInstruction]:
        """A process takes longer to copy than it may: it makes room for the next machine.

        It stays the replica of its machine, for it may be slow and not stopped; its machine goes on waiting for it.
        """
        machine_id = self._machines.get(process_id)
        replica = None if machine_id is None else self._replicas[machine_id]
        if replica is None or replica.serves is not None:
            return []
        self._make_room(replica)
        return self._start_copies()

    def spare(self, process_id: str) -> list[PublicationInstruction]:
        """No more machines copy from a replica, which was too slow; for its own machine it stays what it is."""
        machine_id = self._machines.get(process_id)
        replica = None if machine_id is None else self._replicas[machine_id]
        if replica is not None and replica.serves is not None:
            self._close(replica.serves)
        return self._start_copies()

    def is_copying(self, process_id: str) -> bool:
        """Whether a process is to be the replica of its machine, and has not said that it is."""
        machine_id = self._machines.get(process_id)
        return machine_id is not None and self._replicas[machine_id].serves is None

    def ready(self) -> list[str]:
        """The replicas that have it."""
        return [replica.process_id for replica in self._replicas.values() if replica.serves]

    def _start_copies(self) -> list[PublicationInstruction]:
        out: list[PublicationInstruction] = []
        while self._unserved:
            source = next((source for sources in self._free for source in sources), None)
            if source is None:
                break
            machine_id = next(iter(self._unserved))
            reader = next(iter(self._waiting[machine_id].values()))
            self.withdraw(reader.ticket)
            self._unserved.pop(machine_id, None)
            self._replicas[machine_id] = _Replica(reader.process_id, source)
            self._machines[reader.process_id] = machine_id
            self._change_copies(source, 1)
            out.append(
                Refer(reader.ticket, source.process_id, keep=True)
                if source.process_id
                else Give(reader.ticket, keep=True)
            )
        return out

    def _close(self, source: _Source) -> None:
        source.lost = True
        for sources in self._free:
            sources.pop(source, None)

    def _make_room(self, replica: _Replica) -> None:
        if not replica.is_overdue:
            replica.is_overdue = True
            self._change_copies(replica.copies_from, -1)

    def _change_copies(self, source: _Source, by: int) -> None:
        if not source.lost:
            self._free_with(source.copies).pop(source, None)
            self._free_with(source.copies + by)[source] = None
        source.copies += by

    def _free_with(self, copies: int) -> dict[_Source, None]:
        return self._free[copies] if copies < COPIES_AT_ONCE else {}

    def _take(self, machine_id: str, ticket: int) -> None:
        readers = self._waiting[machine_id]
        del readers[ticket]
        if not readers:
            del self._waiting[machine_id]
            self._unserved.pop(machine_id, None)
