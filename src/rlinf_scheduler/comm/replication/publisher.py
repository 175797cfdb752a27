"""The process in which an object is: it gives it to its machine, and says from whom other machines get it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.replication.deltas import (
    DELTA,
    NO_BASE,
    TOO_LONG,
    Delta,
    MachineCopies,
    OpenQuestion,
    Pays,
    delta_of,
)
from rlinf_scheduler.comm.replication.pieces import MIN_PIECE_BYTES, ObjectPieces, piece_bytes
from rlinf_scheduler.comm.replication.publication import Give, Publication, PublicationInstruction, Reader
from rlinf_scheduler.comm.replication.records import (
    AnswerKind,
    Base,
    Copy,
    Drop,
    Kept,
    Key,
    ReaderAnswer,
    Want,
)
from rlinf_scheduler.comm.shm.payloads import SHARED_BYTES
from rlinf_scheduler.comm.shm.sent_payload import Payload

# A machine that has not copied after so long, while all is there where it copies from, holds up those behind it: it
# is so much slower than the quickest, or than this as long as no machine has copied anything.
SLOW_S, TIMES_SLOWER, SLOW_BYTES_PER_S = 2.0, 4, 25 << 20
# What is replaced stays so long for those that copy it, and as long as they ask for pieces of it.
COPY_TIMEOUT_S, COPY_BYTES_PER_S = 10.0, 10 << 20


@dataclass(slots=True, eq=False)
class _Published:
    """One object, and who asks for it; once released it stays for those that have begun to copy it."""

    key: Key
    payload: Payload
    publication: Publication
    replicated_bytes: int
    is_released: bool = False
    num_slow: int = 0
    questions: dict[int, OpenQuestion] = field(default_factory=dict)
    delta: Delta | None = None
    replicas: dict[str, Endpoint] = field(default_factory=dict)
    begun: dict[str, float] = field(default_factory=dict)


class Publisher:
    """Holds the objects that others read here. Everything is on the I/O thread.

    Args:
        service: what the services of these objects begin with.
        limit_bytes: so many bytes, or one larger object, are replicated at a time; what exceeds it, every reader gets
            from here. None: no limit.
    """

    def __init__(self, messenger: Messenger, service: str, *, limit_bytes: int | None = None) -> None:
        self._messenger = messenger
        self._service = service
        self._limit_bytes = limit_bytes
        self._replicated_bytes = 0
        self._published: dict[Key, _Published] = {}
        # Of these, those that others may have replicas of.
        self._replicated: dict[Key, _Published] = {}
        self._pieces = ObjectPieces(messenger)
        self._slow_bytes_per_s = 0.0
        self._next_ticket = itertools.count().__next__
        self._pays = Pays()
        self.copies: dict[str, MachineCopies] = {}
        messenger.serve(f"{service}.kept", self._on_kept, Kept)
        messenger.serve(f"{service}.piece", self._pieces.answer, Copy)
        messenger.serve(f"{service}.delta", self._on_delta, Copy)
        messenger.on_peer_lost(self._on_peer_lost)

    def publish(self, key: Key, payload: Payload, *, replicated: bool) -> None:
        """Let readers ask for an object until `release`; small ones are not worth a replica."""
        replicated = replicated and payload.size_bytes >= SHARED_BYTES
        if replicated and self._replicated_bytes and self._limit_bytes is not None:
            replicated = self._replicated_bytes + payload.size_bytes <= self._limit_bytes
        size_bytes = payload.size_bytes if replicated else 0
        num_pieces = -(-size_bytes // piece_bytes(size_bytes))
        here = self._messenger.endpoint.machine_id
        publication = Publication(here, replicated=replicated, num_pieces=num_pieces)
        self._forget(key)  # one that is released may be there yet
        self._published[key] = published = _Published(key, payload, publication, size_bytes)
        if replicated:
            self._replicated[key] = published
        self._replicated_bytes += size_bytes

    def release(self, key: Key) -> None:
        """Forget an object, here and in its replicas. Who reads it already goes on; who waits for it hears of it."""
        published = self._published.get(key)
        if published is None or published.is_released:
            return
        published.is_released = True
        questions, published.questions = published.questions, {}
        for ticket in questions:
            published.publication.withdraw(ticket)
        waiting = [] if published.delta is None else published.delta.waiting
        self._forget_unless_copied(published)
        if key in self._published:
            limit_s = COPY_TIMEOUT_S + published.payload.size_bytes / COPY_BYTES_PER_S
            self._messenger.call_later(limit_s, partial(self._forget_unless_asked, key, self._num_asked(key)))
        for question in (*questions.values(), *waiting):
            question.gone()

    def _num_asked(self, key: Key) -> int:
        here, held = self._messenger.endpoint.process_id, self._pieces.held
        those = [held.get((here, each)) for each in (key, delta_of(key))]
        return sum(each.num_asked for each in those if each is not None)

    def _forget_unless_asked(self, key: Key, before: int) -> None:
        """Forget an object of which no piece has been asked for here for a while: who copies it has stopped."""
        published = self._published.get(key)
        if published is None or not published.is_released:
            return
        if (num_asked := self._num_asked(key)) > before:
            self._messenger.call_later(COPY_TIMEOUT_S, partial(self._forget_unless_asked, key, num_asked))
        else:
            self._forget(key)

    def _forget_unless_copied(self, published: _Published) -> None:
        if published.is_released and not published.publication.is_busy:
            self._forget(published.key)

    def _forget(self, key: Key) -> None:
        published = self._published.pop(key, None)
        self._replicated.pop(key, None)
        if published is None:
            return
        self._replicated_bytes -= published.replicated_bytes
        self._pieces.drop(self._messenger.endpoint.process_id, key)
        for process_id in published.publication.replicas():
            if not self._is_base(key, process_id):
                self._drop(published, process_id)
        self._end_delta(published)
        self.release(delta_of(key))

    def _drop(self, published: _Published, process_id: str) -> None:
        replica = published.replicas.pop(process_id, None)
        if replica is not None:
            self._messenger.notify(replica, f"{self._service}.drop", Drop(published.key))

    def answer(self, request: Request, key: Key, want: Want, gone: Callable[[], None]) -> None:
        """Answer a reader's question, now or when its machine has a replica.

        Args:
            request: the question.
            key: what it asks for.
            want: what it says of itself.
            gone: called instead of an answer if the object is not here, or not any more.
        """
        if want.unreadable:
            self._messenger.payloads.distrust(request.peer_id, want.unreadable)
        question = OpenQuestion(request, want, gone)
        self._messenger.payloads.when_ready(want.reader, lambda: self._answer(key, question))

    def _answer(self, key: Key, question: OpenQuestion) -> None:
        published, want = self._published.get(key), question.want
        if question.request.is_cancelled:
            return
        if published is None or published.is_released:
            question.gone()
            return
        delta = published.delta
        if delta is not None and want.refused:
            if want.reader.process_id in delta.given:  # it says so with every question from now on
                delta.given.discard(want.reader.process_id)
                published.begun.pop(want.reader.process_id, None)
                self._count(published.key, want.refused)
                self._drop_base(key, delta, want.reader.machine_id)
        elif delta is not None and delta.waits(want):
            delta.waiting.append(question)
            return
        was_here = want.avoid_number == key.number
        if was_here and want.avoid:
            self._avoid(published, want)
        ticket = self._next_ticket()
        published.questions[ticket] = question
        reader = Reader(ticket, want.reader.process_id, want.reader.machine_id)
        moves = was_here and want.was_to_keep
        publication = published.publication
        if want.alone:
            self._follow(published, [Give(ticket)])
        else:
            self._follow(published, publication.move(reader) if moves else publication.ask(reader))
        if ticket not in published.questions:
            return
        if want.heard == key.number:
            question.request.on_cancel(lambda: self._withdraw(published, ticket))
        else:
            # Whoever waits knows what it waits for, and can say so at its deadline.
            self._withdraw(published, ticket)
            question.request.reply(ReaderAnswer(AnswerKind.WAIT, key))

    def _follow(self, published: _Published, instructions: list[PublicationInstruction]) -> None:
        for instruction in instructions:
            question = published.questions.pop(instruction.ticket)
            if isinstance(instruction, Give):
                answer = ReaderAnswer(AnswerKind.HERE, published.key)
                give(question.request, answer, published.payload, question.want.reader)
            elif instruction.keep:
                self._send_to(published, question, instruction.process_id)
            else:
                at, size_bytes = published.replicas[instruction.process_id], published.payload.size_bytes
                question.request.reply(ReaderAnswer(AnswerKind.AT, published.key, at, size_bytes))

    def _send_to(self, published: _Published, question: OpenQuestion, process_id: str) -> None:
        """Let a reader copy it from a process, for its machine."""
        key, reader = published.key, question.want.reader
        published.replicas[reader.process_id] = reader
        published.begun.setdefault(reader.process_id, self._messenger.now())
        here = self._messenger.endpoint
        of_here = self._pieces.hold(here.process_id, key, published.payload, is_whole=True)
        at = published.replicas[process_id] if process_id else here
        begins_here = not process_id and not question.want.was_to_keep
        first: list[Buffer] = (
            [*of_here.row.stretch(0, min(MIN_PIECE_BYTES, of_here.filled))] if begins_here else []
        )
        base = self._base_for(published, question.want)
        if base is not None:
            delta = self._published[delta_of(key)].payload
            first = delta.bytes_frames() if delta.size_bytes <= MIN_PIECE_BYTES else []
        answer = ReaderAnswer(AnswerKind.FROM, key, at, sizes=tuple(published.payload.sizes), base=base)
        on_confirmed = partial(self._on_confirmed, published, reader.process_id)
        if not question.request.reply(answer, first, snapshot=False, on_confirmed=on_confirmed):
            on_confirmed(False)

    def _on_confirmed(self, published: _Published, process_id: str, taken: bool) -> None:
        if taken:
            self._look_later(published, process_id)
        else:
            self._lose_copying(published, process_id)

    def _look_later(self, published: _Published, process_id: str) -> None:
        # From now on it can stop without anybody's notice, and would hold up others. By its key: what is released
        # meanwhile gives its memory back.
        look = partial(self._look, published.key, process_id)
        limit_s = SLOW_S + published.payload.size_bytes / (self._slow_bytes_per_s or SLOW_BYTES_PER_S)
        # Longer each time: if all are slow, nobody is to blame.
        self._messenger.call_later(limit_s * 2**published.num_slow, look)

    def _look(self, key: Key, process_id: str) -> None:
        published = self._published.get(key)
        if published is None:
            return
        behind_it = published.publication.overdue(process_id)
        if behind_it is None:
            self._look_later(published, process_id)
        if behind_it:
            published.num_slow += 1
        for each in behind_it or ():
            self._messenger.notify(published.replicas[each], f"{self._service}.drop", Drop(key, process_id))

    def _withdraw(self, published: _Published, ticket: int) -> None:
        published.questions.pop(ticket, None)
        published.publication.withdraw(ticket)

    # -- replicas --------------------------------------------------------------------------------

    def _on_kept(self, request: Request) -> None:
        kept: Kept = request.head
        published = self._published.get(kept.key)
        if published is None:
            request.reply(False)
        elif kept.at is None:
            request.reply(False)
            self._lose_copying(published, request.peer_id)
        else:
            instructions = published.publication.kept(request.peer_id)
            began = published.begun.pop(request.peer_id, None)
            if instructions is not None and began is not None:
                took_s = self._messenger.now() - began
                self._note_copied(published, kept.at.machine_id, request.peer_id, took_s)
            request.reply(instructions is not None)
            self._follow(published, instructions or [])
            self._forget_unless_copied(published)

    def _note_copied(self, published: _Published, machine_id: str, process_id: str, took_s: float) -> None:
        delta, size_bytes = published.delta, published.payload.size_bytes
        if delta is not None:
            self._drop_base(published.key, delta, machine_id)
        if delta is not None and process_id in delta.given:
            self._count(published.key, DELTA)
            self._pays.made(delta, machine_id, size_bytes, took_s)
            return
        self._pays.copied(machine_id, size_bytes, took_s)
        self._slow_bytes_per_s = max(self._slow_bytes_per_s, size_bytes / max(took_s, 1e-6) / TIMES_SLOWER)

    # -- what has changed since the object before ------------------------------------------------

    def expect_delta(self, key: Key, base: Key, *, forced: bool) -> int:
        """Let machines that have the object before wait for what has changed, until `offer_delta`.

        Returns how many bytes of it would pay; 0: nobody waits for any.
        """
        published, before = self._replicated.get(key), self._replicated.get(base)
        if published is None or before is None:
            return 0
        ready = [before.replicas[process_id] for process_id in before.publication.ready()]
        delta = Delta(base, {at.machine_id: at for at in ready}, forced)
        limit_bytes = self._pays.limit_bytes(delta, published.payload.size_bytes) if ready else 0
        if limit_bytes:
            published.delta = delta
        return limit_bytes

    def offer_delta(self, key: Key, new: Payload, payload: Payload | None, took_s: float) -> None:
        """Give machines what has changed in the object `new`; nothing: it would be too much."""
        published = self._published.get(key)
        delta = None if published is None else published.delta
        if published is None or published.is_released or delta is None or published.payload is not new:
            return
        if payload is None:
            self._count(key, TOO_LONG, len(delta.holders))
            self._end_delta(published)
        else:
            delta.size_bytes = self._copies_of(key).delta_bytes = payload.size_bytes
            self._pays.compared(published.payload.size_bytes, took_s)
            self.publish(delta_of(key), payload, replicated=True)
        for question in delta.waiting:
            self._answer(key, question)
        delta.waiting.clear()

    def _base_for(self, published: _Published, want: Want) -> Base | None:
        """Return of what a reader makes the object; None if it is to copy it."""
        delta, machine_id = published.delta, want.reader.machine_id
        if delta is None or want.was_to_keep or want.refused:
            return None
        at = delta.holders.get(machine_id)
        if at is None:
            self._count(published.key, NO_BASE)
            return None
        if not self._pays.pays(delta, machine_id, published.payload.size_bytes):
            self._count(published.key, TOO_LONG)
            return None
        delta.given.add(want.reader.process_id)
        return Base(delta.base, at)

    def _count(self, key: Key, how: str, number: int = 1) -> None:
        self._copies_of(key).counts[how] += number

    def _copies_of(self, key: Key) -> MachineCopies:
        return self.copies.setdefault(key.name, MachineCopies())

    def _on_delta(self, request: Request) -> None:
        asked: Copy = request.head
        key = delta_of(asked.key)

        def gone() -> None:
            request.reply(ReaderAnswer(AnswerKind.GONE, key))

        self.answer(request, key, asked.want, gone)

    def _is_base(self, key: Key, process_id: str) -> bool:
        """Whether a process keeps an object because a later one is to be made of it."""
        deltas = [each.delta for each in self._replicated.values() if each.delta is not None]
        return any(
            each.base == key and any(at.process_id == process_id for at in each.holders.values())
            for each in deltas
        )

    def _end_delta(self, published: _Published) -> None:
        delta, published.delta = published.delta, None
        if delta is not None:
            for machine_id in list(delta.holders):
                self._drop_base(published.key, delta, machine_id)

    def _drop_base(self, key: Key, delta: Delta, machine_id: str) -> None:
        """A machine does not need the object before any more, unless it can still be read."""
        at = delta.holders.pop(machine_id, None)
        if at is not None and delta.base not in self._published:
            self._messenger.notify(at, f"{self._service}.drop", Drop(delta.base))
        if not delta.holders:
            self.release(delta_of(key))

    # -- readers that do not get it --------------------------------------------------------------

    def _avoid(self, published: _Published, want: Want) -> None:
        """A reader could not get it from that replica."""
        publication = published.publication
        if want.was_to_keep and not publication.copies_from(want.reader.process_id, want.avoid):
            return
        if want.was_late and want.was_to_keep:
            publication.slow(want.avoid, want.reader.process_id)
        else:
            self._drop(published, want.avoid)
            self._lose(published, want.avoid)

    def _lose_copying(self, published: _Published, process_id: str) -> None:
        # Another of its questions may have made it a replica that has the object.
        if published.publication.is_copying(process_id):
            self._lose(published, process_id)

    def _lose(self, published: _Published, process_id: str) -> None:
        published.replicas.pop(process_id, None)
        published.begun.pop(process_id, None)
        self._follow(published, published.publication.lost(process_id))
        self._forget_unless_copied(published)

    def _on_peer_lost(self, process_id: str) -> None:
        for published in list(self._replicated.values()):
            self._lose(published, process_id)


def give(request: Request, answer: ReaderAnswer, payload: Payload, reader: Endpoint) -> bool:
    """Answer with the payload, which stays until the reader has it; False if nobody waits any more."""

    def on_confirmed(_taken: bool, _payload: Payload = payload) -> None:
        """Refers to the payload until the reader has locked its block, or never will."""

    return request.reply(answer, payload.frames_for(reader), snapshot=False, on_confirmed=on_confirmed)
