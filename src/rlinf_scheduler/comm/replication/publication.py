"""Who gets what of one object, and from where: PURE. On every other machine one reader keeps it for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Reader(NamedTuple):
    """A process that asks; its ticket tells this question from every other one."""

    ticket: int
    process_id: str
    machine_id: str


class Give(NamedTuple):
    """Answer with the object."""

    ticket: int


class Refer(NamedTuple):
    """Answer that this process has it, or ("" is the publisher) gets it; if `keep`, the reader is a replica, too."""

    ticket: int
    process_id: str
    keep: bool


PublicationInstruction = Give | Refer


@dataclass(slots=True, eq=False)
class _Source:
    """A process that machines copy from: the publisher, or the replica of a machine as soon as it is to be one.

    Attributes:
        process_id: "" for the publisher.
        number: those that copy from it have larger ones, if it does not have all of the object itself.
        depth: through so many hands a piece comes to it.
        copies_from: where it gets the object from; None if it takes nobody's time for that.
        is_open: others may be sent to it.
        blames: whom it has called too slow.
    """

    process_id: str
    number: int
    depth: int
    copies_from: _Source | None = None
    copies: int = 0
    is_ready: bool = False
    is_open: bool = True
    blames: _Source | None = None

    def delay(self, num_pieces: int) -> int:
        """When one more machine would have the last piece from here, in the time that a piece takes on a link."""
        return (self.copies + 1) * num_pieces + (0 if self.is_ready else self.depth)


class Publication:
    """Decides for one object; `replicated`: readers of another machine share a copy there.

    Machines copy from the publisher and from each other, in pieces: each from where it would have the last one first.

    >>> publication = Publication("a", replicated=True, num_pieces=10)
    >>> publication.ask(Reader(1, "p", "a")), publication.ask(Reader(2, "q", "b")), publication.ask(Reader(3, "r", "b"))
    ([Give(ticket=1)], [Refer(ticket=2, process_id='', keep=True)], [])
    >>> publication.ask(Reader(4, "s", "c"))
    [Refer(ticket=4, process_id='q', keep=True)]
    >>> publication.kept("q")
    [Refer(ticket=3, process_id='q', keep=False)]
    """

    def __init__(self, machine_id: str, *, replicated: bool, num_pieces: int = 1) -> None:
        self._machine_id = machine_id
        self._replicated = replicated
        self._num_pieces = num_pieces
        self._publisher = _Source("", 0, 0, is_ready=True)
        self._num_begun = 0
        self._replicas: dict[str, _Source] = {}  # by machine
        self._machines: dict[str, str] = {}  # of replicas, by their process
        self._waiting: dict[str, dict[int, Reader]] = {}  # by machine
        self._machine_of: dict[int, str] = {}

    def ask(self, reader: Reader) -> list[PublicationInstruction]:
        """A reader wants it; nothing comes back if it has to wait for its machine's replica."""
        machine_id = reader.machine_id
        if not self._replicated or machine_id == self._machine_id:
            return [Give(reader.ticket)]
        replica = self._replicas.get(machine_id)
        if replica is None:
            return [self._begin(reader)]
        if replica.is_ready:
            return [Refer(reader.ticket, replica.process_id, keep=False)]
        self._waiting.setdefault(machine_id, {})[reader.ticket] = reader
        self._machine_of[reader.ticket] = machine_id
        return []

    def move(self, reader: Reader) -> list[PublicationInstruction]:
        """A replica cannot go on where it copies from; its part stays, and so do those that copy from it."""
        replica = self._replicas.get(reader.machine_id)
        if replica is None or replica.process_id != reader.process_id or replica.is_ready:
            return self.ask(reader)
        return [self._send(reader, replica)]

    def withdraw(self, ticket: int) -> None:
        """A reader does not wait any more."""
        machine_id = self._machine_of.pop(ticket, None)
        if machine_id is None:
            return
        readers = self._waiting[machine_id]
        del readers[ticket]
        if not readers:
            del self._waiting[machine_id]

    def kept(self, process_id: str) -> list[PublicationInstruction] | None:
        """A replica has all of it; None if it is none (any more)."""
        replica = self._replica(process_id)
        if replica is None:
            return None
        replica.is_ready = True
        self._detach(replica)
        readers = list(self._waiting.get(self._machines[process_id], ()))
        for ticket in readers:
            self.withdraw(ticket)
        return [Refer(ticket, process_id, keep=False) for ticket in readers]

    def lost(self, process_id: str) -> list[PublicationInstruction]:
        """A process is gone, gave up, or does not have it: the first of its machine that waits is the next replica."""
        machine_id = self._machines.pop(process_id, None)
        if machine_id is None:
            return []
        self._detach(self._replicas.pop(machine_id))
        reader = next(iter(self._waiting.get(machine_id, {}).values()), None)
        if reader is None:
            return []
        self.withdraw(reader.ticket)
        return [self._begin(reader)]

    def copies_from(self, process_id: str, source_id: str) -> bool:
        """Whether a replica was sent to that process as it is now, not to one that it was before."""
        replica, source = self._replica(process_id), self._replica(source_id)
        return replica is not None and source is not None and replica.copies_from is source

    def slow(self, process_id: str, reader_id: str = "") -> None:
        """Nobody else is to copy from a process, which is too slow; of its own machine it stays the replica.

        A reader that says so of one after the other has a slow link itself, and the first one is no worse than others.
        """
        replica, reader = self._replica(process_id), self._replica(reader_id)
        if replica is None:
            return
        if reader is not None and reader.blames not in (None, replica):
            reader.blames.is_open = True
            return
        if reader is not None:
            reader.blames = replica
        replica.is_open = False
        self._detach(replica)

    def overdue(self, process_id: str) -> list[str] | None:
        """A process takes longer to copy than it may: give those that copy from it, which are to go on elsewhere.

        None if it is not to blame, for what it copies from has not all of it either.
        """
        replica = self._replica(process_id)
        if replica is None or replica.is_ready:
            return []
        if replica.copies_from is not None and not replica.copies_from.is_ready:
            return None
        self.slow(process_id)
        return [each.process_id for each in self._replicas.values() if each.copies_from is replica]

    def is_copying(self, process_id: str) -> bool:
        """Whether a process is to be the replica of its machine, and has not said that it is."""
        replica = self._replica(process_id)
        return replica is not None and not replica.is_ready

    @property
    def is_busy(self) -> bool:
        """Whether any machine copies it."""
        return not all(replica.is_ready for replica in self._replicas.values())

    def replicas(self) -> list[str]:
        """The replicas that have it, or are to."""
        return list(self._machines)

    def ready(self) -> list[str]:
        """The replicas that have it."""
        return [replica.process_id for replica in self._replicas.values() if replica.is_ready]

    def _replica(self, process_id: str) -> _Source | None:
        machine_id = self._machines.get(process_id)
        return None if machine_id is None else self._replicas[machine_id]

    def _begin(self, reader: Reader) -> Refer:
        self._num_begun += 1
        replica = _Source(reader.process_id, self._num_begun, 0)
        refer = self._send(reader, replica)
        self._replicas[reader.machine_id] = replica
        self._machines[reader.process_id] = reader.machine_id
        return refer

    def _send(self, reader: Reader, replica: _Source) -> Refer:
        self._detach(replica)
        source = self._best_for(replica)
        replica.copies_from, replica.depth = source, source.depth + 1
        source.copies += 1
        return Refer(reader.ticket, source.process_id, keep=True)

    def _best_for(self, replica: _Source) -> _Source:
        """Where a replica has the last piece first. Who copies from it, directly or not, has a larger number."""
        best, least = self._publisher, self._publisher.delay(self._num_pieces)
        for source in self._replicas.values():
            if source.is_open and (source.is_ready or source.number < replica.number):
                delay = source.delay(self._num_pieces)
                if delay < least:
                    best, least = source, delay
        return best

    def _detach(self, replica: _Source) -> None:
        if replica.copies_from is not None:
            replica.copies_from.copies -= 1
            replica.copies_from = None
