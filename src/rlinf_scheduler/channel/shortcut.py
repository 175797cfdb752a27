"""A shortcut: a thread's own socket to a channel's process, for operations that block.

The usual way of an operation leads over the I/O threads of two processes and through the lock that its caller waits
for. A thread that does nothing else meanwhile may as well write to the server and read its answer itself. A shortcut
has no protocol of its own to be broken by an interruption: one datagram goes, one comes, each by a single system call.
Whoever is interrupted in between drops the socket, and the I/O thread asks the server what became of the operation.

A thread comes to one by asking: its server invites it, it connects and says the word that it was given. The server's
end is `features/shortcuts.py`.
"""

from __future__ import annotations

import socket
import struct
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet

import msgspec

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.batch import Delivery
from rlinf_scheduler.channel.connection import USUAL_WAY, BeginAnew, ChannelConnection
from rlinf_scheduler.channel.operation import ChannelOperation
from rlinf_scheduler.channel.refusals import ending_error
from rlinf_scheduler.comm.cancellation import current_scope
from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.codec.interruptions import raised_by_signal_handler
from rlinf_scheduler.comm.forking import on_fork_in_child
from rlinf_scheduler.comm.framing import flat
from rlinf_scheduler.comm.operation import CONFIRM_DELAY_S
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import SLICE_S, Promise
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.observe.timekeeping import TIMES
from rlinf_scheduler.queueing.client import Ending

# The first operations of a thread go the usual way: it may not stay.
MIN_OPERATIONS = 4
# The server's first word: only then anything is sent that would have to be found again.
WELCOME = b"welcome"
# After an answer that came elsewhere, so many gets go the usual way at once.
NUM_SKIPPED = 15

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(wire.DirectAnswer).decode


class OwnedSocket(socket.socket):
    """A datagram socket of this machine that closes without a warning when nobody has it any more.

    A thread that ends, or is interrupted, just drops its own; the other side sees that.
    """

    def __init__(self, fileno: int | None = None) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=fileno)
        self.setblocking(False)
        _owned.add(self)
        on_fork_in_child(_close_inherited)

    def __del__(self) -> None:
        self.close()


_owned: WeakSet[OwnedSocket] = WeakSet()


def _close_inherited() -> None:
    """In a forked child: the parent's go on, and whoever is at their other ends sees when it closes them."""
    for connection in list(_owned):
        connection.close()


class ShortcutBroken(Exception):
    """The other side has closed it, or has said what cannot be."""


