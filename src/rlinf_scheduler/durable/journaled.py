"""What stands between the server of a durable channel and the world. On the I/O thread only.

Everything that the server is told passes through here: what clients say, that they are gone, that a timer has rung. It
is written down first, together with what has come in the same turn, and only then told to the server. So what the
server does, and answers, always follows from what is on the disk; and told the same again by another process, it comes
to the same state and says the same, for it has no other clock and no other way to learn anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from rlinf_scheduler.channel import wire
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.failure import dump_failure
from rlinf_scheduler.comm.framing import Buffer, encode_head
from rlinf_scheduler.comm.loop import Timer, run_guarded
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply, Request, decode_head
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.payloads import Payloads
from rlinf_scheduler.durable import streams
from rlinf_scheduler.durable.journal import Journal
from rlinf_scheduler.durable.journal_records import (
    ClientJoined,
    ClientLost,
    ClientStream,
    Fired,
    HoldingBegun,
    JournaledCommit,
    LoadedSnapshot,
    ReceivedEnvelope,
    Record,
    WorldRecord,
)
from rlinf_scheduler.durable.streams import FAILURE, HEARD, NOTICE, REPLY, ServerStreams, StreamEnvelope
from rlinf_scheduler.errors import CommError

logger = Reporter(__name__)

# Clients that have not come back so long after a restart are gone.
RETURN_S = 30.0
# So much may two clocks differ that are the same.
EARLY_S = 1e-3
# What nobody waits for is written with what comes next, or so much later.
LAZY_S = 0.05
# Where messages go that cannot be read; it is not served.
UNREADABLE = "a message of another shape"

_encode = msgspec.msgpack.Encoder().encode


class OutgoingEnvelope(NamedTuple):
    """What a client is told, until it has it."""

    envelope: StreamEnvelope
    frames: list[Buffer]


class JournaledRequest:
    """A request or notice of a client; as `Request`, but the answer outlives this process."""

    is_cancelled = False

    def __init__(self, runtime: WriteAheadRuntime, came: ReceivedEnvelope, frames: list[Buffer]) -> None:
        self._runtime = runtime
        self._ident = came.envelope.ident
        self.peer_id = came.client
        self.peer_name = runtime.names.get(came.client, came.client)
        self.frames = frames
        self.head: Any = None

    def reply(self, head: Any, frames: Sequence[Buffer] = (), *, snapshot: bool = True) -> bool:
        """Answer; the frames are kept as they are until the client has them."""
        return self._answer(REPLY, head, list(frames))

    def fail(self, error: BaseException) -> bool:
        """Answer with an error."""
        return self._answer(FAILURE, None, [dump_failure(error)])

    def _answer(self, kind: int, head: Any, frames: list[Buffer]) -> bool:
        ident = self._ident
        if not ident:
            return False
        try:
            outgoing = _outgoing(kind, ident, "", head, frames)
        except Exception as error:  # noqa: BLE001 - it belongs to the caller
            self.fail(error)
            return False
        self._ident = 0
        self._runtime.say(self.peer_id, outgoing)
        return True

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Nobody cancels what goes this way."""

    def check_claim(self, process_id: str, what: str) -> None:
        """Make sure that the sender, whom the transport has proved, is the process that it says it is."""
        if process_id != self.peer_id:
            problem = f"'{self.peer_name}' says that {what}, which is another process"
            raise CommError(problem)


class _JournaledTimer(Timer):
    __slots__ = ("_forget", "due", "key", "real")

    def __init__(
        self,
        callback: Callable[[], None],
        due: float,
        key: tuple[Any, ...],
        forget: Callable[[_JournaledTimer], None],
    ) -> None:
        super().__init__(callback)
        self.due = due
        self.key = key
        self.real: Timer | None = None
        self._forget = forget

    def cancel(self) -> None:
        """Make sure that the callback does not run, unless it has begun."""
        if self.callback is not None:
            self.callback = None
            self._forget(self)
        if self.real is not None:
            self.real.cancel()


