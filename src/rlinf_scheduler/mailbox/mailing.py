"""One object on its way to one process (send) or to several (broadcast).

Each of them gets it as a put to a queue of its own, in order, and waits for room there. What is large and goes to
several is published once: processes of this machine get descriptors of it, those of another machine share a replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from msgspec.structs import replace

from rlinf_scheduler.comm.codec import Encoded, encode
from rlinf_scheduler.comm.operation import OperationPromise
from rlinf_scheduler.comm.replication import Key
from rlinf_scheduler.comm.shm.payloads import SHARED_BYTES
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.comm.transfer import PeerOperation, end
from rlinf_scheduler.comm.waits import Wait
from rlinf_scheduler.errors import CommError, CommTimeout, PeerDied, PeerNotFound
from rlinf_scheduler.mailbox.outbox import Outbox, Sending
from rlinf_scheduler.mailbox.records import TensorType


class Mailing(PeerOperation):
    """One object to some processes, whose promise is done when all have it or never will.

    Everything but making it is on the I/O thread.

    Args:
        outbox: through which it goes.
        operation: "send" or "broadcast", for messages.
        targets: the receivers' names.
        topic: what keeps an order of its own.
        obj: the object.
        tensor: what it is, if it is a tensor.
        timeout_s: how long it may take, from now on.
        wait_s: how long the calling thread may wait for shared memory.
        wait_for_return: as of `Sending`.
    """

    def __init__(
        self,
        outbox: Outbox,
        operation: str,
        targets: Sequence[str],
        topic: str,
        obj: Any,
        *,
        tensor: TensorType | None = None,
        timeout_s: float,
        wait_s: float,
        wait_for_return: bool = False,
    ) -> None:
        outbox.messenger.check_process()
        super().__init__(outbox.transfers, operation, targets, timeout_s)
        self._outbox = outbox
        self._topic = topic
        self._tensor = tensor
        self._waits_for_return = wait_for_return
        self._payload: Payload | None = self._pack(encode(obj), wait_s)
        self._sendings: list[Sending] = []
        self._num_left = len(targets)
        self._errors: dict[str, BaseException] = {}
        self._key: Key | None = None

    def begin(self) -> OperationPromise:
        """Hand it over to the I/O thread."""
        promise = OperationPromise(self)
        if len(self.peers) == 1:
            promise.by = self.peers[0]
        self._outbox.transfers.hand_over(partial(self._start, promise), promise.set_exception)
        return promise

    def awaits(self) -> Wait:
        """Return what a wait for it is for: the members that do not have it."""
        left = tuple(sending.peer for sending in tuple(self._sendings) if not sending.over)
        wait = super().awaits()
        return replace(wait, peers=left) if left else wait

    def _pack(self, encoded: Encoded, wait_s: float) -> Payload:
        payloads = self._outbox.messenger.payloads
        found = [self._outbox.transfers.finder.known(target) for target in self.peers]
        readers = [peer for peer in found if peer is None or payloads.reads_ours(peer.process_id)]
        # Shared memory that nobody reads would be a copy for nothing.
        peer = None if readers else found[0]
        left_s = max(0.0, self.timeout_s - self.waited_s)
        return payloads.pack(
            encoded, peer, snapshot=True, wait_s=min(wait_s, left_s), shared=len(readers) > 1
        )

    def _start(self, promise: OperationPromise) -> None:
        """All receivers hear of it in one go, so each gets what belongs to a topic in the same order."""
        payload, self._payload = self._payload, None
        if payload is None:
            return
        self.promise_to(promise)
        if len(self.peers) > 1 and payload.size_bytes >= SHARED_BYTES:
            self._key = Key(self._topic, self._outbox.next_ticket())
            self._outbox.publisher.publish(self._key, payload, replicated=True)
        self._sendings = [
            Sending(
                self._outbox,
                self.operation,
                target,
                self._topic,
                payload,
                started=self.started,
                timeout_s=self.timeout_s,
                done=partial(self._part_ended, target),
                tensor=self._tensor,
                key=self._key,
                wait_for_return=self._waits_for_return,
            )
            for target in self.peers
        ]
        for sending in list(self._sendings):
            sending.start()

    def _part_ended(self, target: str, error: BaseException | None) -> None:
        if error is not None:
            self._errors[target] = error
        self._num_left -= 1
        if self._num_left:
            return
        if self._key is not None:
            self._outbox.publisher.release(self._key)
        self._sendings.clear()
        error = self._what_failed()
        if error is not None and not isinstance(error, CancelledError):
            self._outbox.unheard.fail(self, error)
        promise, self._promise = self._promise, None
        if promise is not None:
            end(promise, None, error)

    def _what_failed(self) -> BaseException | None:
        """One error for all who do not have the object."""
        for error in self._errors.values():
            if isinstance(error, CancelledError):
                return error
        errors = {target: self._errors[target] for target in self.peers if target in self._errors}
        return joined(self.operation, errors) if errors else None

    def give_up(self) -> None:
        """Give up what the receivers do not hold."""
        for sending in list(self._sendings):
            sending.give_up()


def joined(operation: str, errors: dict[str, BaseException]) -> BaseException:
    """Return one error for what several peers failed with, by their names."""
    if len(errors) == 1:
        return next(iter(errors.values()))
    missing = ", ".join(errors)
    reasons = "; ".join(_reason(name, error) for name, error in errors.items())
    if all(isinstance(error, PeerDied) for error in errors.values()):
        return PeerDied(missing, reasons)
    late = [error for error in errors.values() if isinstance(error, (CommTimeout, PeerNotFound))]
    if late:
        return CommTimeout(operation, missing, max(error.waited_s for error in late), reasons)
    return CommError(reasons)


def _reason(name: str, error: BaseException) -> str:
    """Why somebody does not have the object."""
    if isinstance(error, PeerNotFound):
        return f"'{name}', which never registered"
    if isinstance(error, CommTimeout):
        return f"'{name}' ({error.waiting_for})"
    if isinstance(error, PeerDied):
        return f"'{name}', which is gone ({error.reason})"
    return f"'{name}' ({error})"