class Shortcut:
    """The client's end of it, in the hands of one thread at a time.

    Args:
        connection: a connected datagram socket on which the server knows this process.

    Attributes:
        skips: so many gets are still to go the usual way.
    """

    __slots__ = ("__weakref__", "_connection", "_memory", "_timeout_s", "skips")

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(SLICE_S), 0))
        self._connection = connection
        self._timeout_s: float | None = None
        self._memory = memoryview(bytearray(wire.MAX_DATAGRAM_BYTES))
        self.skips = 0

    def exchange(self, call: bytes, ticket: int, timeout_s: float | None) -> wire.DirectAnswer:
        """Send a call and wait for its answer.

        Args:
            call: the datagram.
            ticket: of its operation.
            timeout_s: how long to wait, in seconds.

        Raises:
            TimeoutError: there is no answer yet.
            ShortcutBroken: there will be none.
        """
        connection = self._connection
        if timeout_s != self._timeout_s:
            # Zero would mean not to wait at all.
            connection.settimeout(timeout_s if timeout_s is None else max(timeout_s, 0.001))
            self._timeout_s = timeout_s
        try:
            connection.send(call)
            count = self._receive()
            answer = _decode(self._memory[:count])
        except (OSError, msgspec.DecodeError) as error:
            if isinstance(error, TimeoutError) or raised_by_signal_handler(error):
                raise
            raise ShortcutBroken(repr(error)) from error
        if answer.answer.ticket != ticket:
            message = f"it answered {answer.answer.ticket} instead of {ticket}"
            raise ShortcutBroken(message)
        return answer

    def _receive(self) -> int:
        while True:
            try:
                return self._connection.recv_into(self._memory)
            except BlockingIOError as error:  # a slice is over
                if self._timeout_s is not None or raised_by_signal_handler(error):
                    raise

    def first_word(self, size_bytes: int) -> bytes:
        """What the server has said before anything was sent; from the I/O thread."""
        with suppress(OSError):
            return self._connection.recv(size_bytes, socket.MSG_DONTWAIT)
        return b""

    def fileno(self) -> int:
        """Its descriptor."""
        return self._connection.fileno()

    def end(self, _over: object = None) -> None:
        """End the wait of its thread: nothing will come; from any thread."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class ShortcutRequest:
    """A thread's request for a shortcut to its I/O thread.

    Attributes:
        num_operations: how often it would have been of use.
        shortcut: it, when it is there.
    """

    __slots__ = ("__weakref__", "num_operations", "shortcut")

    def __init__(self) -> None:
        self.num_operations = 0
        self.shortcut: Shortcut | None = None


class Shortcuts:
    """The shortcuts of the threads of this process to one channel.

    Args:
        connection: the usual way there, for what does not go by a shortcut or does not end by it.
    """

    def __init__(self, connection: ChannelConnection) -> None:
        self._connection = connection
        self._client = connection.client
        self._messenger = connection.client.messenger
        # Each thread's shortcut, or what it has done about one.
        self._own = threading.local()
        # The rest is the I/O thread's.
        self._is_over = False
        self._open: WeakSet[Shortcut] = WeakSet()
        self._client.on_lost.append(self._end)

    # -- a user's thread -------------------------------------------------------------------------

    def run(self, operation: ChannelOperation, encoded: Encoded | None) -> Any:
        """Run an operation until it is over, and return what it brings; or `USUAL_WAY`, and nothing has happened.

        Raises:
            ChannelError: what it failed with.
            BeginAnew: it has put or taken nothing.
        """
        shortcut = self._take(operation)
        call = None if shortcut is None else self._call(shortcut, operation, encoded)
        if shortcut is None or call is None:
            return USUAL_WAY
        operation.is_direct = True
        if operation.kind != "put":
            # Known before it goes: what it brings is confirmed, or goes back.
            self._client.direct.append(operation)
            if not self._client.deliveries.looks_soon:
                self._client.wake()
        began = TIMES.now()
        answer = _answer_by(shortcut, call, operation)
        said = None if answer is None else answer.answer
        by = said.by if type(said) is wire.Delivered else ""
        TIMES.note_wait(began, self._connection.cause(operation), by)
        if answer is None:
            return self._wait_for_outcome(operation)
        self._own.__dict__["shortcut"] = shortcut
        if type(said) is wire.Accepted:
            return None
        return self._read(answer, shortcut, operation)

    def _take(self, operation: ChannelOperation) -> Shortcut | None:
        """This thread's shortcut, to be given back; None if it has none, or the operation is not one for it."""
        # Out of everybody's hands: a signal handler that comes now finds none.
        own = self._own.__dict__
        shortcut: Shortcut | None = own.pop("shortcut", None)
        if shortcut is None:
            return self._ask_for_one(own)
        if shortcut.skips and operation.kind != "put":
            shortcut.skips -= 1
            own["shortcut"] = shortcut
            return None
        return shortcut

    def _ask_for_one(self, own: dict[str, Any]) -> Shortcut | None:
        # Out of everybody's hands, too.
        request: ShortcutRequest = own.pop("request", None) or ShortcutRequest()
        if request.shortcut is not None:
            return request.shortcut
        own["request"] = request
        request.num_operations += 1
        if request.num_operations == MIN_OPERATIONS:
            self._client.hand_over(self._begin, request)
        return None

    def _call(self, shortcut: Shortcut, operation: ChannelOperation, encoded: Encoded | None) -> bytes | None:
        """What to send by a shortcut; None, and the shortcut is given back, if it has to go the usual way."""
        call = None
        frames: list[Any] | None = []
        if encoded is not None:
            frames = self._frames(operation, encoded)
        after = self._client.sent_before()
        opening = operation.opening(0 if frames is None else len(frames))
        if after is not None and frames is not None and isinstance(opening, wire.Put | wire.Get):
            call = _encode(wire.Direct(after, opening, frames))
        if call is None or len(call) > wire.MAX_DATAGRAM_BYTES:
            self._own.__dict__["shortcut"] = shortcut
            return None
        return call

    def _frames(self, operation: ChannelOperation, encoded: Encoded) -> list[Any] | None:
        client = self._client
        stays = client.on_devices is not None and client.on_devices.is_worth_it(encoded)
        if encoded.size_bytes <= wire.DIRECT_BYTES and not stays:
            return [flat(frame) for frame in encoded.frames()]
        self._connection.pack(operation, encoded, blocks=True)
        payload = operation.payload
        if payload is None or not payload.goes_as_descriptor(client.ref.endpoint):
            return None
        return payload.frames_for(client.ref.endpoint)

    def _read(self, answer: wire.DirectAnswer, shortcut: Shortcut, operation: ChannelOperation) -> Any:
        """Return what a shortcut's answer brings, or raise what it says."""
        client = self._client
        match answer.answer:
            case wire.Delivered() as delivered:
                if operation.waited_s > CONFIRM_DELAY_S:
                    # It came after a while: nothing may follow soon that the confirmation could travel with.
                    client.hand_over(client.deliveries.wake, None)
                if len(delivered.num_frames) != 1:
                    return Delivery.of_frames(delivered, answer.frames)
                items = Delivery((ReceivedPayload([*answer.frames]),))  # as mostly
                items.told = delivered
                return items
            case wire.Elsewhere():
                shortcut.skips = NUM_SKIPPED
                return self._connection.wait(operation, client.expect)
            case wire.Refused(_, reason, state):
                operation.taken = True
                raise ending_error(client.name, operation, Ending.REFUSED, (reason, state))
            case wire.Again(_, problem):
                self._messenger.payloads.distrust(client.ref.endpoint.process_id, problem)
                raise BeginAnew

    def _wait_for_outcome(self, operation: ChannelOperation) -> Any:
        try:
            return self._connection.wait(operation, self._client.query_outcome)
        except CancelledError as error:
            if raised_by_signal_handler(error):
                raise
            raise BeginAnew from None

    # -- the I/O thread --------------------------------------------------------------------------

    def _begin(self, request: ShortcutRequest) -> None:
        """Get a shortcut for a thread, unless what arrives here is held back: nothing would be on its way past that."""
        if self._is_over or self._messenger.arrivals is not None:
            return
        invited: Promise[Reply] = Promise()
        invited.add_done_callback(partial(self._on_invited, request))
        # Without a deadline: a thread asks once, and the server may stand still now.
        about = control_wire.Invitation, "invite", None
        self._client.requests.send_at_once(control_wire.Invite(), *about, invited)

    def _end(self) -> None:
        """The server is gone: break all of them, and open no more."""
        self._is_over = True
        for shortcut in list(self._open):
            shortcut.end()

    def _on_invited(self, request: ShortcutRequest, reply: Promise[Reply]) -> None:
        if self._is_over or reply.exception() is not None or not reply.result().head.path:
            return
        shortcut = _dial(reply.result().head)
        if shortcut is not None:
            self._open.add(shortcut)
            # It hears the server's first word, or its end, soon.
            self._messenger.watch(shortcut.fileno(), partial(self._on_welcome, shortcut, request))

    def _on_welcome(self, shortcut: Shortcut, request: ShortcutRequest) -> None:
        self._messenger.unwatch(shortcut.fileno())
        if shortcut.first_word(len(WELCOME)) == WELCOME:
            request.shortcut = shortcut


def _dial(invitation: control_wire.Invitation) -> Shortcut | None:
    """Follow an invitation; None if nobody is there. Never blocks."""
    connection = OwnedSocket()
    try:
        connection.connect(invitation.path)
        connection.send(invitation.token)
    except OSError:
        return None
    return Shortcut(connection)


def _answer_by(shortcut: Shortcut, call: bytes, operation: ChannelOperation) -> wire.DirectAnswer | None:
    """Return the answer to a call; None: it is late, or the shortcut broke, as when the thread's call is cancelled."""
    scope, draining = current_scope(), operation.draining
    try:
        if scope is None and draining is None:
            return shortcut.exchange(call, operation.ticket, operation.left_s)
        try:
            if draining is not None:
                draining.add_done_callback(shortcut.end)
            if scope is not None:
                scope.begin_wait(shortcut.end)
            return shortcut.exchange(call, operation.ticket, operation.left_s)
        finally:
            if scope is not None:
                scope.end_wait(shortcut.end)
            if draining is not None:
                draining.remove_done_callback(shortcut.end)
    except (TimeoutError, ShortcutBroken) as error:
        if raised_by_signal_handler(error):
            raise
        return None