class WriteAheadRuntime:
    """The world as the server of a durable channel sees it: a `Runtime`.

    Args:
        journal: its, open.
        on_failed: called once if the journal cannot be written any more; nothing is done or answered from then on.
        on_commit: called after every turn that was written.

    Attributes:
        streams: what clients have said and are told.
        names: of the clients.
        lines: which of its lines each of them uses.
        epoch: which process this is, of those that have held the channel.
        job: the job in which it does.
        withholds: hear and say nothing until it is stopped: the channel was deleted.
    """

    def __init__(
        self,
        messenger: Messenger,
        channel_id: str,
        journal: Journal,
        on_failed: Callable[[OSError], None],
        on_commit: Callable[[], None],
    ) -> None:
        self.endpoint = messenger.endpoint
        self.payloads: Payloads = messenger.payloads
        self.disk = messenger.disk
        self.run_beside = messenger.run_beside
        self.streams: ServerStreams[OutgoingEnvelope] = ServerStreams()
        self.names: dict[str, str] = {}
        self.lines: dict[str, str] = {}
        self.epoch = 0
        self.job = ""
        self.withholds = False
        self._prefix = wire.service(channel_id, wire.OPERATIONS)
        self._line = wire.service(channel_id, wire.LINE)
        self._told = wire.service(channel_id, wire.TOLD)
        self._messenger = messenger
        self._journal = journal
        self._on_failed = on_failed
        self._on_commit = on_commit
        self._services: dict[str, tuple[Callable[[Any], None], Any]] = {}
        self._on_peer_lost: list[Callable[[str], None]] = []
        self._timers: dict[tuple[Any, ...], deque[_JournaledTimer]] = {}
        self._submitted: deque[Callable[[], None]] = deque()
        self._pending: list[Record] = []
        self._pending_frames: list[Buffer] = []
        # What was said, for each of those that have come.
        self._heads: deque[Any] = deque()
        self._commit_due = self._lazy_due = False
        self._looking: list[tuple[Request, streams.FindServer]] = []
        # Those that are connected, and what is to be sent to them.
        self._present: dict[str, Endpoint] = {}
        self._outbox: list[tuple[str, int, OutgoingEnvelope]] = []
        self._to_tell: dict[str, None] = {}
        self._live = self._stopped = False
        self._now = 0.0
        self._clock_base = 0.0

    # -- for the server: see `Runtime` -----------------------------------------------------------

    @property
    def name(self) -> str:
        """Of this process."""
        return f"{self._messenger.name}, epoch {self.epoch}"

    def now(self) -> float:
        """The channel's own clock: it stands while nobody holds the channel, and goes on from turn to turn."""
        return self._now

    def serve(self, service: str, handler: Callable[[Any], None], message_type: Any = Any) -> None:
        """Have a handler take the requests of a service."""
        self._services[self._own(service)] = handler, message_type

    def unserve(self, service: str) -> None:
        """Undo `serve`."""
        self._services.pop(self._own(service), None)

    def _own(self, service: str) -> str:
        return service.removeprefix(self._prefix)

    def notify(
        self,
        peer: Endpoint,
        service: str,
        head: Any,
        frames: Sequence[Buffer] = (),
        *,
        snapshot: bool = True,
    ) -> None:
        """Send a one-way notice."""
        self.say(peer.process_id, _outgoing(NOTICE, 0, service, head, list(frames)))

    def request(
        self,
        peer: Endpoint,
        service: str,
        head: Any,
        frames: Sequence[Buffer] = (),
        *,
        timeout_s: float | None = None,
        reply_type: Any = Any,
    ) -> Promise[Reply]:
        """Not of a durable channel, which has everything itself."""
        del peer, service, head, frames, timeout_s, reply_type
        refused: Promise[Reply] = Promise()
        refused.set_exception(CommError("a durable channel asks nobody"))
        return refused

    def on_peer_lost(self, callback: Callable[[str], None]) -> None:
        """Hear of processes that are gone."""
        self._on_peer_lost.append(callback)

    def off_peer_lost(self, callback: Callable[[str], None]) -> None:
        """Undo `on_peer_lost`."""
        if callback in self._on_peer_lost:
            self._on_peer_lost.remove(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call a method, or a `partial` of one with arguments that can be written down, after a delay."""
        timer = _JournaledTimer(callback, self._now + delay_s, _key_of(callback), self._forget_timer)
        self._timers.setdefault(timer.key, deque()).append(timer)
        if self._live:
            self._arm(timer)
        return timer

    def _forget_timer(self, timer: _JournaledTimer) -> None:
        timers = self._timers.get(timer.key, deque())
        if timer in timers:
            timers.remove(timer)
        if not timers:
            self._timers.pop(timer.key, None)

    def submit(self, callback: Callable[[], None]) -> None:
        """Call soon. At the end of the turn."""
        self._submitted.append(callback)

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call whenever a descriptor is readable."""
        self._messenger.watch(descriptor, callback)

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`."""
        self._messenger.unwatch(descriptor)

    def transports(self) -> dict[str, str]:
        """How each process is reached."""
        return self._messenger.transports()

    def condition(self, process_id: str) -> str:
        """How it stands with a process."""
        if self._live and process_id in self.names and process_id not in self._present:
            return "not heard of since the channel was started again"
        return self._messenger.condition(process_id)

    # -- what it comes to again ------------------------------------------------------------------

    def replay(self, commit: JournaledCommit, frames: list[Buffer]) -> None:
        """Tell the server what an earlier process was told.

        Raises:
            msgspec.DecodeError: it was told so in another version of what clients say.
        """
        came = (record for record in commit.records if isinstance(record, ReceivedEnvelope))
        heads = deque(self._read_head(record.envelope) for record in came)
        self._apply(commit, frames, heads)

    def look(self) -> tuple[WorldRecord, list[list[list[Buffer]]]]:
        """What is here between two turns, and the frames of what is kept for each client."""
        lines, frames = [], []
        for client, (heard, num_said, kept) in self.streams.contents().items():
            about = client, self.names[client], self.lines[client], heard, num_said
            lines.append(ClientStream(*about, [(number, outgoing.envelope, []) for number, outgoing in kept]))
            frames.append([outgoing.frames for _, outgoing in kept])
        timers = [
            (str(timer.key[0]), list(timer.key[1:]), timer.due)
            for timers in self._timers.values()
            for timer in timers
        ]
        return WorldRecord(lines, self.epoch, self.job, self._now, timers), frames

    def load(self, read: LoadedSnapshot) -> None:
        """Take what `look` gave, from a snapshot."""
        world = read.world
        for client, name, line, heard, num_said, kept in world.lines:
            outgoings = [
                (number, OutgoingEnvelope(envelope, [read.frames[n] for n in its]))
                for number, envelope, its in kept
            ]
            self.streams.load(client, heard, num_said, outgoings)
            self.names[client], self.lines[client] = name, line
        self.epoch, self.job, self._now = world.epoch, world.job, world.now

    def resume_timers(self, dues: list[tuple[str, list[Any], float]]) -> None:
        """Let timers that a server has started anew, from a snapshot, ring when those would have rung."""
        for key, timers in self._timers.items():
            of_it = (due for name, args, due in dues if (name, *args) == key)
            for timer, due in zip(timers, of_it, strict=False):
                timer.due = due

    def go_live(self, job: str) -> None:
        """Hear clients from now on; in another job than before, those of that are gone."""
        self._clock_base = self._now - self._messenger.now()
        self._live = True
        self._outbox.clear()
        self._to_tell.clear()
        for timers in self._timers.values():
            for timer in timers:
                self._arm(timer)
        self._note(HoldingBegun(self.epoch + 1, job))
        self._commit()
        if self._stopped:
            return
        self._messenger.on_peer_lost(self._note_lost)
        self._messenger.serve(self._line, self._hear, streams.FindServer | streams.Said)
        self._messenger.call_later(RETURN_S, self._give_up_absent)

    def stop(self, reason: str, *, returns: bool) -> None:
        """Hear nothing any more, and say so to those who are there."""
        if self._stopped:
            return
        self._flush()
        self._stopped = True
        self._messenger.off_peer_lost(self._note_lost)
        self._messenger.unserve(self._line)
        for timer in [timer for timers in self._timers.values() for timer in timers]:
            timer.cancel()
        for endpoint in self._present.values():
            self._messenger.notify(endpoint, self._told, streams.Left(reason, returns))

    # -- what comes ------------------------------------------------------------------------------

    def _hear(self, request: Request) -> None:
        message: streams.FindServer | streams.Said = request.head
        client = request.peer_id
        if isinstance(message, streams.FindServer):
            request.check_claim(
                message.endpoint.process_id, f"it is the client '{message.endpoint.process_id}'"
            )
            self._on_look_up(request, message)
        elif client in self._present and self.streams.take(client, message.number):
            envelope = message.envelope
            try:
                self._heads.append(self._read_head(envelope))
            except msgspec.DecodeError as error:
                # What is written down can be read: by this version, and again by whoever holds the channel next.
                logger.warning("'%s' said to '%s' what cannot be read: %s", client, envelope.service, error)
                envelope = StreamEnvelope(envelope.kind, envelope.ident, UNREADABLE, envelope.head)
                self._heads.append(None)
            sizes = [len(frame) for frame in request.frames]
            self._pending_frames.extend(request.frames)
            came = ReceivedEnvelope(client, message.number, message.heard, envelope, sizes)
            self._note(came, lazily=not message.waits)

    def _read_head(self, envelope: StreamEnvelope) -> Any:
        _, message_type = self._services.get(envelope.service, (None, Any))
        return decode_head(envelope.head, message_type)

    def _on_look_up(self, request: Request, look_up: streams.FindServer) -> None:
        client = request.peer_id
        is_known = self.streams.knows(client)
        if is_known and self.lines[client] != look_up.line:
            # Its process has begun anew with this channel.
            self._note(ClientLost(client))
            is_known = False
        if not is_known:
            if look_up.begun:
                request.reply(streams.Found(0, self.epoch, lost=True))
                return
            self._note(ClientJoined(client, request.peer_name, look_up.line))
        # Behind what has come before it.
        self._looking.append((request, look_up))
        self._commit_soon()

    def _welcome(self, request: Request, look_up: streams.FindServer) -> None:
        client = request.peer_id
        resumption = self.streams.resume(client, look_up.heard, begun=look_up.begun)
        if resumption is None or self.lines.get(client) != look_up.line:
            request.reply(streams.Found(0, self.epoch, lost=True))
            return
        if request.is_cancelled:
            self._note_lost(client)
            return
        self._present[client] = look_up.endpoint
        request.reply(streams.Found(resumption.heard, self.epoch))
        again: Any = resumption.again
        for number, outgoing in again:
            self._send(client, number, outgoing)

    def _note_lost(self, process_id: str) -> None:
        self._present.pop(process_id, None)
        if self.streams.knows(process_id):
            self._note(ClientLost(process_id))

    def _give_up_absent(self) -> None:
        for client in self.streams.clients:
            if client not in self._present:
                self._note_lost(client)

    def _arm(self, timer: _JournaledTimer) -> None:
        if timer.callback is not None:
            left_s = max(0.0, timer.due - (self._clock_base + self._messenger.now()))
            timer.real = self._messenger.call_later(left_s, partial(self._on_time, timer))

    def _on_time(self, timer: _JournaledTimer) -> None:
        if timer.callback is not None and not self._stopped:
            name, *args = timer.key
            self._note(Fired(name, args))

    # -- turns -----------------------------------------------------------------------------------

    def _note(self, record: Record, *, lazily: bool = False) -> None:
        self._pending.append(record)
        if not lazily:
            self._commit_soon()
        elif not (self._lazy_due or self._commit_due):
            self._lazy_due = True
            self._messenger.call_later(LAZY_S, self._commit_lazily)

    @property
    def _is_over(self) -> bool:
        return self._stopped or self.withholds

    def _commit_soon(self) -> None:
        """When everything at hand has been read."""
        if not self._commit_due:
            self._commit_due = True
            self._messenger.submit(self._commit)

    def _commit_lazily(self) -> None:
        self._lazy_due = False
        self._commit()

    def settle(self) -> None:
        """Let everything happen now that has come; for reports, the clock goes on."""
        if self._pending:
            self._commit()
        self._now = self._clock_base + self._messenger.now()

    def _commit(self) -> None:
        """Write down what has come, then let it happen."""
        self._commit_due = False
        if self._is_over:
            return
        records, self._pending = self._pending, []
        frames, self._pending_frames = self._pending_frames, []
        heads, self._heads = self._heads, deque()
        if records:
            commit = JournaledCommit(self._clock_base + self._messenger.now(), records)
            try:
                self._journal.append(_encode(commit), frames)
            except OSError as error:
                self._on_failed(error)
                return
            self._apply(commit, frames, heads)
        if self.withholds:
            return
        looking, self._looking = self._looking, []
        self._flush()
        for request, look_up in looking:
            self._welcome(request, look_up)
        if records and not self._stopped:
            self._on_commit()

    def _apply(self, commit: JournaledCommit, frames: list[Buffer], heads: deque[Any]) -> None:
        self._now = commit.now
        position = 0
        for record in commit.records:
            match record:
                case ReceivedEnvelope():
                    its_frames = frames[position : position + len(record.sizes)]
                    position += len(record.sizes)
                    self._to_tell[record.client] = None
                    head = heads.popleft()
                    if self.streams.apply(record.client, record.number, record.heard):
                        self._hand_on(record, head, its_frames)
                case Fired(name, args):
                    self._ring((name, *args))
                case ClientJoined():
                    self._join(record)
                case ClientLost(client):
                    self._lose(client)
                case HoldingBegun():
                    self._open(record)
        while self._submitted:
            run_guarded(self._submitted.popleft())

    def _join(self, joined: ClientJoined) -> None:
        self.streams.join(joined.client)
        self.names[joined.client], self.lines[joined.client] = joined.name, joined.line

    def _open(self, opened: HoldingBegun) -> None:
        if opened.job != self.job:
            for client in self.streams.clients:
                self._lose(client)
        self.epoch, self.job = opened.epoch, opened.job

    def _hand_on(self, came: ReceivedEnvelope, head: Any, frames: list[Buffer]) -> None:
        service = came.envelope.service
        handler, _ = self._services.get(service, (None, None))
        request = JournaledRequest(self, came, frames)
        if handler is None:
            request.fail(CommError(f"the channel's server does not serve '{service}'"))
            return
        request.head = head
        try:
            handler(request)
        except Exception as error:
            if not request.fail(error):
                logger.exception("a message to '%s' failed", service)

    def _ring(self, key: tuple[Any, ...]) -> None:
        # It may have been put off, or cancelled, by what came just before.
        due = [timer for timer in self._timers.get(key, ()) if timer.due <= self._now + EARLY_S]
        callback = due[0].callback if due else None
        if callback is not None:
            due[0].cancel()
            run_guarded(callback)

    def _lose(self, client: str) -> None:
        self.streams.lose(client)
        self.names.pop(client, None)
        self.lines.pop(client, None)
        self._to_tell.pop(client, None)
        for callback in list(self._on_peer_lost):
            run_guarded(callback, client)

    # -- what is told ----------------------------------------------------------------------------

    def say(self, client: str, outgoing: OutgoingEnvelope) -> None:
        """Tell a client something, as soon as it is there."""
        number = self.streams.say(client, outgoing)
        if number is not None and self._live:
            self._outbox.append((client, number, outgoing))

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        to_tell, self._to_tell = self._to_tell, {}
        for client, number, outgoing in outbox:
            to_tell.pop(client, None)
            self._send(client, number, outgoing)
        for client in to_tell:
            self._send(client, 0, _NOTHING)

    def _send(self, client: str, number: int, outgoing: OutgoingEnvelope) -> None:
        endpoint = self._present.get(client)
        if endpoint is not None:
            told = streams.Told(number, self.streams.heard(client), outgoing.envelope)
            self._messenger.notify(endpoint, self._told, told, outgoing.frames, snapshot=False)


def _outgoing(kind: int, ident: int, service: str, head: Any, frames: list[Buffer]) -> OutgoingEnvelope:
    return OutgoingEnvelope(
        StreamEnvelope(kind, ident, service, msgspec.Raw(encode_head(service, head, len(frames)))), frames
    )


_NOTHING = _outgoing(HEARD, 0, "", None, [])


def _key_of(callback: Callable[[], None]) -> tuple[Any, ...]:
    """Return what a timer calls, in words that another process understands."""
    function, args = (callback.func, callback.args) if isinstance(callback, partial) else (callback, ())
    return getattr(function, "timer_name", function.__qualname__), *args
