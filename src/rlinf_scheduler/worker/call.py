"""One call on the ranks of a group, as the calling process's I/O thread sees it: sent, answered, failed."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Buffer, Encoded, Endpoint, Messenger, RequestFuture
from rlinf_scheduler.comm.failure import Failure, load_failure, sendable
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.shm.sent_payload import Payload
from rlinf_scheduler.comm.transport.peer_session import Loss
from rlinf_scheduler.comm.waits import RESULT, Cause
from rlinf_scheduler.errors import CallCancelled, PeerDied, PlacementError, SharedMemoryUnreadable, WorkerDied
from rlinf_scheduler.host import protocol
from rlinf_scheduler.wording import printable

# Of what a method has raised, so much is told of while its caller has not taken it: a text may be a log.
MAX_FAILURE_CHARS = 300
# In a collective the others may fail before the death is known of the rank that they have lost.
DEATH_SHOWS_WITHIN_S = 1.0
# Of a call, and of each value that is asked for.
next_number = itertools.count(1).__next__


class Target(NamedTuple):
    """A rank that is called.

    Attributes:
        address: its name.
        endpoint: how its process is reached; None: it has none now, and the call waits for the next one.
        gone: done when that process is gone, with why.
    """

    address: WorkerAddress
    endpoint: Endpoint | None
    gone: Promise[str] | None = None


class LeftOut:
    """What came of a call on a rank that left the group before it began it: the call is one of the others."""


LEFT_OUT = LeftOut()
# What came of a call on one rank: its result, not decoded yet; what the method raised; why there is no answer.
RankOutcome: TypeAlias = ReceivedPayload | Failure | LeftOut | BaseException
_WELL = (ReceivedPayload, LeftOut)


class CallEnd(Promise[None]):
    """The end of a call, which knows what is waited for: no wait has to put it in words."""

    __slots__ = ("_title",)

    def __init__(self, title: str, by: str) -> None:
        super().__init__()
        self._title = title
        self.by = by

    def cause(self) -> Cause:
        """Return what a wait for it is counted as; None: as what the waiting thread says."""
        return Cause(RESULT, self._title)


class CallAgain(NamedTuple):
    """What of a call is sent again when a rank dies.

    Attributes:
        next_target: given a rank that died, says where its part goes then: nowhere (None), or to another process, which
            may not be there yet.
        repeats: whether a part is sent again that the rank may have begun; else one that it never began is.
        as_one: all ranks of the group end with one: they begin it again together, or it ends.
    """

    next_target: Callable[[WorkerAddress], Target | None]
    repeats: bool = False
    as_one: bool = False


class Call:
    """One call on several ranks.

    Made by the calling thread, which hands it over to the I/O thread with `messenger.submit(call.start)`: so all of
    its ranks are called or none is, wherever that thread is interrupted. From then on the I/O thread alone changes it.

    Args:
        messenger: this process's messenger.
        method: what is called.
        targets: the ranks.
        encoded: the arguments: one for all ranks, or one a rank.
        kind: what is to be done with `method`.
        again: what is sent again when a rank dies; None: nothing.

    Attributes:
        method: what is called.
        addresses: the ranks, in the order of the results.
        outcomes: what came of it on each rank; None where that is not known yet.
        durations: what was timed on each rank, in seconds; empty where that is not known.
        sent_at: when each rank's part was sent last, on the monotonic clock; 0 where it waits for a process.
        answered_at: when each outcome came, likewise; 0 where there is none.
        aborted: why nobody should wait any more; None as long as somebody should.
        is_read: somebody has asked for its result, or looks after it: what it fails with need not be logged.
        is_of_members: it goes to all ranks that the group has: one that leaves before it begins it is left out.
        why_left: says why a rank has left the group, if it has; None: the call goes to those that leave, too.
        settled: done when every rank has answered or one has failed.
        complete: done when every rank has answered or failed.
    """

    def __init__(
        self,
        messenger: Messenger,
        method: str,
        targets: Sequence[Target],
        encoded: Encoded | Sequence[Encoded],
        kind: protocol.CallKind = "call",
        again: CallAgain | None = None,
    ) -> None:
        self.method = method
        self.addresses = tuple(target.address for target in targets)
        self.outcomes: list[RankOutcome | None] = [None] * len(targets)
        self.durations: list[dict[str, float]] = [{} for _ in targets]
        self.sent_at = [0.0] * len(targets)
        self.answered_at = [0.0] * len(targets)
        self.aborted: WorkerDied | CallCancelled | None = None
        self.is_read = False
        self.is_of_members = False
        self.why_left: Callable[[WorkerAddress], PlacementError | None] | None = None
        # Of one rank it is known beforehand who ends it, also for a wait that ends at its deadline.
        by = str(self.addresses[0]) if len(targets) == 1 else ""
        self.settled: Promise[None] = CallEnd(self.title, by)
        self.complete: Promise[None] = CallEnd(self.title, by)
        self.messenger = messenger
        self._head = protocol.CallRequest(method, next_number(), kind)
        self._targets = list(targets)
        self._again = again
        # How often it was begun: what processes say that had it before counts no more.
        self._attempt = 0
        # Of the messages to each rank's process, the one with its part, once that was answered; see `RequestFuture`.
        self._numbers = [0] * len(targets)
        self._left = len(targets)
        self._is_cancelled = False
        self._began = time.monotonic()
        # Kept until every rank has answered: what lies in shared memory must stay there until then.
        self._payloads: list[Payload] = self._packed(encoded)

    def _packed(self, encoded: Encoded | Sequence[Encoded]) -> list[Payload]:
        """Write the arguments, once where they are the same; nobody waits here for room in shared memory."""
        payloads = self.messenger.payloads
        if not isinstance(encoded, Encoded):
            pairs = zip(encoded, self._targets, strict=True)
            return [payloads.pack(each, target.endpoint, snapshot=True) for each, target in pairs]
        endpoints = [target.endpoint for target in self._targets]
        readers = [each for each in endpoints if each is None or payloads.reads_ours(each.process_id)]
        peer = (readers or endpoints)[0]
        payload = payloads.pack(encoded, peer, snapshot=True, shared=len(endpoints) > 1)
        return [payload] * len(endpoints)

    @property
    def title(self) -> str:
        """What is called, for messages."""
        return f"{self.addresses[0].group}.{self.method}()"

    def owed_since(self, index: int) -> float:
        """Return since when a rank owes something, on the monotonic clock; infinity: nothing. On the I/O thread."""
        return self._began if self.outcomes[index] is None else math.inf

    def untaken_failure(self) -> str:
        """Return the failure of a rank that the caller has not taken yet, in a line; "" without one."""
        if self.is_read and self.complete.done():
            return ""
        for address, outcome in zip(self.addresses, self.outcomes, strict=True):
            if isinstance(outcome, Failure):
                line = sendable(outcome.text.partition("\n")[0], MAX_FAILURE_CHARS)
                return f"{address} has failed in {self.method}(): {printable(line)}"
            if isinstance(outcome, PeerDied):
                return f"{address} has died during {self.method}()"
        return ""

    @property
    def failed(self) -> bool:
        """Whether a rank has failed, or the call was aborted."""
        answers = (outcome for outcome in self.outcomes if outcome is not None)
        return self.aborted is not None or not all(isinstance(answer, _WELL) for answer in answers)

    @property
    def places(self) -> list[int]:
        """Where the ranks stand that were not left out."""
        return [index for index, outcome in enumerate(self.outcomes) if outcome is not LEFT_OUT]

    def start(self) -> None:
        """Send it to every rank."""
        # Released before the ranks hear of this call: then they find their memory warm.
        self.messenger.payloads.release_dropped()
        for index in range(len(self._targets)):
            ending(partial(self._send, index), partial(self._note, index))()

    def aim(self, index: int, target: Target) -> None:
        """Before it is started: a rank may have another process by now, or none."""
        self._targets[index] = target

    def leave_out_those_that_left(self) -> None:
        """Before it is started: some may have left the group since it was made."""
        for index in range(len(self.addresses)):
            self._leave_out(index)

    def _leave_out(self, index: int) -> bool:
        """Whether a rank has left that has not begun it, and never will: of the members others are called still."""
        why = None if self.why_left is None else self.why_left(self.addresses[index])
        if why is not None:
            others = any(each != index for each in self.places)
            self._note(index, LEFT_OUT if self.is_of_members and others else why)
        return why is not None

    def go_on(self, target: Target) -> None:
        """A rank for whose process it waited has one."""
        index = self._waiting_for(target.address)
        if index is not None:
            self._targets[index] = target
            self._send(index)

    def refuse(self, error: WorkerDied) -> None:
        """A rank for whose process it waited gets none."""
        index = self._waiting_for(WorkerAddress(error.group, error.rank))
        if index is not None and (self.sent_at[index] or not self._leave_out(index)):
            self._note(index, error)

    def awaits(self, rank: int) -> bool:
        """Whether it has a part for a rank that has never been sent: there was no process to send it to."""
        pairs = zip(self.addresses, self.sent_at, strict=True)
        return any(address.rank == rank and not sent_at for address, sent_at in pairs)

    def _waiting_for(self, address: WorkerAddress) -> int | None:
        if address not in self.addresses:
            return None
        index = self.addresses.index(address)
        waits = self._targets[index].endpoint is None and self.outcomes[index] is None
        return index if waits else None

    def why_gone(self, address: WorkerAddress) -> Promise[str] | None:
        """What is done when the process is gone that a rank's part was sent to, with why."""
        return self._targets[self.addresses.index(address)].gone

    def abort(self, error: WorkerDied) -> None:
        """End the wait with `error`: a rank died that this call may depend on."""
        if not self.settled.done():
            self.aborted = error
        self._end()

    def fail(self, error: Exception) -> None:
        """It cannot be carried out here: no rank will answer that has not."""
        for index, outcome in enumerate(self.outcomes):
            if outcome is None:
                self._note(index, error)

    def _end(self) -> None:
        self.settled.set_result(None)
        self.complete.set_result(None)

    def cancel(self) -> None:
        """Give it up: nobody waits any more, and the ranks leave it where they wait."""
        if self._left == 0:
            return
        self._is_cancelled = True
        for index, outcome in enumerate(self.outcomes):
            if outcome is None:
                self._send_cancel(index)
        if not self.settled.done():
            self.aborted = CallCancelled(self.addresses[0].group, self.method)
        self.settled.set_result(None)
        for index, target in enumerate(self._targets):
            if target.endpoint is None and self.outcomes[index] is None:
                self._note(index, CallCancelled(target.address.group, self.method, target.address.rank))

    def _send_cancel(self, index: int) -> None:
        endpoint = self._targets[index].endpoint
        if endpoint is not None:
            self.messenger.notify(endpoint, protocol.CANCEL, protocol.Cancel(self._head.number))

    def _send(self, index: int) -> None:
        endpoint = self._targets[index].endpoint
        if not self._payloads or endpoint is None or self.outcomes[index] is not None:
            return
        self.sent_at[index] = time.monotonic()
        self._numbers[index] = 0
        frames = self._payloads[index].frames_for(endpoint)
        answer = self.messenger.request(
            endpoint, protocol.CALL, self._head, frames, snapshot=False, reply_type=protocol.CallAnswer
        )
        answer.add_done_callback(partial(self._on_answer, index, self._attempt))
        if self._is_cancelled:  # while the rank could not read its arguments
            self._send_cancel(index)

    def _on_answer(self, index: int, attempt: int, answer: RequestFuture) -> None:
        if attempt != self._attempt:
            return
        error = answer.exception()
        # Not that of a later one, which asks for the result again.
        self._numbers[index] = self._numbers[index] or answer.number
        if error is not None:
            self._on_failed(index, error)
            return
        frames = answer.result().frames
        match answer.result().head:
            case protocol.Unread(reason):
                # The rank keeps the call's place in its line.
                endpoint = self._targets[index].endpoint
                if endpoint is not None:
                    self.messenger.payloads.distrust(endpoint.process_id, reason)
                self._send(index)
            case protocol.Raised(durations):
                self.durations[index] = durations
                self._note(index, load_failure(frames[0]))
            case protocol.Cancelled(durations):
                self.durations[index] = durations
                address = self.addresses[index]
                self._note(index, CallCancelled(address.group, self.method, address.rank))
            case protocol.Returned(durations):
                self.durations[index] = durations or self.durations[index]
                self._take_result(index, frames)
            case protocol.Abandoned():
                self._on_failed(index, PeerDied(str(self.addresses[index]), "it ended during the call"))

    def _on_failed(self, index: int, error: BaseException) -> None:
        """A rank gives no answer."""
        target = self._target_after(index, error)
        if target is not None:
            self._targets[index] = target
            self._send(index)
        elif not (self._never_begun(index, error) and self._leave_out(index)):
            self._note(index, error)

    def _target_after(self, index: int, error: BaseException) -> Target | None:
        """Where the part of a rank that failed to answer is sent again; None if it is not."""
        endpoint, again = self._targets[index].endpoint, self._again
        if again is None or endpoint is None or not isinstance(error, PeerDied):
            return None
        if self._is_cancelled or self.aborted is not None:
            return None
        never_begun = self._never_begun(index, error)
        sends = never_begun or again.repeats or again.as_one
        target = again.next_target(self.addresses[index]) if sends else None
        if never_begun and target is not None:
            self.sent_at[index] = 0.0
        if target is not None and again.as_one:  # what becomes of all of them is said soon
            return Target(target.address, None)
        return target

    def _never_left(self, index: int) -> bool:
        """Whether the process of a rank is gone, and its part was never written to that."""
        endpoint = self._targets[index].endpoint
        if endpoint is None:
            return False
        return self.messenger.peers.never_left(endpoint.process_id, self._numbers[index])

    def _never_begun(self, index: int, error: BaseException) -> bool:
        """Whether a rank is gone that never began its part: it said goodbye once it had answered all that it had."""
        endpoint = self._targets[index].endpoint
        if endpoint is None or not isinstance(error, PeerDied):
            return False
        if self._never_left(index):
            return True
        lost = self.messenger.peers.lost.get(endpoint.process_id)
        has_ended = bool(self.durations[index])  # its result could not be read, and was asked for as bytes
        return lost is not None and lost.loss is Loss.LEFT and not has_ended

    @property
    def was_sent(self) -> bool:
        """Whether some rank may have begun it."""
        return any(at and not self._never_left(index) for index, at in enumerate(self.sent_at))

    @property
    def begun(self) -> list[WorkerAddress]:
        """The ranks that have begun it, or may have; who never does says so once it is cancelled."""
        ends = zip(self.addresses, self.outcomes, self.durations, strict=True)
        return [address for address, end, took in ends if end is None or took]

    def begin_anew(self) -> bool:
        """Have it begun again by all of its ranks, when these have other processes; whether that is wanted."""
        over = self.settled.done() or self._is_cancelled
        if self._again is None or not self._again.repeats or over:
            return False
        self._attempt += 1
        self.outcomes = [LEFT_OUT if outcome is LEFT_OUT else None for outcome in self.outcomes]
        self._left = self.outcomes.count(None)
        self.sent_at = [0.0] * len(self.addresses)
        self.durations = [{} for _ in self.addresses]
        self._targets = [Target(address, None) for address in self.addresses]
        return True

    def _take_result(self, index: int, frames: list[Buffer]) -> None:
        """Hold what lies in the rank's shared memory, before the rank learns that it arrived."""
        try:
            self._note(index, self.messenger.payloads.receive(frames))
        except SharedMemoryUnreadable as error:
            self._ask_again(index, self._head.number, error, partial(self._on_answer, index, self._attempt))

    def _ask_again(
        self,
        index: int,
        number: int,
        error: SharedMemoryUnreadable,
        on_answer: Callable[[RequestFuture], None],
    ) -> None:
        """Have a rank send as bytes what this process cannot read where it lies."""
        endpoint = self._targets[index].endpoint
        if endpoint is not None:
            again = protocol.ResultAsBytes(number, str(error))
            answer = self.messenger.request(endpoint, protocol.AGAIN, again, reply_type=protocol.CallAnswer)
            answer.add_done_callback(on_answer)

    def _note(self, index: int, outcome: RankOutcome) -> None:
        self.outcomes[index] = outcome
        self.answered_at[index] = time.monotonic()
        self._left -= 1
        if self._left == 0:
            self._ended_by(index)
            self._payloads = []
            self._end()
            return
        if not isinstance(outcome, _WELL) and not self.settled.done():
            if isinstance(outcome, Failure) and self._again is not None and self._again.as_one:
                # A collective fails on the others before it is known here that a rank is gone.
                self.messenger.call_later(DEATH_SHOWS_WITHIN_S, partial(self._settle, index, self._attempt))
            else:
                self._settle(index, self._attempt)
        if self._left == 1:  # then a wait that ends at its deadline is its, too
            self._ended_by(self.outcomes.index(None))

    def _settle(self, index: int, attempt: int) -> None:
        """A rank has failed, and its failure is the call's."""
        has_dead = self._again is not None and self._again.as_one and self._has_dead()
        if attempt == self._attempt and not has_dead and not self.settled.done():
            self.settled.by = str(self.addresses[index])
            self.settled.set_result(None)

    def _has_dead(self) -> bool:
        """Whether the process of a rank is gone that was to answer."""
        places = zip(self._targets, self.outcomes, strict=True)
        return any(target.endpoint is None and end is None for target, end in places)

    def _ended_by(self, index: int) -> None:
        """A rank answers last, or has answered."""
        self.complete.by = name = str(self.addresses[index])
        if not self.settled.done():
            self.settled.by = name
