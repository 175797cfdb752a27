"""What this process keeps of other machines' objects for the other processes of its machine."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial

from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply, Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.replication.publisher import give
from rlinf_scheduler.comm.replication.records import AnswerKind, Copy, Drop, Kept, Key, ReaderAnswer
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.shm.payloads import WAIT_S
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.errors import SharedMemoryUnreadable

logger = Reporter(__name__)


class Replicas:
    """Objects of publishers elsewhere, each written into this process's shared memory once.

    They are kept until their publisher releases them or is gone. All but the copying, which one thread does, is on
    the I/O thread.

    Args:
        messenger: this process's messenger.
        service: as of the publishers.
        private: whoever reads an object may write to what it has read, unseen by all others.

    Attributes:
        service: see above.
    """

    def __init__(self, messenger: Messenger, service: str, *, private: bool) -> None:
        self._messenger = messenger
        self.service = service
        self._private = private
        self._kept: dict[tuple[str, Key], Payload] = {}
        self._to_write: deque[Callable[[], None]] = deque()
        self._is_writing = False
        messenger.serve(f"{service}.copy", self._on_copy, Copy)
        messenger.serve(f"{service}.drop", self._on_drop, Drop)
        messenger.on_peer_lost(self._on_peer_lost)

    def keep(
        self, publisher: Endpoint, key: Key, frames: list[Buffer], then: Callable[[ReceivedPayload], None]
    ) -> None:
        """Keep what came from another machine.

        Args:
            publisher: whose it is.
            key: which object.
            frames: its bytes.
            then: called on the I/O thread with the object, for this process's own use; not before it is written, for
                whoever has it may change it.
        """

        def write() -> None:
            written: Payload | Exception
            try:
                written = self._write(frames)
            except Exception as error:  # noqa: BLE001 - then there is no replica, and whoever waits for it goes on
                written = error
            self._messenger.submit(partial(self._on_written, publisher, key, frames, written, then))

        self._to_write.append(write)
        self._begin_to_write()

    def give_up(self, publisher: Endpoint, key: Key) -> None:
        """Say that this process, which was to keep an object, does not get it."""
        self._messenger.request(publisher, f"{self.service}.kept", Kept(key, None), reply_type=bool)

    def _begin_to_write(self) -> None:
        if self._to_write and not self._is_writing:
            self._is_writing = True
            self._messenger.run_beside(self._write_all)

    def _write_all(self) -> None:
        while self._to_write:
            self._to_write.popleft()()
        self._messenger.submit(self._have_written)

    def _have_written(self) -> None:
        self._is_writing = False
        self._begin_to_write()

    def _write(self, frames: list[Buffer]) -> Payload:
        encoded = Encoded(bytes(frames[0]), frames[1:])
        return self._messenger.payloads.pack(
            encoded, None, snapshot=self._private, wait_s=WAIT_S, shared=self._private
        )

    def _on_written(
        self,
        publisher: Endpoint,
        key: Key,
        frames: list[Buffer],
        written: Payload | Exception,
        then: Callable[[ReceivedPayload], None],
    ) -> None:
        arrived, at = ReceivedPayload(frames), None
        if isinstance(written, Payload):
            self._kept[publisher.process_id, key] = written
            at = self._messenger.endpoint
            if written.in_shared_memory:
                # What came as bytes can go; where it cannot be mapped here, it stays this process's own copy.
                with contextlib.suppress(SharedMemoryUnreadable):
                    arrived = self._messenger.payloads.receive(written.frames_for(at))
        else:
            size_bytes = arrived.size_bytes
            logger.warning("%d bytes are not kept for others of this machine: %r", size_bytes, written)

        def answered(answer: Promise[Reply]) -> None:
            if answer.cancelled() or answer.exception() is not None or not answer.result().head:
                self._kept.pop((publisher.process_id, key), None)

        kept = self._messenger.request(publisher, f"{self.service}.kept", Kept(key, at), reply_type=bool)
        kept.add_done_callback(answered)
        then(arrived)

    def _on_copy(self, request: Request) -> None:
        asked: Copy = request.head
        if asked.want.unreadable:
            self._messenger.payloads.distrust(request.peer_id, asked.want.unreadable)

        def answer() -> None:
            payload = self._kept.get((asked.publisher_id, asked.key))
            if payload is None:
                request.reply(ReaderAnswer(AnswerKind.GONE, asked.key))
            else:
                give(request, ReaderAnswer(AnswerKind.HERE, asked.key), payload, asked.want.reader)

        self._messenger.payloads.when_ready(asked.want.reader, answer)

    def _on_drop(self, notice: Request) -> None:
        self._kept.pop((notice.peer_id, notice.head.key), None)

    def _on_peer_lost(self, process_id: str) -> None:
        for publisher_id, key in list(self._kept):
            if publisher_id == process_id:
                del self._kept[publisher_id, key]
