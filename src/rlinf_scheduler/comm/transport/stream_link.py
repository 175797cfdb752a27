"""One connection of a session, once both sides know each other: writes what the session has, reads what comes."""

from __future__ import annotations

import math
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

from rlinf_scheduler.comm import framing
from rlinf_scheduler.comm.framing import (
    DIRECT_BYTES,
    MAX_CONTROL_BYTES,
    PREFIX_BYTES,
    Buffer,
    Envelope,
    Message,
    ProtocolError,
    allocate,
    own,
    parse_control,
)
from rlinf_scheduler.comm.loop import FINISHED, READABLE, WRITABLE, IoLoop, Timer
from rlinf_scheduler.comm.transport.opening import close_quietly, code_of
from rlinf_scheduler.comm.transport.peer_session import ACK_DELAY_S, PeerSession, PeerSessionError
from rlinf_scheduler.comm.transport.receive_buffers import SCRATCH_BYTES, ReceiveBuffers

# The kernel takes 1024 (IOV_MAX) pieces a call.
MAX_PIECES = 512
# So much is taken from the session at a time; more would only be counted as sent earlier.
FILL_BYTES = 1 << 20
# OpenSSL wants to be called again with the same bytes when it could not write them all.
TLS_CHUNK_BYTES = 256 << 10
# One connection may take this much of the thread's time before the others get their turn.
MAX_BYTES_PER_TURN = 16 << 20
# What nobody waits for is written with what comes next, or so much later.
LATE_S = 0.005
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class LinkEvents(Protocol):
    """Who hears of a link, on the I/O thread."""

    def places_for(self, envelope: Envelope) -> Sequence[memoryview]:
        """Where the frames of a message that has begun to arrive go; nothing if they are to get new memory."""

    def on_messages(self, messages: list[Message]) -> None:
        """Messages arrived, in order."""

    def on_cut(self, link: StreamLink, reason: str, *, for_good: bool) -> None:
        """The connection ended; nothing comes after this. `for_good`: what comes could never be taken."""


