"""One call on the ranks of a group, as the calling process's I/O thread sees it: sent, answered, failed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, TypeAlias

from rlinf.scheduler.comm import Buffer, Encoded, Endpoint, Messenger, Reply
from rlinf.scheduler.comm.failure import Failure, load_failure
from rlinf.scheduler.comm.promise import Promise
from rlinf.scheduler.comm.shm.parcel import Arrived
from rlinf.scheduler.comm.shm.parcels import Parcel
from rlinf.scheduler.errors import SharedMemoryUnreadable, WorkerDied
from rlinf.scheduler.host import protocol
from rlinf.scheduler.host.info import WorkerAddress

_next_number = itertools.count(1).__next__


class Target(NamedTuple):
    """A rank that is called: its name, and how its process is reached."""

    address: WorkerAddress
    endpoint: Endpoint


# What came of a call on one rank: its result, not decoded yet; what the method raised; why there is no answer.
Outcome: TypeAlias = Arrived | Failure | BaseException


class Call:
    """One call on several ranks.

    Made by the calling thread, which hands it over to the I/O thread with `messenger.submit(call.start)`: so all of
    its ranks are called or none is, wherever that thread is interrupted. From then on the I/O thread alone changes it.

    Attributes:
        method: what is called.
        addresses: the ranks, in the order of the results.
        outcomes: what came of it on each rank; None where that is not known yet.
        aborted: why nobody should wait any more; None as long as somebody should.
        settled: done when every rank has answered or one has failed.
        complete: done when every rank has answered or failed.
    """

    def __init__(
        self, messenger: Messenger, method: str, targets: Sequence[Target], encoded: Encoded
    ) -> None:
        self.method = method
        self.addresses = tuple(target.address for target in targets)
        self.outcomes: list[Outcome | None] = [None] * len(targets)
        self.aborted: WorkerDied | None = None
        self.settled: Promise[None] = Promise()
        self.complete: Promise[None] = Promise()
        self._messenger = messenger
        self._head = protocol.Call(method, _next_number())
        self._endpoints = [target.endpoint for target in targets]
        self._left = len(targets)
        # Kept until every rank has answered: what lies in shared memory must stay there until then.
        self._parcel: Parcel | None = self._packed(encoded)

    def _packed(self, encoded: Encoded) -> Parcel:
        """Write the arguments once, for all ranks; nobody waits here for room in shared memory."""
        parcels = self._messenger.parcels
        readers = [endpoint for endpoint in self._endpoints if parcels.reads_ours(endpoint.process_id)]
        peer = (readers or self._endpoints)[0]
        return parcels.pack(encoded, peer, snapshot=True, shared=len(self._endpoints) > 1)

    @property
    def failed(self) -> bool:
        """Whether a rank has failed, or the call was aborted."""
        answers = (outcome for outcome in self.outcomes if outcome is not None)
        return self.aborted is not None or not all(isinstance(answer, Arrived) for answer in answers)

    def start(self) -> None:
        """Send it to every rank."""
        # Released before the ranks hear of this call: then they find their memory warm.
        self._messenger.parcels.release_dropped()
        for index in range(len(self._endpoints)):
            self._send(index)

    def abort(self, error: WorkerDied) -> None:
        """End the wait with `error`: a rank died that this call may depend on."""
        if not self.settled.done():
            self.aborted = error
        self.settled.set_result(None)
        self.complete.set_result(None)

    def _send(self, index: int) -> None:
        if self._parcel is None:
            return
        endpoint = self._endpoints[index]
        frames = self._parcel.frames_for(endpoint)
        answer = self._messenger.request(
            endpoint, protocol.CALL, self._head, frames, snapshot=False, reply_type=protocol.Answer
        )
        answer.add_done_callback(partial(self._on_answer, index))

    def _on_answer(self, index: int, answer: Future[Reply]) -> None:
        error = answer.exception()
        if error is not None:
            self._note(index, error)
            return
        frames = answer.result().frames
        match answer.result().head:
            case protocol.Unread(reason):
                # The rank keeps the call's place in its line.
                self._messenger.parcels.distrust(self._endpoints[index].process_id, reason)
                self._send(index)
            case protocol.Raised():
                self._note(index, load_failure(frames[0]))
            case protocol.Returned():
                self._take_result(index, frames)

    def _take_result(self, index: int, frames: list[Buffer]) -> None:
        """Hold what lies in the rank's shared memory, before the rank learns that it arrived."""
        try:
            self._note(index, self._messenger.parcels.receive(frames))
        except SharedMemoryUnreadable as error:
            again = protocol.Again(self._head.number, str(error))
            answer = self._messenger.request(
                self._endpoints[index], protocol.AGAIN, again, reply_type=protocol.Answer
            )
            answer.add_done_callback(partial(self._on_answer, index))

    def _note(self, index: int, outcome: Outcome) -> None:
        self.outcomes[index] = outcome
        self._left -= 1
        if self._left == 0 or not isinstance(outcome, Arrived):
            self.settled.set_result(None)
        if self._left == 0:
            self.complete.set_result(None)
            self._parcel = None
