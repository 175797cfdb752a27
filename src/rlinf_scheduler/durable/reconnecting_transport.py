"""What leads to the server of a durable channel, whichever process holds it. On the I/O thread only.

What is sent through it is numbered and kept until it is in the channel's journal. When the process that holds the
channel dies, the directory is asked for the next one, and everything goes on where it stopped: who waits sees nothing
of it but the time that it takes.
"""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.spec import ChannelRef
from rlinf_scheduler.comm.directory import Entry
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.failure import load_failure
from rlinf_scheduler.comm.framing import Buffer, encode_head
from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.comm.peer import Reply, Request, decode_head
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.durable import streams
from rlinf_scheduler.durable.streams import FAILURE, HEARD, NOTICE, REQUEST, Stream, StreamEnvelope
from rlinf_scheduler.errors import ChannelLost, CommError, CommTimeout, NotServed, PeerDied, PeerNotFound
from rlinf_scheduler.session import Session

logger = Reporter(__name__)

# How soon the directory is asked again that does not know yet that a process is gone.
ASK_AGAIN_S = 0.1
# How long one question to the directory waits.
SEARCH_S = 600.0
DELETED = "the channel was deleted"


class _Message(NamedTuple):
    """What was said, until the server has it for good."""

    envelope: StreamEnvelope
    frames: Sequence[Buffer]
    waits: bool


@dataclass(slots=True, eq=False)
class _Pending:
    reply_type: Any
    promise: Promise[Reply]


@dataclass(slots=True, eq=False)
class _Aside:
    """A checkpoint that is asked for; `clock`: of those that wait for a process to ask."""

    message: control_wire.OfSaves
    until: float | None
    reply_type: Any
    promise: Promise[Reply]
    clock: Timer | None = None


@dataclass(frozen=True, slots=True)
class _Responses:
    """What a handler of responses gets, as if it had come straight from the server."""

    peer_id: str
    head: Any
    frames: list[Buffer]