class StreamLink:
    """A connection that belongs to a session; on the I/O thread.

    Args:
        connection: its socket, which never blocks.
        session: whose messages it carries.
        events: who hears of it.
        buffers: what all links receive into.
    """

    def __init__(
        self,
        loop: IoLoop,
        connection: socket.socket,
        session: PeerSession[list[Buffer]],
        events: LinkEvents,
        buffers: ReceiveBuffers,
    ) -> None:
        self.connection = connection
        self._secure = connection if isinstance(connection, ssl.SSLSocket) else None
        self._loop = loop
        self._session = session
        self._events = events
        self._scratch = buffers.scratch
        self._reader = StreamReader(buffers.allocate, events.places_for)
        self._pieces: deque[Buffer] = deque()
        self._chunk: Buffer = b""  # what TLS is writing
        self._watching_writes = False
        self._closed = False
        self._acknowledge = False
        self._ack_timer: Timer | None = None
        self._late_timer: Timer | None = None
        self._reading_on = False
        loop.register(connection.fileno(), READABLE, self._on_ready)
        # What TLS has read ahead does not show on the descriptor.
        self._read_on()

    # -- writing ---------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what the session has, until the kernel takes no more."""
        try:
            while not self._closed:
                if not self._pieces and not self._chunk and not self._fill():
                    self._watch_writes(False)
                    return
                if self._secure is None:
                    self._write_plain()
                else:
                    self._write_secure(self._secure)
        except _LATER:
            self._watch_writes(True)
        except OSError as error:
            # What can still be read is read first; it is with every end.
            reason = f"writing to it failed ({code_of(error)})"
            self._loop.submit(lambda: self._end(reason))

    @property
    def idle(self) -> bool:
        """Whether everything taken from the session has been handed to the kernel."""
        return not self._pieces and not self._chunk

    def flush_late(self) -> None:
        """Write it with what comes next, or a moment later."""
        if self._late_timer is None:
            self._late_timer = self._loop.call_later(LATE_S, self._flush_late)

    def _flush_late(self) -> None:
        self._late_timer = None
        self.flush()

    def acknowledge_now(self) -> None:
        """Tell the other side what has been received, with the next flush."""
        self._acknowledge = True

    def _fill(self) -> bool:
        if self._acknowledge:
            self._acknowledge = False
            number = self._session.acknowledgement()
            if number is not None:
                self._pieces.extend(framing.pack(framing.ACK, number, "", None))
        size = 0
        while size < FILL_BYTES and len(self._pieces) < MAX_PIECES:
            message = self._session.take()
            if message is None:
                break
            self._pieces.extend(message)
            size += sum(map(len, message))
        return bool(self._pieces)

    def _write_plain(self) -> None:
        pieces = self._pieces
        if len(pieces) == 1:
            sent = self.connection.send(pieces[0])
        else:
            sent = self.connection.sendmsg([pieces[i] for i in range(min(len(pieces), MAX_PIECES))])
        while sent:
            first = pieces[0]
            if sent < len(first):
                pieces[0] = memoryview(first)[sent:]
                return
            sent -= len(first)
            pieces.popleft()

    def _write_secure(self, connection: ssl.SSLSocket) -> None:
        if not self._chunk:
            self._chunk = self._next_chunk()
        sent = connection.send(self._chunk)
        self._chunk = memoryview(self._chunk)[sent:] if sent < len(self._chunk) else b""

    def _next_chunk(self) -> Buffer:
        """The next bytes to seal: a part of a large piece, or small ones joined."""
        pieces = self._pieces
        first = pieces[0]
        if len(first) > TLS_CHUNK_BYTES:
            pieces[0] = memoryview(first)[TLS_CHUNK_BYTES:]
            return memoryview(first)[:TLS_CHUNK_BYTES]
        joined = [pieces.popleft()]
        size = len(first)
        while pieces and size + len(pieces[0]) <= TLS_CHUNK_BYTES:
            size += len(pieces[0])
            joined.append(pieces.popleft())
        return joined[0] if len(joined) == 1 else b"".join(joined)

    def _watch_writes(self, wanted: bool) -> None:
        if wanted != self._watching_writes and not self._closed:
            self._watching_writes = wanted
            self._loop.modify(self.connection.fileno(), READABLE | WRITABLE if wanted else READABLE)

    # -- reading ---------------------------------------------------------------------------------

    def _on_ready(self, events: int) -> None:
        if events & WRITABLE:
            self.flush()
        if events & (READABLE | FINISHED):
            self._receive()

    def _receive(self, budget_bytes: float = MAX_BYTES_PER_TURN) -> None:
        messages: list[Message] = []
        reason, impossible = "", ""
        num_bytes = 0
        try:
            num_bytes, reason = self._read(messages, budget_bytes)
        except ProtocolError as error:
            impossible = f"it sent bytes that are no message: {error}"
        except (MemoryError, ValueError) as error:  # numpy's, of a size that nothing could have
            impossible = f"it sent more than there is room for: {error}"
        if messages:
            try:
                self._deliver(messages, num_bytes)
            except PeerSessionError as error:
                impossible = str(error)
        if reason or impossible:
            self._cut(impossible or reason, for_good=bool(impossible))
        elif num_bytes >= budget_bytes:
            self._read_on()

    def _read_on(self) -> None:
        if self._secure is not None and not self._reading_on:
            self._reading_on = True

            def read_on() -> None:
                self._reading_on = False
                self._receive()

            self._loop.submit(read_on)

    def _read(self, messages: list[Message], budget_bytes: float) -> tuple[int, str]:
        """Read what there is: how much it was, and the reason if that was the end."""
        num_bytes = 0
        try:
            while num_bytes < budget_bytes and not self._closed:
                target = self._reader.target()
                count = self.connection.recv_into(self._scratch if target is None else target)
                if count == 0:
                    return num_bytes, "its connection closed"
                num_bytes += count
                if target is not None:
                    self._reader.advance(count, messages)
                    continue
                self._reader.feed(self._scratch[:count], messages)
                if count < SCRATCH_BYTES and self._secure is None and self._reader.target() is None:
                    break
        except _LATER:
            return num_bytes, ""
        except OSError as error:
            return num_bytes, f"its connection broke ({code_of(error)})"
        return num_bytes, ""

    def _deliver(self, messages: list[Message], num_bytes: int) -> None:
        numbered = []
        for message in messages:
            if message.envelope.kind == framing.ACK:
                self._session.acknowledge(message.envelope.ident)
            else:
                numbered.append(message)
        if not numbered:
            return
        # Counted first: whatever the handlers do, from here on they have them.
        if self._session.receive(len(numbered), num_bytes):
            self._acknowledge = True
        elif self._ack_timer is None:
            # With those of all other links: a job's home has one to each process.
            self._ack_timer = self._loop.call_at_tick(ACK_DELAY_S, self._acknowledge_late)
        self._events.on_messages(numbered)
        if self._acknowledge:
            self.flush()

    def _acknowledge_late(self) -> None:
        self._ack_timer = None
        if not self._closed:
            self._acknowledge = True
            self.flush()

    # -- the end ---------------------------------------------------------------------------------

    def _end(self, reason: str) -> None:
        if not self._closed:
            self._receive(math.inf)
            self._cut(reason)

    def _cut(self, reason: str, *, for_good: bool = False) -> None:
        if not self._closed:
            self.close()
            self._events.on_cut(self, reason, for_good=for_good)

    def close(self) -> None:
        """Drop the connection; nothing is read from it any more."""
        if self._closed:
            return
        self._closed = True
        for timer in (self._ack_timer, self._late_timer):
            if timer is not None:
                timer.cancel()
        self._loop.unregister(self.connection.fileno())
        self._pieces.clear()
        close_quietly(self.connection)

    def abandon(self) -> None:
        """Close the descriptor in a forked child; its parent's connection goes on."""
        self._closed = True
        close_quietly(self.connection)


