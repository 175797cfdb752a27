"""What this process keeps of other machines' objects for the other processes of its machine, and for other machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply, Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.replication.pieces import Copying, ObjectPieces
from rlinf_scheduler.comm.replication.publisher import give
from rlinf_scheduler.comm.replication.records import AnswerKind, Copy, Drop, Kept, Key, ReaderAnswer, Want
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.shm.payloads import WAIT_S
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.errors import SharedMemoryUnreadable

logger = Reporter(__name__)

# Of what has changed, and of the object before, to the place of the new one.
Apply: TypeAlias = Callable[[Sequence[Buffer], Sequence[Buffer], Sequence[Buffer]], None]


class Replicas:
    """Objects of publishers elsewhere, each received into this process's shared memory once.

    They are kept until their publisher releases them or is gone. All but waiting for room, which a thread does, is on
    the I/O thread.

    Args:
        service: as of the publishers.
        private: whoever reads an object may write to what it has read, unseen by all others.
        apply: writes an object, of what has changed and the object before; see `DeltaReading`.
    """

    def __init__(
        self, messenger: Messenger, service: str, *, private: bool, apply: Apply | None = None
    ) -> None:
        self._messenger = messenger
        self.service = service
        self.apply = apply
        self._private = private
        self._pieces = ObjectPieces(messenger)
        self._copying: dict[tuple[str, Key], Copying] = {}
        messenger.serve(f"{service}.copy", self._on_copy, Copy)
        messenger.serve(f"{service}.drop", self._on_drop, Drop)
        messenger.on_peer_lost(self._on_peer_lost)

    # -- what comes from other machines ----------------------------------------------------------

    def begin(
        self,
        publisher: Endpoint,
        answer: ReaderAnswer,
        on_end: Callable[[Want | None], None],
        then: Callable[[Copying | None], None],
    ) -> None:
        """Make room for an object; `then` is called with what copies it, which has not begun, or None without room."""

        def reserved(payload: Payload | None) -> None:
            if payload is None:
                then(None)
                return
            self._forget(at)
            held = self._pieces.hold(*at, payload, is_whole=False)
            copying = self._copying[at] = Copying(self._messenger, self._pieces, *at, held, on_end)
            then(copying)

        at = (publisher.process_id, answer.key)
        # Where the object before takes the room that there is, waiting does not help.
        self._reserve(answer.sizes, reserved, waits=answer.base is None)

    def _reserve(self, sizes: Sequence[int], then: Callable[[Payload | None], None], *, waits: bool) -> None:
        reserved = self._room_for(sizes, 0.0)
        in_place = reserved is None or reserved.in_shared_memory or self._messenger.payloads.arena is None
        if in_place or not waits:
            then(reserved)
        else:
            self._messenger.run_beside(
                lambda: self._messenger.submit(partial(then, self._room_for(sizes, WAIT_S)))
            )

    def _room_for(self, sizes: Sequence[int], wait_s: float) -> Payload | None:
        try:
            return self._messenger.payloads.reserve(sizes, shared=self._private, wait_s=wait_s)
        except Exception as error:  # noqa: BLE001 - then there is no replica, and its reader gets the bytes
            logger.warning("%d bytes are not kept for others of this machine: %r", sum(sizes), error)
            return None

    def held(self, publisher: Endpoint, key: Key) -> ReceivedPayload | None:
        """Return an object that this process keeps; None if it does not."""
        held = self._pieces.held.get((publisher.process_id, key))
        if held is None or held.filled < len(held.row):
            return None
        return ReceivedPayload(held.payload.bytes_frames())

    def is_copying(self, publisher: Endpoint, copying: Copying) -> bool:
        """Whether a copy may go on."""
        return self._copying.get((publisher.process_id, copying.key)) is copying

    def keep(self, publisher: Endpoint, copying: Copying, then: Callable[[ReceivedPayload], None]) -> None:
        """Keep what has come as a whole; `then` is called with it, for this process's own use."""
        at = (publisher.process_id, copying.key)
        del self._copying[at]

        def answered(answer: Promise[Reply]) -> None:
            if answer.cancelled() or answer.exception() is not None or not answer.result().head:
                self._pieces.drop(*at)

        message = Kept(copying.key, self._messenger.endpoint)
        kept = self._messenger.request(publisher, f"{self.service}.kept", message, reply_type=bool)
        kept.add_done_callback(answered)
        self._load(copying.held.payload, then)

    def _load(self, payload: Payload, then: Callable[[ReceivedPayload], None]) -> None:
        frames = payload.frames_for(self._messenger.endpoint)
        try:
            arrived = self._messenger.payloads.receive(frames)
        except SharedMemoryUnreadable:
            arrived = ReceivedPayload(payload.bytes_frames())
        if arrived.block is None and self._private:
            self._messenger.run_beside(lambda: self._messenger.submit(partial(then, arrived.copied())))
        else:
            then(arrived)

    def give_up(self, publisher: Endpoint, key: Key) -> None:
        """Say that this process, which was to keep an object, does not get it."""
        copying = self._copying.pop((publisher.process_id, key), None)
        if copying is not None:
            copying.stop()
        self._pieces.drop(publisher.process_id, key)
        self._messenger.request(publisher, f"{self.service}.kept", Kept(key, None), reply_type=bool)

    # -- what is asked for -----------------------------------------------------------------------

    def _on_copy(self, request: Request) -> None:
        asked: Copy = request.head
        if asked.end:
            self._pieces.answer(request)
            return
        if asked.want.unreadable:
            self._messenger.payloads.distrust(request.peer_id, asked.want.unreadable)

        def answer() -> None:
            held = self._pieces.held.get((asked.publisher_id, asked.key))
            if held is None or held.filled < len(held.row):
                request.reply(ReaderAnswer(AnswerKind.GONE, asked.key))
            else:
                give(request, ReaderAnswer(AnswerKind.HERE, asked.key), held.payload, asked.want.reader)

        self._messenger.payloads.when_ready(asked.want.reader, answer)

    def _on_drop(self, notice: Request) -> None:
        told: Drop = notice.head
        at = (notice.peer_id, told.key)
        if not told.avoid:
            self._forget(at)
        elif at in self._copying:
            self._copying[at].move_from(told.avoid)

    def _on_peer_lost(self, process_id: str) -> None:
        for at in list(self._pieces.held):
            if at[0] == process_id:
                self._forget(at)

    def _forget(self, at: tuple[str, Key]) -> None:
        copying = self._copying.pop(at, None)
        self._pieces.drop(*at)
        if copying is not None:
            copying.fail(is_dropped=True)