class ReconnectingTransport:
    """Leads to the server of one durable channel.

    Args:
        session: this process's.
        ref: the channel, and the process that held it when that was asked last.
    """

    def __init__(self, session: Session, ref: ChannelRef) -> None:
        self._messenger = session.messenger
        self._directory = session.directory
        self._spec = ref.spec
        self._server = ref.endpoint
        # To everybody else it is the same server for ever, and one that reads no shared memory.
        self.endpoint = Endpoint(ref.spec.channel_id, "", "", "")
        self._stream: Stream[_Message] = Stream()
        self._transport = secrets.token_hex(8)
        self._pending: dict[int, _Pending] = {}
        self._next_ident = itertools.count(1).__next__
        self._on_responses: Callable[[Request], None] | None = None
        self._on_lost: Callable[[ChannelLost], None] | None = None
        self._found = self._begun = self._has_ended = False
        self._was_deleted = False
        self._gone_since: float | None = None
        self._asides: deque[_Aside] = deque()
        self._service = wire.service(ref.spec.channel_id, wire.LINE)
        self._aside = wire.service(ref.spec.channel_id, wire.ASIDE)
        self._told = wire.service(ref.spec.channel_id, wire.TOLD)

    @property
    def condition(self) -> str:
        """Why nothing comes through it now, in a phrase; "" if nothing is known to be wrong."""
        if self._found or self._gone_since is None:
            return ""
        waited_s = self._messenger.now() - self._gone_since
        return f"its process has been gone for {waited_s:.1f} s, and no other one holds the channel yet"

    def begin(self, on_responses: Callable[[Request], None], on_lost: Callable[[ChannelLost], None]) -> None:
        """Hear responses from now on; `on_lost` is called if the server is found to be gone for good."""
        self._on_responses, self._on_lost = on_responses, on_lost
        self._messenger.unserve(self._told)
        self._messenger.serve(self._told, self._hear, streams.OfServer)
        self._messenger.on_peer_lost(self._on_peer_lost)
        self._messenger.stay_while(self._is_busy)
        self._look()

    def tell(self, message: wire.EncodedOperations, frames: Sequence[Buffer]) -> None:
        """Send operations; nobody changes the frames any more. What raises has said nothing."""
        self._say(wire.OPERATIONS, 0, message, frames, waits=bool(message.operations))

    def ask(
        self, message: control_wire.Control, timeout_s: float | None = None, reply_type: Any = Any
    ) -> Promise[Reply]:
        """Send a request; the promise of the reply, which fails as `Messenger.request`'s.

        The time in which no process holds the channel counts for checkpoints alone.
        """
        promise: Promise[Reply] = Promise()
        if self._has_ended:
            promise.set_exception(self._left())
        elif isinstance(message, control_wire.OfSaves):
            self._ask_aside(message, timeout_s, reply_type, promise)
        elif isinstance(message, control_wire.OfReports) and self._found:
            self._ask_for_report(message, timeout_s, reply_type, promise)
        else:
            self._ask_in_turn(message, timeout_s, reply_type, promise)
        return promise

    def _ask_in_turn(
        self, message: control_wire.Control, timeout_s: float | None, reply_type: Any, promise: Promise[Reply]
    ) -> None:
        ident = self._next_ident()
        self._say(wire.CONTROL, ident, message, ())
        self._pending[ident] = _Pending(reply_type, promise)
        if timeout_s is not None:
            self._start_clock(ident, timeout_s)

    # -- reports and checkpoints, which are not written down -------------------------

    def _ask_for_report(
        self,
        message: control_wire.OfReports,
        timeout_s: float | None,
        reply_type: Any,
        promise: Promise[Reply],
    ) -> None:
        """Ask the process that holds the channel now; if it does not any more, as whatever is asked."""
        until = self._until(timeout_s)
        asked = self._messenger.request(
            self._server, self._aside, message, timeout_s=timeout_s, reply_type=reply_type
        )

        def pass_on(reply: Promise[Reply]) -> None:
            error = reply.exception(0)
            if error is None:
                promise.set_result(reply.result(0))
            elif isinstance(error, PeerDied | NotServed) and not self._has_ended:
                self._ask_in_turn(message, self._left_s(until), reply_type, promise)
            else:
                promise.set_exception(self._left() if self._has_ended else error)

        asked.add_done_callback(pass_on)

    def _ask_aside(
        self,
        message: control_wire.OfSaves,
        timeout_s: float | None,
        reply_type: Any,
        promise: Promise[Reply],
    ) -> None:
        until = self._until(timeout_s)
        aside = _Aside(message, until, reply_type, promise)
        if self._found:
            self._send_aside(aside)
            return
        self._asides.append(aside)
        if timeout_s is not None:
            aside.clock = self._messenger.call_later(timeout_s, partial(self._on_late, aside, timeout_s))

    def _on_late(self, aside: _Aside, timeout_s: float) -> None:
        self._asides.remove(aside)
        error = CommTimeout(self._aside, self._spec.address, timeout_s, "a process that holds the channel")
        aside.promise.set_exception(error)

    def _take_asides(self) -> list[_Aside]:
        """Those that wait; they wait no more."""
        asides = list(self._asides)
        self._asides.clear()
        for aside in asides:
            if aside.clock is not None:
                aside.clock.cancel()
        return asides

    def _fail_asides(self, error: Exception) -> None:
        for aside in self._take_asides():
            aside.promise.set_exception(error)

    def _send_aside(self, aside: _Aside) -> None:
        """Have a checkpoint taken, by the process that holds the channel now: it is not begun again by another.

        What was said before is on its way to that process before it.
        """
        promise = aside.promise
        asked = self._messenger.request(
            self._server,
            self._aside,
            aside.message,
            timeout_s=self._left_s(aside.until),
            reply_type=aside.reply_type,
        )

        def pass_on(reply: Promise[Reply]) -> None:
            error = reply.exception(0)
            if isinstance(error, PeerDied):
                error = CommTimeout(self._aside, self._spec.address, 0.0, "its process, which died meanwhile")
            if error is not None:
                promise.set_exception(error)
            else:
                promise.set_result(reply.result(0))

        asked.add_done_callback(pass_on)

    def end(self) -> None:
        """Hear nothing any more."""
        self._on_responses = None
        self._messenger.off_peer_lost(self._on_peer_lost)
        self._fall_silent()
        self._has_ended = True
        pending, self._pending = self._pending, {}
        for each in pending.values():
            each.promise.set_exception(self._left())
        self._fail_asides(self._left())

    def _fall_silent(self) -> None:
        """What was said last is to be in the journal before this process ends: until then it hears."""
        if not self._is_busy():
            self._messenger.unserve(self._told)
            self._messenger.off_stay(self._is_busy)

    def _left(self) -> CommError:
        return CommError(f"channel '{self._spec.name}' was left")

    # -- what is said ----------------------------------------------------------------------------

    def _say(
        self, service: str, ident: int, head: Any, frames: Sequence[Buffer], *, waits: bool = True
    ) -> None:
        # Whatever cannot be sent raises here: what has a number is expected.
        envelope = StreamEnvelope(
            REQUEST, ident, service, msgspec.Raw(encode_head(service, head, len(frames)))
        )
        message = _Message(envelope, frames, waits)
        number = self._stream.say(message)
        if self._found:
            self._send(number, message)

    def _send(self, number: int, message: _Message) -> None:
        said = streams.Said(number, self._stream.heard, message.envelope, message.waits)
        self._messenger.notify(self._server, self._service, said, message.frames, snapshot=False)

    def _is_busy(self) -> bool:
        """Whether something that was said here may be lost with this process."""
        return self._found and self._stream.num_kept > 0

    def _start_clock(self, ident: int, timeout_s: float) -> None:
        self._messenger.call_later(timeout_s, partial(self._on_time, ident, timeout_s))

    def _on_time(self, ident: int, timeout_s: float) -> None:
        if ident not in self._pending:
            return
        if not self._found:
            self._start_clock(ident, timeout_s)
            return
        error = CommTimeout(self._service, self._spec.address, timeout_s, "its answer")
        self._pending.pop(ident).promise.set_exception(error)

    # -- what is heard ---------------------------------------------------------------------------

    def _hear(self, request: Request) -> None:
        if request.peer_id != self._server.process_id:
            return
        told: streams.OfServer = request.head
        if isinstance(told, streams.Left):
            self._on_left(told)
            return
        self._stream.confirm(told.heard)
        if self._on_responses is None:
            self._fall_silent()
            return
        envelope = told.envelope
        if envelope.kind == HEARD or not self._stream.hear(told.number):
            return
        if envelope.kind == NOTICE:
            self._take_notice(envelope, request)
        else:
            self._take_answer(envelope, request.frames)

    def _take_notice(self, told: StreamEnvelope, request: Request) -> None:
        if told.service != wire.service(self._spec.channel_id, wire.RESPONSES):
            self._messenger.hand_on(request, told.service, told.head)  # to another part of this process
        elif self._on_responses is not None:
            responses: Any = _Responses(
                self.endpoint.process_id, decode_head(told.head, wire.Responses), request.frames
            )
            self._on_responses(responses)

    def _take_answer(self, told: StreamEnvelope, frames: list[Buffer]) -> None:
        pending = self._pending.pop(told.ident, None)
        if pending is None:
            return
        if told.kind == FAILURE:
            pending.promise.set_exception(load_failure(frames[0]).error(self._spec.address))
            return
        try:
            head = decode_head(told.head, pending.reply_type)
        except msgspec.DecodeError as error:
            pending.promise.set_exception(CommError(f"the answer has another shape: {error}"))
        else:
            pending.promise.set_result(Reply(head, frames))

    # -- the process that holds the channel ------------------------------------------------------

    def _look(self) -> None:
        """Ask the process that is thought to hold the channel."""
        question = streams.FindServer(
            self._messenger.endpoint, self._stream.heard, self._begun, self._transport
        )
        server = self._server
        asked = self._messenger.request(server, self._service, question, reply_type=streams.Found)
        asked.add_done_callback(partial(self._on_found, server))

    def _on_found(self, server: Endpoint, asked: Promise[Reply]) -> None:
        if self._on_responses is None or asked.cancelled() or server is not self._server:
            return
        error = asked.exception(0)
        if error is not None:
            self._was_deleted = isinstance(error, NotServed)
            self._seek()
            return
        found: streams.Found = asked.result(0).head
        if found.lost:
            self._lose("it gave this process up: it was not heard of for too long")
            return
        self._found = self._begun = True
        if self._gone_since is not None:
            logger.warning(
                "channel '%s': another process holds it after %.1f s (epoch %d); what was under way goes on",
                self._spec.name,
                self._messenger.now() - self._gone_since,
                found.epoch,
            )
            self._gone_since = None
        self._stream.confirm(found.heard)
        for number, message in self._stream.after(found.heard):
            self._send(number, message)
        for aside in self._take_asides():
            self._send_aside(aside)

    def _on_left(self, left: streams.Left) -> None:
        if left.returns:
            self._on_gone(left.reason)
        else:
            self._lose(left.reason)

    def _on_peer_lost(self, process_id: str) -> None:
        if process_id == self._server.process_id and self._found:
            self._on_gone("its process is gone")

    def _on_gone(self, reason: str) -> None:
        logger.warning(
            "channel '%s': %s; what is under way waits for another process to hold it",
            self._spec.name,
            reason,
        )
        self._seek()

    def _seek(self) -> None:
        """Ask the directory which process holds the channel now."""
        self._found = False
        if self._gone_since is None:
            self._gone_since = self._messenger.now()
        asked = self._directory.lookup_async(self._spec.address, SEARCH_S)
        asked.add_done_callback(self._on_entry)

    def _on_entry(self, asked: Promise[Entry]) -> None:
        if self._on_responses is None or asked.cancelled():
            return
        error = asked.exception(0)
        if isinstance(error, PeerNotFound):
            self._seek()
        elif error is not None:
            self._lose(DELETED if self._was_deleted else str(error))
        else:
            self._on_holder(asked.result(0))

    def _on_holder(self, entry: Entry) -> None:
        try:
            ref = ChannelRef.from_entry(self._spec.name, entry)
        except Exception as error:  # noqa: BLE001 - whatever has that name now, it is not this channel
            self._lose(str(error))
            return
        if ref.spec.channel_id != self._spec.channel_id:
            self._lose("another channel has its name now")
        elif ref.endpoint.process_id == self._server.process_id:
            # The directory has not noticed yet, or it lives and has only given this process up.
            self._messenger.call_later(ASK_AGAIN_S, self._look_again)
        else:
            self._server = ref.endpoint
            self._look()

    def _until(self, timeout_s: float | None) -> float | None:
        return None if timeout_s is None else self._messenger.now() + timeout_s

    def _left_s(self, until: float | None) -> float | None:
        return None if until is None else max(0.0, until - self._messenger.now())

    def _look_again(self) -> None:
        if self._on_responses is not None:
            self._look()

    def _lose(self, reason: str) -> None:
        self._found = False
        lost = ChannelLost(self._spec.name, reason)
        self._fail_asides(lost)
        if self._on_lost is not None and self._on_responses is not None:
            self._on_lost(lost)
