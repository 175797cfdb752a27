"""The reader's side: from a question to an object that is here, wherever it comes from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.replication.pieces import Copying
from rlinf_scheduler.comm.replication.records import AnswerKind, Copy, Key, ReaderAnswer, Want
from rlinf_scheduler.comm.replication.replicas import Replicas
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.errors import CommTimeout, SharedMemoryUnreadable

# How long the replica of this machine may take: it may have stopped, and who reads would be stopped with it. The
# slowest sockets of a machine carry ten times as much.
COPY_TIMEOUT_S, COPY_BYTES_PER_S = 10.0, 100 << 20


class Reading:
    """One object on its way here. Everything is on the I/O thread.

    So whatever lies in shared memory is locked before its owner hears that the answer was taken.

    Args:
        replicas: keeps what this process gets for its machine; its `service` is the publisher's.
        publisher: who has the object.
        ask: sends the publisher a question with this in it.
        done: called once with the object, or with why it does not come: an error of the publisher's, or its end; with
            nothing if the publisher does not have it (any more).
        heard: called when it is to be waited for, with what is there.
        unreadable: why this process could not open what it was sent before; "" if it was sent nothing.
    """

    def __init__(
        self,
        messenger: Messenger,
        replicas: Replicas,
        publisher: Endpoint,
        *,
        ask: Callable[[Want], Promise[Reply]],
        done: Callable[[Key | None, ReceivedPayload | None, BaseException | None], None],
        heard: Callable[[Key], None] | None = None,
        unreadable: str = "",
    ) -> None:
        self._messenger = messenger
        self._replicas = replicas
        self._publisher = publisher
        self._question = ask
        self._done = done
        self._heard = heard
        self._want = Want(messenger.endpoint, unreadable=unreadable)
        self._asked: Promise[Reply] | None = None
        self._copying: Copying | None = None  # for this machine, from another one
        self._over = False

    def stop(self) -> None:
        """Nobody wants it any more; `done` is not called."""
        self._over = True
        if self._asked is not None:
            self._asked.cancel()
        self._stop_copying()

    def start(self) -> None:
        """Ask the publisher, again if need be."""
        self._asked = self._question(self._want)
        self._asked.add_done_callback(self._answered)

    def _answered(self, reply: Promise[Reply]) -> None:
        if self._over or reply.cancelled():
            return
        error = reply.exception()
        if error is not None:
            self._end(error=error)
            return
        answer: ReaderAnswer = reply.result().head
        self._want.avoid = ""
        if answer.kind is AnswerKind.FROM and answer.at is not None:
            self._copy(answer, answer.at, reply.result().frames)
            return
        self._stop_copying()
        if answer.kind is AnswerKind.WAIT:
            self._want.heard = answer.key.number
            if self._heard is not None:
                self._heard(answer.key)
            if not self._over:
                self.start()
        elif answer.kind is AnswerKind.GONE:
            self._end()
        elif answer.at is not None:
            self._ask_replica(answer.at, answer.key, COPY_TIMEOUT_S + answer.size_bytes / COPY_BYTES_PER_S)
        else:
            self._receive(answer.key, reply.result().frames, self.start)

    # -- from another machine --------------------------------------------------------------------

    def _copy(self, answer: ReaderAnswer, source: Endpoint, first: list[Buffer]) -> None:
        def begin(copying: Copying | None) -> None:
            self._copying = copying
            if copying is None:
                self._replicas.give_up(self._publisher, answer.key)
                self._want.alone = True
            if self._over:
                self._stop_copying()
            elif copying is None:
                self.start()
            else:
                of_publisher = source.process_id == self._publisher.process_id
                copying.begin(
                    source, f"{self._replicas.service}.{'piece' if of_publisher else 'copy'}", first
                )

        before = self._copying
        if before and before.key == answer.key and self._replicas.is_copying(self._publisher, before):
            begin(before)
        else:
            self._stop_copying()
            self._replicas.begin(self._publisher, answer, partial(self._copied, answer.key), begin)

    def _copied(self, key: Key, want: Want | None) -> None:
        copying = self._copying
        if self._over or copying is None:
            return
        if want is None:
            self._copying = None
            self._replicas.keep(self._publisher, copying, lambda arrived: self._end(key, arrived))
        else:
            self._want = want
            self.start()

    def _stop_copying(self) -> None:
        copying, self._copying = self._copying, None
        if copying is not None and self._replicas.is_copying(self._publisher, copying):
            self._replicas.give_up(self._publisher, copying.key)

    # -- from this machine -----------------------------------------------------------------------

    def _ask_replica(self, replica: Endpoint, key: Key, timeout_s: float) -> None:
        head = Copy(self._publisher.process_id, key, self._want)
        self._asked = self._messenger.request(
            replica, f"{self._replicas.service}.copy", head, timeout_s=timeout_s, reply_type=ReaderAnswer
        )
        self._asked.add_done_callback(partial(self._replica_answered, replica, key, timeout_s))

    def _replica_answered(self, replica: Endpoint, key: Key, timeout_s: float, reply: Promise[Reply]) -> None:
        if self._over or reply.cancelled():
            return
        error = reply.exception()
        if error is not None or reply.result().head.kind is AnswerKind.GONE:
            self._want = Want(
                self._messenger.endpoint,
                avoid=replica.process_id,
                avoid_number=key.number,
                was_late=isinstance(error, CommTimeout),
            )
            self.start()
        else:
            self._receive(key, reply.result().frames, lambda: self._ask_replica(replica, key, timeout_s))

    def _receive(self, key: Key, frames: list[Buffer], ask_again: Callable[[], None]) -> None:
        try:
            arrived = self._messenger.payloads.receive(frames)
        except SharedMemoryUnreadable as error:
            if self._want.unreadable:
                self._end(error=error)
            else:
                # Whoever sent it sends bytes for now.
                self._want.unreadable = error.reason
                ask_again()
            return
        self._end(key, arrived)

    def _end(
        self,
        key: Key | None = None,
        arrived: ReceivedPayload | None = None,
        error: BaseException | None = None,
    ) -> None:
        if not self._over:
            self._over = True
            self._stop_copying()
            self._done(key, arrived, error)
