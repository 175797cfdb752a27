"""The shell around a session: dials, adopts connections and keeps time, as the session decides."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer, Envelope, Message
from rlinf_scheduler.comm.loop import IoLoop, Timer
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.transport.handshake import HandshakeError, Introduction
from rlinf_scheduler.comm.transport.opening import Opening, close_quietly, code_of
from rlinf_scheduler.comm.transport.peer_session import (
    CONNECT_TIMEOUT_S,
    Decision,
    Hello,
    Loss,
    PeerSession,
    PeerSessionError,
    State,
    Welcome,
)
from rlinf_scheduler.comm.transport.sockets import SILENCE_S, Sockets, silence_of
from rlinf_scheduler.comm.transport.stream_link import StreamLink

logger = Reporter(__name__)


class TransportEvents(Protocol):
    """Who hears of a transport, on the I/O thread."""

    def on_connected(self, transport: PeerTransport) -> None:
        """There is a connection, the first or another."""

    def places_for(self, envelope: Envelope) -> Sequence[memoryview]:
        """Where the frames of a message that has begun to arrive go; nothing if they are to get new memory."""

    def on_messages(self, messages: list[Message]) -> None:
        """Messages arrived, in order."""

    def on_dead(self, transport: PeerTransport, reason: str, loss: Loss) -> None:
        """The other process is gone; nothing comes after this."""


class PeerTransport:
    """What connects this process to one other, across any number of connections; on the I/O thread.

    Args:
        sockets: makes and accepts connections.
        endpoint: the other process.
        events: who hears of it.
        grace_s: how long the other may be unreachable before it counts as dead.

    Attributes:
        session: what is said over it.
        link: the connection that stands now.
        name: what the other process calls itself; "" until it said so.
    """

    def __init__(
        self, loop: IoLoop, sockets: Sockets, endpoint: Endpoint, events: TransportEvents, grace_s: float
    ) -> None:
        self.endpoint = endpoint
        self.name = ""
        self.link: StreamLink | None = None
        self.session: PeerSession[list[Buffer]] = sockets.new_session(endpoint.process_id, grace_s)
        self._loop = loop
        self._sockets = sockets
        self._events = events
        self.places_for = events.places_for
        self._attempt: Opening[Introduction] | None = None
        self._attempt_timer: Timer | None = None
        self._timer: Timer | None = None
        self._timer_at: float | None = None
        self._leaving = False
        # Of the connection that was accepted last, until it can be used.
        self._welcome: Welcome | None = None
        # What the kernel hears over the connection that stands does not count any more.
        self._doubted = False

    @property
    def kind(self) -> str:
        """How the other process is reached: "unix", "tcp+tls" or "tcp"."""
        return self._sockets.kind(self.endpoint)

    @property
    def num_sent(self) -> int:
        """How many messages were handed over, the last of them having that number."""
        return self.session.num_queued

    def send(self, pieces: list[Buffer], *, late: bool = False) -> None:
        """Queue the pieces of a message; they leave with what else is sent in this round, or a moment later."""
        self.session.send(pieces)
        if self.link is not None:
            if late:
                self.link.flush_late()
            else:
                self._sockets.flush_soon(self.link)

    def leave(self, goodbye: list[Buffer]) -> None:
        """Send a last message; no connection is made any more."""
        self._leaving = True
        self.send(goodbye)

    def poll(self) -> None:
        """Do what the session decides; after everything that happens to it."""
        if self._leaving:
            return
        now = self._loop.now()
        decision = self.session.decide(now)
        if decision is Decision.DIAL:
            self._dial(now)
        elif decision is Decision.END:
            self.close()
            self._events.on_dead(self, self._reason(), self.session.loss or Loss.BROKEN)
            return
        self._set_timer(now)

    def _reason(self) -> str:
        """Why the other is dead; with its machine's address where that cannot be reached."""
        if self.session.loss is not Loss.UNREACHABLE or self.kind == "unix":
            return self.session.reason
        host = self.endpoint.tcp_address.removeprefix("tcp://").rpartition(":")[0]
        return f"{self.session.reason} ({host})"

    def _set_timer(self, now: float) -> None:
        at = self.session.wake_at()
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = None if at is None else self._loop.call_later(max(0.0, at - now), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_at = None
        self.poll()

    # -- dialling --------------------------------------------------------------------------------

    def _dial(self, now: float) -> None:
        self.session.dial(now)
        attempt: Opening[Introduction] | None = None

        def hello() -> Hello:
            if attempt is not self._attempt:
                raise HandshakeError("another connection came first")
            self._drop_link()
            return self.session.hello(self._loop.now())

        def opened(connection: socket.socket, answer: Introduction) -> None:
            if attempt is not self._attempt:
                close_quietly(connection)
                return
            self._forget_attempt()
            self._greet(connection, answer)

        def failed(reason: str, final: bool) -> None:
            if attempt is self._attempt:
                self._forget_attempt()
                self.session.dial_failed(self._loop.now(), reason, ended=final)
                self._loop.submit(self.poll)

        def reached() -> None:
            if attempt is self._attempt:
                self._stop_attempt_timer()
                self.session.reached(self._loop.now())
                self._watch()

        try:
            attempt = self._attempt = self._sockets.opening(self.endpoint, hello, opened, failed)
        except OSError as error:  # out of descriptors, most likely; it is tried again
            self.session.dial_failed(now, f"there is no socket to be had for it ({code_of(error)})")
            return
        self._attempt_timer = self._loop.call_later(CONNECT_TIMEOUT_S, partial(self._on_no_answer, attempt))
        self._sockets.connect(attempt, self.endpoint, reached)

    def _on_no_answer(self, attempt: Opening[Introduction]) -> None:
        if not attempt.is_answered():  # else it is this process that is late
            attempt.fail("its machine does not answer")

    def _greet(self, connection: socket.socket, answer: Introduction) -> None:
        self.name = answer.name
        try:
            taken = answer.welcome is not None and self.session.welcomed(answer.welcome, self._loop.now())
        except PeerSessionError as error:
            self.session.left(str(error))
            taken = False
        if taken:
            self.adopt(connection)
        else:
            close_quietly(connection)
            # In a round of its own: what was dialled is dialled again only after others had their turn.
            self._loop.submit(self.poll)

    def _forget_attempt(self) -> None:
        """Let an attempt that is of no use any more run to where its other side knows us; it ends there."""
        self._stop_attempt_timer()
        self._attempt = None

    def _stop_attempt_timer(self) -> None:
        if self._attempt_timer is not None:
            self._attempt_timer.cancel()
            self._attempt_timer = None

    # -- connections -----------------------------------------------------------------------------

    def accept(self, hello: Hello, name: str) -> Welcome:
        """Take a connection that the other process made, and that the session judged TAKEN.

        Raises:
            PeerSessionError: the hello cannot be.
        """
        self.name = name
        self._drop_link()
        welcome = self.session.accept(hello, self._loop.now())
        self._forget_attempt()
        self._welcome = welcome
        return welcome

    def awaits(self, welcome: Welcome) -> bool:
        """Whether the connection that was accepted with this welcome is the one to be used next."""
        return self._welcome is welcome

    def adopt(self, connection: socket.socket) -> None:
        """Use a connection from now on."""
        self._drop_link()
        self._doubted, self._welcome = False, None
        self.link = StreamLink(self._loop, connection, self.session, self, self._sockets.buffers)
        self._sockets.flush_soon(self.link)
        self._watch()
        self._events.on_connected(self)
        self.poll()

    def _watch(self) -> None:
        if self.kind != "unix":
            self._sockets.watch(self)

    def lost_before_adopted(self, reason: str) -> None:
        """The connection that was accepted broke before it could be used."""
        self._welcome = None
        self.session.cut(self._loop.now(), reason)
        self._loop.submit(self.poll)

    def on_messages(self, messages: list[Message]) -> None:
        """Messages arrived, in order."""
        self._doubted = False
        self.session.heard()
        self._events.on_messages(messages)

    def on_cut(self, link: StreamLink, reason: str, *, for_good: bool) -> None:
        """The connection ended; nothing comes after this. `for_good`: what comes could never be taken."""
        if link is not self.link:
            return
        self.link = None
        if for_good:
            logger.warning("the connection to '%s' is dropped: %s", self.name, reason)
            self.session.left(reason)
        else:
            self.session.cut(self._loop.now(), reason)
        self.poll()

    def doubt(self, silent_s: float) -> None:
        """Nothing has been said for a while: try by another connection whether its machine can be reached."""
        if self.link is not None and self.kind != "unix":
            self._doubted = True
            self.session.silent(self._loop.now(), silent_s)
            self.poll()

    def look(self) -> bool:
        """Look whether they have; False if there are none any more."""
        if self.link is not None:
            silent_s = silence_of(self.link.connection)
            if silent_s >= SILENCE_S:
                self.session.silent(self._loop.now(), silent_s)
            elif not self._doubted:
                self.session.heard()
        if self._attempt is not None and silence_of(self._attempt.connection) >= SILENCE_S:
            self._attempt.fail("silent")
        self.poll()
        return self.link is not None or self._attempt is not None

    def left(self, reason: str) -> None:
        """The other process said goodbye."""
        if self.link is not None:
            self.link.acknowledge_now()
            self.link.flush()
        self.session.left(reason, Loss.LEFT)
        self.poll()

    @property
    def is_settled(self) -> bool:
        """Whether the other side has acknowledged everything, or is dead."""
        return self.session.num_unacknowledged == 0 or self.session.state is State.DEAD

    def close(self) -> None:
        """Drop every connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = None
        attempt, self._attempt = self._attempt, None
        self._stop_attempt_timer()
        if attempt is not None:
            attempt.close()
        self._drop_link()

    def _drop_link(self) -> None:
        link, self.link = self.link, None
        if link is not None:
            link.close()

    def abandon(self) -> None:
        """Close every descriptor in a forked child."""
        for part in (self.link, self._attempt):
            if part is not None:
                part.abandon()