class StreamReader:
    """Turns a stream of bytes, cut anywhere, back into messages. No byte is copied more than once.

    Args:
        allocate: gives writable memory of so many bytes.
        places_for: see `LinkEvents`.
    """

    __slots__ = (
        "_allocate",
        "_envelope",
        "_filled",
        "_frames",
        "_places",
        "_places_for",
        "_prefix",
        "_target",
    )

    def __init__(
        self,
        allocate: Callable[[int], memoryview] = allocate,
        places_for: Callable[[Envelope], Sequence[memoryview]] = lambda _envelope: (),
    ) -> None:
        self._allocate = allocate
        self._places_for = places_for
        self._places: Sequence[memoryview] = ()
        self._prefix = b""
        self._envelope: Envelope | None = None
        self._frames: list[Buffer] = []
        self._target: memoryview | None = None  # of the part that has only begun to arrive
        self._filled = 0

    def target(self) -> memoryview | None:
        """Where the next bytes of the stream may be received directly, if a large part is arriving."""
        self._leave_places()
        if self._target is None or len(self._target) - self._filled < DIRECT_BYTES:
            return None
        return self._target[self._filled :]

    def advance(self, count: int, out: list[Message]) -> None:
        """Say that `count` bytes were received into `target()`; whole messages are appended to `out`.

        Raises:
            ProtocolError: this is no stream of messages.
        """
        self._filled += count
        if self._target is not None and self._filled == len(self._target):
            self._finish_target(self._target, out)

    def feed(self, data: memoryview, out: list[Message]) -> None:
        """Take the next bytes of the stream; whole messages are appended to `out`.

        Args:
            data: the bytes; they are copied, so the memory may be used again.
            out: where messages go.

        Raises:
            ProtocolError: this is no stream of messages.
        """
        self._leave_places()
        position, available = 0, len(data)
        while position < available:
            if self._target is not None:
                count = min(len(self._target) - self._filled, available - position)
                self._target[self._filled : self._filled + count] = data[position : position + count]
                position += count
                self.advance(count, out)
            elif self._envelope is None:
                position = self._begin_control(data, position, out)
            else:
                position = self._take_frames(self._envelope, data, position, out)

    def _leave_places(self) -> None:
        """Receive elsewhere what nobody wants any more: its places may be of other objects by now."""
        if self._places and self._envelope is not None and not self._places_for(self._envelope):
            self._places = ()
            if self._target is not None:
                self._target = self._allocate(len(self._target))

    def _begin_control(self, data: memoryview, position: int, out: list[Message]) -> int:
        if self._prefix or len(data) - position < PREFIX_BYTES:
            taken = data[position : position + PREFIX_BYTES - len(self._prefix)]
            self._prefix += bytes(taken)
            position += len(taken)
            if len(self._prefix) < PREFIX_BYTES:
                return position
            length = int.from_bytes(self._prefix, "little")
            self._prefix = b""
        else:
            length = int.from_bytes(data[position : position + PREFIX_BYTES], "little")
            position += PREFIX_BYTES
        if length > MAX_CONTROL_BYTES:
            message = f"a control part of {length} bytes"
            raise ProtocolError(message)
        if position + length <= len(data):
            self._begin_message(bytes(data[position : position + length]), out)
            return position + length
        self._target, self._filled = allocate(length), 0
        return position

    def _begin_message(self, control: bytes, out: list[Message]) -> None:
        self._envelope = envelope = parse_control(control)
        self._places = self._places_for(envelope) if envelope.sizes else ()
        self._go_on(out)

    def _take_frames(self, envelope: Envelope, data: memoryview, position: int, out: list[Message]) -> int:
        """Take the next frames, as far as they are here; of one that has only begun, say where it goes."""
        frames, places, available = self._frames, self._places, len(data)
        for size in islice(envelope.sizes, len(frames), None):
            end = position + size
            if end > available:
                place = places[len(frames)] if places else self._allocate(size)
                self._target, self._filled = place, 0
                return position
            if places:
                place = places[len(frames)]
                place[:] = data[position:end]
                frames.append(place)
            else:
                frames.append(own(data[position:end]))
            position = end
        self._go_on(out)
        return position

    def _finish_target(self, target: memoryview, out: list[Message]) -> None:
        self._target = None
        if self._envelope is None:
            self._begin_message(bytes(target), out)
        else:
            self._frames.append(target)
            self._go_on(out)

    def _go_on(self, out: list[Message]) -> None:
        """Take empty frames, and the whole message if that was all."""
        envelope = self._envelope
        if envelope is None:
            return
        sizes, frames = envelope.sizes, self._frames
        while len(frames) < len(sizes):
            if sizes[len(frames)]:
                return
            frames.append(bytearray())
        out.append(Message(envelope, frames))
        self._envelope = None
        self._frames, self._places = [], ()
