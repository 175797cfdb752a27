"""The process in which an object is: it gives it to its machine and to some others, which give it to the rest."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.replication.publication import Give, Publication, PublicationInstruction, Reader
from rlinf_scheduler.comm.replication.records import AnswerKind, Drop, Kept, Key, ReaderAnswer, Want
from rlinf_scheduler.comm.shm.payloads import SHARED_BYTES
from rlinf_scheduler.comm.shm.sent_payload import Payload

# A machine that has not copied after so long makes room for another: it may have stopped.
SLOW_S, SLOW_BYTES_PER_S = 2.0, 100 << 20


class _OpenQuestion(NamedTuple):
    """A reader's question that is not answered."""

    request: Request
    want: Want
    gone: Callable[[], None]


@dataclass(slots=True, eq=False)
class _Published:
    """One object, and who asks for it."""

    key: Key
    payload: Payload
    publication: Publication
    replicated_bytes: int
    questions: dict[int, _OpenQuestion] = field(default_factory=dict)
    replicas: dict[str, Endpoint] = field(default_factory=dict)


class Publisher:
    """Holds the objects that others read here. Everything is on the I/O thread.

    Args:
        messenger: this process's messenger.
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
        self._next_ticket = itertools.count().__next__
        messenger.serve(f"{service}.kept", self._on_kept, Kept)
        messenger.on_peer_lost(self._on_peer_lost)

    def publish(self, key: Key, payload: Payload, *, replicated: bool) -> None:
        """Let readers ask for an object until `release`; small ones are not worth a replica."""
        replicated = replicated and payload.size_bytes >= SHARED_BYTES
        if replicated and self._replicated_bytes and self._limit_bytes is not None:
            replicated = self._replicated_bytes + payload.size_bytes <= self._limit_bytes
        size_bytes = payload.size_bytes if replicated else 0
        publication = Publication(self._messenger.endpoint.machine_id, replicated=replicated)
        self._published[key] = published = _Published(key, payload, publication, size_bytes)
        if replicated:
            self._replicated[key] = published
        self._replicated_bytes += size_bytes

    def release(self, key: Key) -> None:
        """Forget an object, here and in its replicas. Who reads it already goes on; who waits for it hears of it."""
        published = self._published.pop(key, None)
        self._replicated.pop(key, None)
        if published is None:
            return
        self._replicated_bytes -= published.replicated_bytes
        for process_id in published.publication.ready():
            self._messenger.notify(published.replicas[process_id], f"{self._service}.drop", Drop(key))
        for question in published.questions.values():
            question.gone()

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
        question = _OpenQuestion(request, want, gone)
        self._messenger.payloads.when_ready(want.reader, lambda: self._answer(key, question))

    def _answer(self, key: Key, question: _OpenQuestion) -> None:
        published = self._published.get(key)
        if question.request.is_cancelled:
            return
        if published is None:
            question.gone()
            return
        if question.want.avoid and question.want.avoid_number == key.number:
            self._avoid(published, question.want)
        ticket = self._next_ticket()
        published.questions[ticket] = question
        reader = Reader(ticket, question.want.reader.process_id, question.want.reader.machine_id)
        self._follow(published, published.publication.ask(reader))
        if ticket not in published.questions:
            return
        if question.want.heard == key.number:
            question.request.on_cancel(lambda: self._withdraw(published, ticket))
        else:
            # Whoever waits knows what it waits for, and can say so at its deadline.
            self._withdraw(published, ticket)
            question.request.reply(ReaderAnswer(AnswerKind.WAIT, key))

    def _follow(self, published: _Published, instructions: list[PublicationInstruction]) -> None:
        for instruction in instructions:
            question = published.questions.pop(instruction.ticket)
            if isinstance(instruction, Give):
                self._give(published, question, keep=instruction.keep)
            else:
                at = published.replicas[instruction.process_id]
                self._refer(published, question, at, keep=instruction.keep)

    def _give(self, published: _Published, question: _OpenQuestion, *, keep: bool) -> None:
        on_confirmed = partial(self._on_confirmed, published, question, keep)
        answer = ReaderAnswer(AnswerKind.KEEP if keep else AnswerKind.HERE, published.key)
        if not give(question.request, answer, published.payload, question.want.reader, on_confirmed):
            on_confirmed(False)

    def _refer(self, published: _Published, question: _OpenQuestion, at: Endpoint, *, keep: bool) -> None:
        size_bytes = published.payload.size_bytes
        if not keep:
            question.request.reply(ReaderAnswer(AnswerKind.AT, published.key, at, size_bytes))
            return
        on_confirmed = partial(self._on_confirmed, published, question, keep)
        if not question.request.reply(
            ReaderAnswer(AnswerKind.FROM, published.key, at, size_bytes), on_confirmed=on_confirmed
        ):
            on_confirmed(False)

    def _on_confirmed(self, published: _Published, question: _OpenQuestion, keep: bool, taken: bool) -> None:
        if not keep:
            return
        process_id = question.want.reader.process_id
        if not taken:
            self._lose_copying(published, process_id)
            return
        # From now on it can stop without anybody's notice, and would keep others from copying.
        overdue = partial(self._overdue, published.key, process_id)
        self._messenger.call_later(SLOW_S + published.payload.size_bytes / SLOW_BYTES_PER_S, overdue)

    def _overdue(self, key: Key, process_id: str) -> None:
        # By its key: what is released meanwhile gives its memory back.
        published = self._published.get(key)
        if published is not None:
            self._follow(published, published.publication.overdue(process_id))

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
            published.replicas[request.peer_id] = kept.at
            instructions = published.publication.kept(request.peer_id)
            request.reply(instructions is not None)
            if instructions is None:
                del published.replicas[request.peer_id]
            self._follow(published, instructions or [])

    def _avoid(self, published: _Published, want: Want) -> None:
        """A reader could not get it from that replica; so it is none itself, if it was to copy from there."""
        if want.was_late and want.was_to_keep:
            self._follow(published, published.publication.spare(want.avoid))
        else:
            replica = published.replicas.get(want.avoid)
            if replica is not None:
                self._messenger.notify(replica, f"{self._service}.drop", Drop(published.key))
            self._lose(published, want.avoid)
        if want.was_to_keep:
            self._lose_copying(published, want.reader.process_id)

    def _lose_copying(self, published: _Published, process_id: str) -> None:
        # Another of its questions may have made it a replica that has the object.
        if published.publication.is_copying(process_id):
            self._lose(published, process_id)

    def _lose(self, published: _Published, process_id: str) -> None:
        published.replicas.pop(process_id, None)
        self._follow(published, published.publication.lost(process_id))

    def _on_peer_lost(self, process_id: str) -> None:
        for published in list(self._replicated.values()):
            self._lose(published, process_id)


def give(
    request: Request,
    answer: ReaderAnswer,
    payload: Payload,
    reader: Endpoint,
    then: Callable[[bool], None] | None = None,
) -> bool:
    """Answer with the payload, which stays until the reader has it; False if nobody waits any more."""

    def on_confirmed(taken: bool, _payload: Payload = payload) -> None:
        """Refers to the payload until the reader has locked its block, or never will."""
        if then is not None:
            then(taken)

    return request.reply(answer, payload.frames_for(reader), snapshot=False, on_confirmed=on_confirmed)
