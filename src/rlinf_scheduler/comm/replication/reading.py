"""The reader's side: from a question to an object that is here, wherever it comes from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.replication.pieces import Copying
from rlinf_scheduler.comm.replication.records import (
    AnswerKind,
    Base,
    CarriedBy,
    Copy,
    Key,
    ReaderAnswer,
    Want,
)
from rlinf_scheduler.comm.replication.replicas import Replicas
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.shm.payloads import SHARED_BYTES
from rlinf_scheduler.errors import CommTimeout, SharedMemoryUnreadable

logger = Reporter(__name__)

# How long the replica of this machine may take: it may have stopped, and who reads would be stopped with it. The
# slowest sockets of a machine carry ten times as much.
COPY_TIMEOUT_S, COPY_BYTES_PER_S = 10.0, 100 << 20
NO_ROOM = "there is no room beside the version before"


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

    Attributes:
        carrier: how the object has come, once it has.
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
        self._making: DeltaReading | None = None  # that, of the object before
        self._over = False
        self.carrier = CarriedBy("shared memory")

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
            elif answer.base is not None:
                self._make(copying, answer.base, first)
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
            self.carrier = copying.carrier
            self._replicas.keep(self._publisher, copying, lambda arrived: self._end(key, arrived))
        else:
            self._want = want
            self.start()

    def _make(self, copying: Copying, base: Base, delta: list[Buffer]) -> None:
        payloads = self._messenger.payloads
        if payloads.arena is not None and not copying.held.payload.in_shared_memory:
            self._stop_copying()
            self._want.refused = NO_ROOM
            self.start()
            return
        made = partial(self._made, copying)
        self._making = DeltaReading(self._messenger, self._replicas, self._publisher, copying, base, made)
        self._making.start(delta)

    def _made(self, copying: Copying, problem: str) -> None:
        self._making = None
        goes_on = self._replicas.is_copying(self._publisher, copying)
        if goes_on and not problem:
            copying.made()
            return
        if problem:
            logger.warning(
                "%d bytes of '%s' %d are copied as a whole, not made of what has changed: %s",
                len(copying.held.row),
                copying.key.name,
                copying.key.number,
                problem,
            )
        self._want = Want(
            self._messenger.endpoint,
            avoid_number=copying.key.number,
            was_to_keep=goes_on,
            refused=problem,
        )
        self.start()

    def _stop_copying(self) -> None:
        if self._making is not None:
            self._making.stop()
            self._making = None
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
        if arrived.block is None:
            is_large = arrived.size_bytes >= SHARED_BYTES
            why = self._want.unreadable or "its process has no room for it in shared memory"
            self.carrier = CarriedBy("a socket", why) if is_large else CarriedBy("a message")
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


class DeltaReading:
    """An object that is made for this machine: of the one before, which a process here has, and of what has changed.

    It is made in memory that nobody reads yet, in a thread of its own; all else is on the I/O thread.

    Args:
        copying: has room for the object.
        base: the object before.
        done: called once, with what was in the way, or "".
    """

    def __init__(
        self,
        messenger: Messenger,
        replicas: Replicas,
        publisher: Endpoint,
        copying: Copying,
        base: Base,
        done: Callable[[str], None],
    ) -> None:
        self._messenger = messenger
        self._replicas = replicas
        self._publisher = publisher
        self._copying = copying
        self._base = base
        self._done = done
        self._over = False
        self._before: ReceivedPayload | None = None
        self._delta: ReceivedPayload | None = None
        self._asked: Promise[Reply] | None = None
        self._reading: Reading | None = None

    def start(self, delta: list[Buffer]) -> None:
        """Get both; if it is small, what has changed is here."""
        base, here = self._base, self._messenger.endpoint
        if delta:
            self._delta = ReceivedPayload(delta)
        else:
            self._reading = Reading(
                self._messenger, self._replicas, self._publisher, ask=self._ask, done=self._delta_came
            )
            self._reading.start()
        if base.at.process_id == here.process_id:
            self._base_came(self._replicas.held(self._publisher, base.key))
            return
        question = Copy(self._publisher.process_id, base.key, Want(here))
        service, limit_s = f"{self._replicas.service}.copy", COPY_TIMEOUT_S
        self._asked = self._messenger.request(
            base.at, service, question, timeout_s=limit_s, reply_type=ReaderAnswer
        )
        self._asked.add_done_callback(self._holder_answered)

    def stop(self) -> None:
        """Nobody wants it any more; `done` is not called."""
        self._over = True
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.stop()
        if self._asked is not None:
            self._asked.cancel()
        self._before = self._delta = None

    def _ask(self, want: Want) -> Promise[Reply]:
        question = Copy(self._publisher.process_id, self._copying.key, want)
        service = f"{self._replicas.service}.delta"
        return self._messenger.request(self._publisher, service, question, reply_type=ReaderAnswer)

    def _delta_came(
        self, _key: Key | None, arrived: ReceivedPayload | None, _error: BaseException | None
    ) -> None:
        self._delta = arrived
        self._go_on("" if arrived is not None else "what has changed is gone")

    def _holder_answered(self, reply: Promise[Reply]) -> None:
        if self._over or reply.cancelled():
            return
        arrived = None
        if reply.exception() is None and reply.result().head.kind is AnswerKind.HERE:
            with suppress(SharedMemoryUnreadable):
                arrived = self._messenger.payloads.receive(reply.result().frames)
        self._base_came(arrived)

    def _base_came(self, arrived: ReceivedPayload | None) -> None:
        self._before = arrived
        self._go_on("" if arrived is not None else "the version before is gone")

    def _go_on(self, problem: str) -> None:
        if self._over:
            return
        if problem:
            self.stop()
            self._done(problem)
        elif self._before is not None and self._delta is not None:
            self._messenger.run_beside(self._make_beside, self._delta, self._before)

    def _make_beside(self, delta: ReceivedPayload, before: ReceivedPayload) -> None:
        problem = ""
        try:
            if self._replicas.apply is not None:
                self._replicas.apply(
                    delta.frames(), before.frames(), self._copying.held.payload.bytes_frames()
                )
        except Exception as error:  # noqa: BLE001 - then it comes as a whole
            problem = str(error) if isinstance(error, ValueError) else type(error).__name__
        self._messenger.submit(partial(self._end, problem))

    def _end(self, problem: str) -> None:
        if not self._over:
            self.stop()
            self._done(problem)
